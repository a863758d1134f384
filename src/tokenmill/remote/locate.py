"""One argument that is a URL to the files it means, wherever they are."""

from __future__ import annotations

import msgspec

from tokenmill.remote.address import RemoteFile, hub_address
from tokenmill.remote.hub import Shelf, endpoint, find_on_hub
from tokenmill.remote.stores import find_in_store


class Located(msgspec.Struct, frozen=True, kw_only=True):
    files: list[RemoteFile]
    skipped: list[tuple[str, str]]
    revisions: dict[str, str]  # of the Hub: repository and revision as asked for -> commit


def locate(url: str, pins: dict[str, str], shelf: Shelf, extensions: tuple[str, ...]) -> Located:
    """`pins`: commits that an output is bound to already; they hold whatever main is now."""
    address = hub_address(url, endpoint())
    if address is None:
        files, skipped = find_in_store(url)
        return Located(files=files, skipped=skipped, revisions={})
    commit, files, skipped = find_on_hub(address, pins.get(address.root, ""), shelf, extensions)
    return Located(files=files, skipped=skipped, revisions={address.root: commit})
