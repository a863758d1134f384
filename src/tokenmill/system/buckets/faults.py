"""What a store says, as an error that names the file, the cause and the remedy.

The text of a store's answer is never shown: it may hold the id of a key, or a signature.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from tokenmill.errors import StorageError, TokenmillError, UsageError
from tokenmill.system.buckets.access import LOGIN
from tokenmill.system.buckets.address import BucketAddress

Action = Literal["read", "list", "write", "remove"]
RESUMES = "then run the same command again: it resumes"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]+)</Code>|\"reason\":\s*\"([A-Za-z]+)\"")
RIGHTS = {
    "s3": {
        "read": "s3:GetObject",
        "list": "s3:ListBucket (of the bucket itself, not of bucket/*)",
        "write": "s3:PutObject and s3:AbortMultipartUpload",
        "remove": "s3:DeleteObject",
    },
    "gs": {
        "read": "storage.objects.get",
        "list": "storage.objects.list",
        "write": "storage.objects.create and storage.multipartUploads.*",
        "remove": "storage.objects.delete",
    },
}
EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException", "RequestExpired"}
UNKNOWN_KEY = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"}
REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"}
FULL = {
    *("QuotaExceeded", "ServiceQuotaExceeded", "StorageQuotaExceeded", "InsufficientStorage"),
    *("XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "quotaExceeded"),
}
NAME = {"KeyTooLongError", "InvalidObjectName", "XMinioInvalidObjectName", "InvalidURI"}
REDIRECT = "redirect without LOCATION"  # so S3 answers for a bucket of another region
PASSING_STATUS = {0, 408, 425, 429, 500, 502, 503, 504}


class Answer(NamedTuple):
    """Of a store, or of none (status 0)."""

    status: int
    code: str


def answer_of(error: BaseException) -> Answer:
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    said = (code[1] or code[2]) if code else ""
    return Answer(int(status[1]) if status else 0, said)


def passes(error: BaseException) -> bool:
    """Whether another try may help."""
    answer = answer_of(error)
    if REDIRECT in str(error):
        return False
    if answer.code == "NoSuchUpload":  # it was aborted, or ended without our knowing
        return True
    return answer.status in PASSING_STATUS and answer.code not in EXPIRED | UNKNOWN_KEY | FULL


def bucket_fault(
    error: BaseException, action: Action, address: BucketAddress, name: str = ""
) -> TokenmillError:
    where = "/".join(part for part in (str(address), name) if part)
    status, code = answer_of(error)
    scheme, bucket = address.scheme, address.bucket
    said = f" ({code or f'HTTP {status}'})" if code or status else ""
    if isinstance(error, ValueError):
        return UsageError(
            f"{where}: cannot be the name of an object",
            hint="leave out empty parts, '.', '..' and control characters",
        )
    if code == "NoSuchBucket":
        hint = f"create the bucket {bucket}, or correct the address"
        hint += " (or AWS_ENDPOINT_URL)" if scheme == "s3" else ""
        return StorageError(f"{where}: there is no such bucket", hint=hint)
    if code in EXPIRED:
        return StorageError(
            f"{where}: cannot {action}: the credentials have expired",
            hint=f"get new ones and set them in the environment; {RESUMES}",
        )
    if code == "RequestTimeTooSkewed":
        return StorageError(
            f"{where}: cannot {action}: this machine's clock and the store's differ too much",
            hint=f"set the clock (NTP); {RESUMES}",
        )
    if code in REGION or status in (301, 307) or REDIRECT in str(error):
        return StorageError(
            f"{where}: cannot {action}: the bucket is in another region{said}",
            hint="set AWS_REGION to the region of the bucket",
        )
    if code in FULL or status == 507:
        return StorageError(
            f"{where}: cannot {action}: the store is full, or a quota is used up{said}",
            hint=f"free some space or raise the quota; {RESUMES}",
        )
    if code in NAME:
        return UsageError(
            f"{where}: the store does not accept this name{said}",
            hint="give another one with -o or --name",
        )
    return _refused_or_down(error, action, where, scheme, status, code, said)


def _refused_or_down(
    error: BaseException,
    action: Action,
    where: str,
    scheme: str,
    status: int,
    code: str,
    said: str,
) -> TokenmillError:
    if code in UNKNOWN_KEY or status == 401 or "169.254.169.254" in str(error):
        return StorageError(
            f"{where}: cannot {action}: the store does not accept the credentials{said}",
            hint=LOGIN[scheme],
        )
    if status == 403:
        return StorageError(
            f"{where}: no permission to {action}{said}",
            hint=f"ask the owner of the bucket for {RIGHTS[scheme][action]}; {RESUMES}",
        )
    if status:
        return StorageError(
            f"{where}: cannot {action}: the store answers{said}, after several tries",
            hint="run the same command again: it resumes",
        )
    endpoint = "AWS_ENDPOINT_URL" if scheme == "s3" else "GOOGLE_BASE_URL"
    return StorageError(
        f"{where}: cannot {action}: the store does not answer, after several tries",
        hint=f"check the network and {endpoint}; {RESUMES}",
    )
