"""What a plan can take from an old dataset (`--reuse`), or why nothing."""

from __future__ import annotations

import os
from typing import Any

from tokenmill.dataset.loader import Dataset, open_dataset
from tokenmill.dataset.verification import encoder_warning, read_run, size_fault
from tokenmill.dataset.views import damaged
from tokenmill.errors import RefusedError, UsageError
from tokenmill.planning.plan import Plan
from tokenmill.planning.reuse import REASONS_SHOWN, Reuse, difference_of_texts, match_sources

LEAVE_OUT = "leave --reuse out to encode all of it"


def find_reuse(directory: str, plan: Plan, output: str | os.PathLike[str]) -> Reuse:
    """The sources that need not be encoded. Refuses a dataset that is of no use."""
    if os.path.realpath(directory) == os.path.realpath(output):
        raise UsageError(
            f"--reuse {directory}: is the output itself",
            hint="write the new dataset to another folder",
        )
    old = open_dataset(directory)
    manifest = old.manifest
    for entry in manifest.files:
        if fault := size_fault(old.store, entry):
            raise damaged(directory, fault)
    lines = difference_of_texts(manifest.plan, plan)
    run = read_run(old.store) or {}
    if not lines and (told := encoder_warning(old.settings, run)):
        lines = [told]
    if lines:
        raise _useless(directory, "its tokens are not those of this plan", lines)
    found, others = match_sources(plan, manifest.plan, manifest.sources, _times(run))
    if not found:
        reasons = [f"{name}: {why}" for name, why in others.items()]
        raise _useless(directory, "no source is the same", reasons)
    taken = [manifest.sources[number] for number in found.values()]
    return Reuse(
        directory=directory,
        checksum=manifest.checksum,
        sources=found,
        encoded=others,
        documents=sum(entry["documents"] for entry in taken),
        tokens=sum(_text_tokens(old, entry) for entry in taken),
        text_bytes=sum(entry["text_bytes"] for entry in taken),
    )


def _useless(directory: str, what: str, reasons: list[str]) -> RefusedError:
    shown = reasons[:REASONS_SHOWN]
    if len(reasons) > len(shown):
        shown.append(f"... and {len(reasons) - len(shown)} more")
    what = f"--reuse {directory}: nothing of it can be reused, {what}:"
    return RefusedError(what, hint=LEAVE_OUT, lines=shown)


def _text_tokens(old: Dataset, entry: dict[str, Any]) -> int:
    """Tokens of a source without the special ids around its documents."""
    settings = old.settings
    each = int(settings.first.eot != "none") + int(settings.bos_id >= 0)
    return int(entry["tokens"]) - each * int(entry["documents"])


def _times(run: dict[str, Any]) -> dict[str, int]:
    """Modification times of the sources, as run.json has them."""
    sources = run.get("sources")
    if not isinstance(sources, dict):
        return {}
    return {
        name: entry["mtime_ns"]
        for name, entry in sources.items()
        if isinstance(entry, dict) and isinstance(entry.get("mtime_ns"), int)
    }
