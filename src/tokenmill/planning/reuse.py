"""Which sources of a plan an old dataset holds already (`--reuse`). Pure: nothing is read here.

An old dataset never changes what a plan makes, only how: the ids of a document are taken from it
instead of being encoded. So a source counts as the same only where its ids are certainly the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokenmill.amounts import counted
from tokenmill.inputs.kinds import extension_of, kind_named
from tokenmill.inputs.segments import cut_rule
from tokenmill.inputs.source import SAMPLED, Source
from tokenmill.planning.plan import Plan
from tokenmill.settings import PlanSettings

REASONS_SHOWN = 5


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """What is taken from an old dataset: small plain data, sent to every worker."""

    directory: str
    checksum: str  # of its manifest
    sources: dict[int, int]  # numbers of sources: in the plan, and in the old dataset
    encoded: dict[str, str]  # the other sources by name, and why they are encoded
    documents: int  # that the old dataset has of these sources
    tokens: int
    text_bytes: int

    def lines(self) -> list[str]:
        """What `plan` and `prepare` say of it."""
        count = counted(len(self.sources), "source")
        verb = "is" if len(self.sources) == 1 else "are"
        told = [
            f"reuse: {count} {verb} as when {self.directory} was made: up to "
            f"{counted(self.documents, 'document')} ({counted(self.tokens, 'token')}) "
            "are not encoded again"
        ]
        told += [f"  encoded: {name}: {why}" for name, why in self._shown()]
        if len(self.encoded) > REASONS_SHOWN:
            told.append(f"  ... and {len(self.encoded) - REASONS_SHOWN} more sources")
        return told

    def _shown(self) -> list[tuple[str, str]]:
        return list(self.encoded.items())[:REASONS_SHOWN]


def difference_of_texts(old: dict[str, Any], plan: Plan) -> list[str]:
    """Settings that give other ids for the same file; `old`: the plan of an old dataset."""
    before, after = PlanSettings.from_dict(old["settings"]), plan.settings
    if "cut_rule" not in old:
        return ["it was imported from token files, so its text is not known"]
    lines = []
    ours = cut_rule()
    if old["cut_rule"][: len(ours)] != ours:  # what follows is about the order of documents
        lines.append(f"its sources were cut by another rule ({old['cut_rule']})")
    lines += tokenizer_difference(before, after)
    if before.text_template != after.text_template:
        lines.append(f"text: {before.text_template!r} -> {after.text_template!r}")
    return lines


def tokenizer_difference(before: PlanSettings, after: PlanSettings) -> list[str]:
    if before.tokenizer_sha256 != after.tokenizer_sha256:
        what = f"{before.tokenizer} -> {after.tokenizer}"
        if before.tokenizer == after.tokenizer:
            what = f"{after.tokenizer}, but its file has another content"
        return [f"tokenizer: {what}"]
    if before.pattern != after.pattern:
        return [f"pattern: {before.pattern!r} -> {after.pattern!r}"]
    return []


def match_sources(
    plan: Plan, old: dict[str, Any], entries: list[dict[str, Any]], times: dict[str, int]
) -> tuple[dict[int, int], dict[str, str]]:
    """Sources by number in the plan and in the old dataset; and why the others do not match.

    `entries` are the sources of the old manifest, `times` the modification times that its run.json
    names.
    """
    before = PlanSettings.from_dict(old["settings"])
    same: dict[tuple[int, str], list[int]] = {}
    for number, entry in enumerate(entries):
        same.setdefault((entry["size"], entry["fingerprint"]), []).append(number)
    names = {entry["name"] for entry in entries}
    found: dict[int, int] = {}
    others: dict[str, str] = {}
    for source in plan.sources:
        if kind_named(source.kind).holds_ids:
            continue  # nothing of it is encoded anyway
        why = "changed since" if source.name in names else "not in the old dataset"
        for number in same.get((source.size, source.fingerprint), ()):
            entry = entries[number]
            why = _other_text(source, plan.settings, entry, before)
            why = why or _not_proven_same(source, times.get(entry["name"]))
            if not why:
                found[source.number] = number
                break
        else:
            others[source.name] = why
    return found, others


def _other_text(
    source: Source, settings: PlanSettings, entry: dict[str, Any], before: PlanSettings
) -> str:
    """Why the rows of the same file are other documents; '': they are not."""
    if not entry["rows"]:
        return "no row of it was read for the old dataset"
    if entry.get("as", "") != source.as_kind or extension_of(entry["name"]) != extension_of(
        source.name
    ):
        return "read as another kind of file then"
    kind = kind_named(source.kind)
    if kind.has_separators:
        if before.text_separator != settings.text_separator:
            return f"text separator: {before.text_separator!r} -> {settings.text_separator!r}"
    elif not settings.text_template:
        then = entry.get("text_column") or before.text_column
        now = source.text_column or settings.text_column
        if then != now:
            return f"text column: {then} -> {now}"
    # A plain text file is cut at other places, so that its segments begin at other rows.
    if kind.cuts_documents and not source.compression and before.may_cut != settings.may_cut:
        return "long documents of text files are cut with other settings (--min-tokens and so on)"
    return ""


def _not_proven_same(source: Source, then: int | None) -> str:
    """Only parts of a large file are hashed, so its time must be the same, too."""
    if not source.fingerprint.startswith(SAMPLED) or then == source.mtime_ns:
        return ""
    if then is None:
        return "its run.json does not say when this large file was modified"
    return "modified since (of a large file only parts are compared)"
