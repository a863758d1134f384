"""Where a store is and who may use it: from the environment and the usual files, at every start.

Nothing of this is ever written down: a plan, a manifest and a log hold the address of a bucket
only. A worker on another machine reads its own environment.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tokenmill.errors import UsageError
from tokenmill.system.buckets.address import BucketAddress

YES = ("1", "true", "yes", "on")
NO_METADATA = {"s3": "AWS_EC2_METADATA_DISABLED", "gs": "NO_GCE_CHECK"}  # do not ask for it
METADATA = "http://169.254.169.254"  # of Amazon and of Google
# Each means that the library finds credentials by itself, and renews them.
FOUND_BY_LIBRARY = {
    "s3": (
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ),
    "gs": (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BEARER_TOKEN",
    ),
}
LOGIN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or "
    'AWS_PROFILE; for a login by SSO run `eval "$(aws configure export-credentials --format '
    "env)\"`; for a store other than Amazon's set AWS_ENDPOINT_URL too; to read a "
    "public bucket set AWS_SKIP_SIGNATURE=true",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS; to "
    "read a public bucket set GOOGLE_SKIP_SIGNATURE=true",
}


@dataclass(frozen=True)
class Keys:
    """A key of S3; never shown."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(repr=False, default="")


@dataclass(frozen=True)
class S3Access:
    endpoint: str  # "": Amazon's of the region
    region: str
    keys: Keys | None  # None: the library finds some, or requests are not signed

    @property
    def options(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {"region": self.region}
        if self.endpoint:
            # The variable for S3 alone comes first, and the library would prefer it anyway.
            chosen |= {"endpoint": self.endpoint, "aws_endpoint_url_s3": self.endpoint}
        if self.keys is not None:
            chosen |= {"access_key_id": self.keys.id, "secret_access_key": self.keys.secret}
            if self.keys.token:
                chosen["session_token"] = self.keys.token
        return chosen


def s3_access() -> S3Access:
    profile = _profile()
    get = os.environ.get
    endpoint = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL") or get("AWS_ENDPOINT")
    endpoint = (endpoint or profile.get("endpoint_url", "")).rstrip("/")
    region = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or profile.get("region", "")
    return S3Access(endpoint, region or "us-east-1", None if _unsigned("AWS") else _keys(profile))


def _keys(profile: dict[str, str]) -> Keys | None:
    """Those of the environment, or of a profile in the user's file."""
    get = os.environ.get
    if get("AWS_ACCESS_KEY_ID") and get("AWS_SECRET_ACCESS_KEY"):
        token = get("AWS_SESSION_TOKEN") or get("AWS_TOKEN") or ""
        return Keys(get("AWS_ACCESS_KEY_ID", ""), get("AWS_SECRET_ACCESS_KEY", ""), token)
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        token = profile.get("aws_session_token", "")
        return Keys(profile["aws_access_key_id"], profile["aws_secret_access_key"], token)
    return None


def _profile() -> dict[str, str]:
    """What ~/.aws/config and ~/.aws/credentials say of AWS_PROFILE, or of the default profile."""
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    files = {
        "AWS_CONFIG_FILE": ("~/.aws/config", name if name == "default" else f"profile {name}"),
        "AWS_SHARED_CREDENTIALS_FILE": ("~/.aws/credentials", name),
    }
    found: dict[str, str] = {}
    for variable, (usual, section) in files.items():
        parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
        with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError, KeyError):
            path = os.path.expanduser(os.environ.get(variable) or usual)
            parser.read_string(Path(path).read_text())
            found |= {key: value for key, value in parser[section].items() if value}
    return found


def _unsigned(family: str) -> bool:
    return os.environ.get(f"{family}_SKIP_SIGNATURE", "").lower() in YES


def gcs_endpoint() -> str:
    """Of an emulator, or of another store that speaks as GCS does; "": Google's."""
    found = os.environ.get("GOOGLE_BASE_URL") or os.environ.get("STORAGE_EMULATOR_HOST") or ""
    return found.rstrip("/") if "://" in found or not found else f"http://{found.rstrip('/')}"


def gcs_options() -> dict[str, Any]:
    endpoint = gcs_endpoint()
    if not endpoint:
        return {}
    if any(map(os.environ.get, FOUND_BY_LIBRARY["gs"])):
        return {"base_url": endpoint}
    # An emulator asks for no credentials, and the library for some: these say so.
    names = ("private_key", "private_key_id", "client_email")
    key = {"gcs_base_url": endpoint, "disable_oauth": True, **dict.fromkeys(names, "")}
    return {"base_url": endpoint, "service_account_key": json.dumps(key)}


def refuse_without_credentials(address: BucketAddress) -> None:
    """The library would ask this machine's metadata server for them, for minutes."""
    scheme = address.scheme
    if _unsigned("AWS" if scheme == "s3" else "GOOGLE"):
        return
    if any(map(os.environ.get, FOUND_BY_LIBRARY[scheme])):
        return
    if scheme == "s3" and s3_access().keys is not None:
        return
    if scheme == "gs" and (gcs_endpoint() or _is_logged_in()):
        return
    if not _has_metadata_server(scheme):
        raise UsageError(f"{address}: no credentials are set", hint=LOGIN[scheme])


def _is_logged_in() -> bool:
    folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
    return os.path.exists(os.path.join(folder, "application_default_credentials.json"))


def _has_metadata_server(scheme: str) -> bool:
    """Whether this is a machine of the cloud, which gives credentials to those who run on it."""
    if os.environ.get(NO_METADATA[scheme], "").lower() in YES:
        return False
    server = os.environ.get("AWS_METADATA_ENDPOINT") if scheme == "s3" else None
    parts = urlsplit(server or METADATA)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1).close()
    except OSError:
        return False
    return True
