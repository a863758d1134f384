"""What a run did: the result that `prepare` returns, its warnings, and run.json."""

from __future__ import annotations

import platform
from collections import Counter
from importlib import metadata
from typing import Any

import msgspec

from tokenmill.amounts import counted, parse_count, show_duration
from tokenmill.errors import warning
from tokenmill.formats import get_format
from tokenmill.output.manifest import MANIFEST_VERSION, Manifest
from tokenmill.output.workspace import WorkArea
from tokenmill.planning.empty_splits import warning_of_short, warnings_of_missing_val
from tokenmill.planning.leases import Part
from tokenmill.planning.make import Proposal
from tokenmill.planning.plan import Plan, same_content
from tokenmill.settings import PlanSettings
from tokenmill.tokenizer.families import family_of
from tokenmill.tokenizer.session import SPECIAL
from tokenmill.tokens.counts import Counts


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did; `manifest` is what it made."""

    output: str
    manifest: Manifest
    already_done: bool
    seconds: float
    run: dict[str, Any]
    warnings: list[str]
    part: str = ""  # of a job on several machines: `manifest` has the counts of this part alone

    def __repr__(self) -> str:
        settings = self.manifest.settings
        formats = ", ".join(layout.format for layout in settings.layouts)
        splits = "; ".join(
            f"{split.name}: {counted(split.documents, 'document')}, "
            f"{counted(split.tokens, 'token')}"
            for split in self.manifest.splits
            if split.format == settings.first.format
        )
        done = "already complete" if self.already_done else show_duration(self.seconds)
        count = len(self.warnings)
        warned = f"; {count} warning{'s' * (count != 1)}" if count else ""
        return f"Result({self.output!r}, {formats}, {settings.tokenizer}; {splits}; {done}{warned})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """rich shows every field of a Struct otherwise, and so the whole manifest."""
        shown = {"output": self.output, "counts": self.manifest.counts, "warnings": self.warnings}
        return list(shown.items())


def part_result(
    plan: Plan, output: str, part: Part, counts: Counts, seconds: float, run: dict[str, Any]
) -> Result:
    """Of one part of a job on several machines."""
    return Result(
        output=output,
        manifest=Manifest(
            version=MANIFEST_VERSION,
            fingerprint=plan.fingerprint,
            plan=plan.to_dict(),
            counts=counts.to_dict(),
            splits=[],
            sources=[],
            set_aside=[],
            files=[],
        ),
        already_done=not run.get("units_encoded", run.get("files_made")),
        seconds=seconds,
        run=run,
        warnings=[],
        part=str(part),
    )


def write_run_record(
    workspace: WorkArea, prepared: Proposal, run: dict[str, Any], seconds: float
) -> None:
    """run.json: what the manifest must not hold, since it differs from run to run."""
    record = {
        "seconds": round(seconds, 3),
        **run,
        "settings": msgspec.to_builtins(prepared.run),
        "host": platform.node(),
        **made_with(prepared),
    }
    workspace.put_run_record(record)


def made_with(prepared: Proposal) -> dict[str, Any]:
    """Where the inputs and the tokenizer were, and what encoded them."""
    library = family_of(prepared.encoding).library
    packages = ("tokenmill", "gigatoken", library, "pyarrow", "numpy")
    return {
        "sources": {
            s.name: {"path": s.path or s.name, "mtime_ns": s.mtime_ns}
            for s in prepared.plan.sources
        },
        "tokenizer": prepared.encoding.path or prepared.encoding.name,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def short_shards(manifest: Manifest, settings: PlanSettings, asked: str | int | None) -> list[str]:
    """Warnings for the shards that a trainer will find too short."""
    lines: list[str] = []
    for layout in settings.layouts:
        minimum, whose = get_format(layout.format).min_shard_tokens, "of a usual batch"
        if asked is not None:
            minimum, whose = parse_count(asked), "of --min-shard-tokens"
        files = [f for f in manifest.files if f.kind == "tokens" and f.format == layout.format]
        shards = Counter(file.split for file in files)
        lines += [
            warning(
                f"{file.path} holds {file.tokens:,} tokens, fewer than the {minimum:,} {whose}: "
                "the trainer may refuse it"
                + (" (--last-shard merge avoids this)" if shards[file.split] > 1 else "")
            )
            for file in files
            if file.tokens < minimum <= layout.shard_tokens
        ]
    return lines


def warnings_of_splits(
    manifest: Manifest, settings: PlanSettings, asked: str | int | None
) -> list[str]:
    """What a trainer will stumble over: short shards, short splits, no validation split."""
    lines = short_shards(manifest, settings, asked)
    mine = [split for split in manifest.splits if split.format == settings.first.format]
    minimum = get_format(settings.first.format).min_shard_tokens if asked is None else 0
    for split in mine:
        if not split.tokens < minimum <= settings.first.shard_tokens:  # else it is warned of above
            total = sum(split.tokens for split in mine)
            short = warning_of_short(settings, split.name, split.tokens, total)
            lines += [short] if short else []
    if not any(split.name == "val" for split in mine):
        lines += warnings_of_missing_val(settings)
    return lines


def _one_source(manifest: Manifest, settings: PlanSettings) -> list[str]:
    """A warning where the validation split comes from one source of many."""
    filled = [source for source in manifest.sources if source["documents"]]
    if settings.val.kind not in ("docs", "tokens", "shard", "tail") or len(filled) < 2:
        return []
    held = next(s for s in manifest.splits if s.name == "val")
    source = filled[-1] if settings.val.kind == "tail" else filled[0]
    if not 0 < held.documents <= source["documents"]:
        return []
    return [
        warning(
            f"all documents of the val split come from {source['name']}, one of {len(filled)} "
            "sources; a fraction (such as --val 0.01) takes some of each"
        )
    ]


def _special_strings(manifest: Manifest, run: dict[str, Any]) -> list[str]:
    """A warning that says which strings stood in which sources, as far as this run saw them."""
    total = manifest.counts["special_strings"]
    if not total:
        return []
    told = run.get("encoder", {})
    names = [key.removeprefix(SPECIAL) for key in told if key.startswith(SPECIAL)]
    which = f" ({', '.join(names[:5])}{' ...' * (len(names) > 5)})" if names else ""
    where = [source["name"] for source in manifest.sources if source.get("special_strings")]
    places = f"{', '.join(where[:3])}{f' and {len(where) - 3} more' if len(where) > 3 else ''}"
    verb = "stands" if total == 1 else "stand"
    return [
        warning(
            f"{total:,} string{'s' * (total != 1)} of special tokens{which} {verb} in documents of "
            f"{places}: encoded as text, not as special tokens"
        )
    ]


def warnings_of(
    manifest: Manifest,
    settings: PlanSettings,
    asked: str | int | None,
    run: dict[str, Any] | None = None,
) -> list[str]:
    lines = [
        warning(
            f"the {split.name} split is empty: no file was written for it; --val tail:0.1 puts "
            "documents in both splits"
        )
        for split in manifest.splits
        if split.tokens == 0 and split.format == settings.first.format
    ]
    lines += same_content(manifest.sources)
    lines += _one_source(manifest, settings)
    lines += warnings_of_splits(manifest, settings, asked)
    lines += _special_strings(manifest, run or {})
    ranges = [one for one in manifest.set_aside if "rows" in one]
    if ranges:
        lines.append(
            warning(
                f"{sum(one['rows'] for one in ranges):,} of the quarantined rows could not be "
                f"read: {ranges[0]['source']}, {ranges[0]['part']}"
                + (f", and {len(ranges) - 1} more ranges" if len(ranges) > 1 else "")
            )
        )
    if fatal := len(manifest.set_aside) - len(ranges):
        lines.append(
            warning(
                f"{fatal} of the quarantined rows are text, but encoding them killed "
                "or hung a worker (manifest.json names them)"
            )
        )
    return lines
