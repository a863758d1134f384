"""`--tokenizer ORG/NAME`: the tokenizer file of a model on the Hub.

The file is downloaded into the library's own cache. The commit is part of the plan, as that of
inputs from the Hub is, and a job that is resumed keeps to it.
"""

from __future__ import annotations

import os
import re
from threading import Event

import msgspec

from tokenmill.errors import InputError, UsageError
from tokenmill.inputs.download import Download, fetch
from tokenmill.inputs.remote.address import HubAddress, hub_address
from tokenmill.inputs.remote.hub import ListCache, find_on_hub
from tokenmill.tokenizer.bundled import ENCODINGS
from tokenmill.tokenizer.files import MODEL_FILES

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[^/].*)?")


def tokenizer_address(name: str) -> HubAddress | None:
    """The model that a name means; None for a bundled encoding and for what is on this machine."""
    if name in ENCODINGS or os.path.exists(name):
        return None
    if not name.startswith("hf://"):
        if not _NAME.fullmatch(name) or name.endswith((".json", ".model", ".tiktoken")):
            return None
        name = f"hf://{name}"
    address = hub_address(name)
    if address is not None and address.kind != "model":
        raise UsageError(f"--tokenizer {name}: not a model on the Hub", hint="write ORG/NAME")
    return address


def fetch_tokenizer(
    address: HubAddress, pins: dict[str, str], shelf: ListCache
) -> tuple[str, dict[str, str]]:
    """The path of a model's tokenizer file, and the commit that it is of."""
    wanted = msgspec.structs.replace(address, path=address.path or "tokenizer.*")
    endings = tuple(os.path.splitext(name)[1] for name in MODEL_FILES)
    try:
        commit, files, _ = find_on_hub(wanted, pins.get(address.root, ""), shelf, endings)
    except InputError as error:
        raise error.located(f"--tokenizer {address.repo}: not a file or folder here") from None
    names = {file.hub.path: file for file in files if file.hub is not None}
    chosen = next((names[name] for name in (address.path, *MODEL_FILES) if name in names), None)
    if chosen is None:
        raise UsageError(
            f"--tokenizer {address.repo}: has no {' or '.join(MODEL_FILES)} at commit "
            f"{commit[:12]}",
            hint="download its tokenizer and name the file",
        )
    return fetch(Download(chosen, Event(), lambda _: None), None), {address.root: commit}
