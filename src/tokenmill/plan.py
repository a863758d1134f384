"""Settings and sources to a plan: pure, small, the same everywhere.

A plan is the settings, the sources and the rule by which sources are cut; it holds no list of
units, so that a job of a million units has a small plan. `segments_of` cuts a source when its
turn comes, from its footer or its size and from constants, never from workers or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from tokenmill.arrow_ipc import layout_of
from tokenmill.arrow_large import PlainText, plain_text
from tokenmill.config import PlanSettings, Reading, settings_to_dict
from tokenmill.fields import column_path
from tokenmill.parquet_footer import text_sizes
from tokenmill.sources import Source, arrow_schema, open_parquet

# Bump when the rule changes: a journal cut by another rule is then refused, not misread.
CUT_RULE = 3
# A segment is worth some 16 MB of text: a lost one costs a tenth of a second.
SEGMENT_BYTES = 16 << 20
# A segment that turns out longer (compressed file, giant row group) is a chain of units this big.
UNIT_BYTES = 16 << 20
FEW_ROW_GROUPS = 8
# At the end of a byte range, a document that ends within so many bytes is read whole.
TEXT_WINDOW = 4 << 20
# Text given to the encoder at once: its memory grows with the batch (docs/log.md).
BATCH_BYTES = 4 << 20


def cut_rule() -> list[int]:
    """Whatever decides how a source is cut: part of every plan."""
    return [CUT_RULE, SEGMENT_BYTES, UNIT_BYTES, BATCH_BYTES, FEW_ROW_GROUPS, TEXT_WINDOW]


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a source that one worker reads: row groups, record batches or bytes
    [start, stop).

    Of one large row group it may be a range of its text, [text_start, text_stop) in bytes: the
    batches that begin there (-1: to the end); of one large record batch, of its rows. It becomes
    one unit, or a chain of units done in order where its length is known only by reading it.
    """

    source: int
    number: int
    start: int
    stop: int
    size: int  # bytes to read, for the progress bar
    text_start: int = 0
    text_stop: int = -1


class UnitId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Source, segment in it, part of the segment: units sort in the order of their documents."""

    source: int
    segment: int
    part: int

    def __str__(self) -> str:
        return f"{self.source}.{self.segment}.{self.part}"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    settings: PlanSettings
    sources: tuple[Source, ...]
    revisions: dict[str, str] = {}  # of the Hub, as asked for -> commit

    def to_dict(self) -> dict[str, Any]:
        """What is bound to an output: nothing of this machine, this run or this moment."""
        plan = {
            "cut_rule": cut_rule(),
            "settings": settings_to_dict(self.settings),
            "sources": [source.identity() for source in self.sources],
        }
        return plan if not self.revisions else {**plan, "revisions": self.revisions}

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.to_dict())

    @property
    def input_bytes(self) -> int:
        return sum(source.size for source in self.sources)


class BoundPlan(Plan, frozen=True, kw_only=True):
    """What an export or an import is bound to: the tokens that are there, not inputs to encode."""

    bound: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.bound


def fingerprint_of(plan: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(plan, order="sorted"))


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """In words, what another plan would change; empty when they are the same plan."""
    lines = []
    if old.get("cut_rule") != new.get("cut_rule"):
        lines.append(f"cut rule: {old.get('cut_rule')} -> {new.get('cut_rule')}")
    before, after = old["settings"], new["settings"]
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            lines.append(f"{key}: {_show(before.get(key))} -> {_show(after.get(key))}")
    commits, others = old.get("revisions", {}), new.get("revisions", {})
    for name in sorted(commits.keys() | others.keys()):
        if commits.get(name) != others.get(name):
            lines.append(f"{name}: commit {commits.get(name)} -> {others.get(name)}")
    lines.extend(_source_difference(old["sources"], new["sources"]))
    return lines


def _show(value: Any) -> str:
    if isinstance(value, dict) and "kind" in value:
        return str(value["fraction"] or (f"{value['kind']}:{value['amount']}".removesuffix(":0")))
    if isinstance(value, list):  # formats that are written besides
        return ", ".join(str(one.get("format")) for one in value) or "none"
    if isinstance(value, str) and not (value and value.isprintable()):
        return repr(value)  # a separator of line ends would be shown as nothing
    return str(value)


def _source_difference(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[str]:
    before = {source["name"]: source for source in old}
    after = {source["name"]: source for source in new}
    lines = [f"input no longer given: {name}" for name in before if name not in after]
    lines += [f"input added: {name}" for name in after if name not in before]
    for name in (name for name in before if name in after):
        if before[name]["size"] != after[name]["size"]:
            lines.append(f"{name}: {before[name]['size']} bytes -> {after[name]['size']} bytes")
        elif before[name] != after[name]:
            lines.append(f"{name}: content changed (same size)")
    if not lines and old != new:
        lines.append("inputs in another order")
    shown = lines[:10]
    return shown + ([f"... and {len(lines) - 10} more inputs"] if len(lines) > 10 else [])


def segments_of(source: Source, reading: Reading) -> Iterator[Segment]:
    """Cut one source. The only step that looks into the file: a parquet footer, Arrow's headers."""
    sizes: list[int] = []  # of what is cut between: row groups, record batches
    if source.kind == "parquet":
        with open_parquet(source.path) as file:
            sizes = text_sizes(source.name, file.metadata, reading.text_column)
        spans = cut_row_groups(sizes)
    elif source.kind == "arrow":
        yield from _arrow_segments(source, reading.text_column)
        return
    elif source.compression:
        spans = [(0, source.size, 0, -1)]
    else:
        spans = cut_bytes(source.size)
    whole = sum(sizes) if sizes else source.size
    for number, (start, stop, text_start, text_stop) in enumerate(spans):
        read = stop - start
        if sizes:
            read = (text_stop if text_stop >= 0 else sum(sizes[start:stop])) - text_start
        share = read * source.size // max(1, whole)  # of the file, for the progress bar
        yield Segment(source.number, number, start, stop, share, text_start, text_stop)


def _arrow_segments(source: Source, text_column: str) -> Iterator[Segment]:
    layout = layout_of(source.path, source.mtime_ns)
    sizes = [block.stop - block.start for block in layout.blocks]
    if layout.chained:
        yield Segment(source.number, 0, 0, len(sizes), source.size)
        return
    texts = {}  # bytes of text, of the large batches that can be read in parts
    for number, size in enumerate(sizes):
        if size >= 2 * SEGMENT_BYTES and (text := large_text(source, number, text_column)):
            texts[number] = text.data[1]
    spans = cut_record_batches(sizes, [block.rows for block in layout.blocks], texts)
    for number, (start, stop, first, last) in enumerate(spans):
        share = sum(sizes[start:stop])
        if first or last >= 0:
            rows = layout.blocks[start].rows
            share = share * ((last if last >= 0 else rows) - first) // rows
        yield Segment(source.number, number, start, stop, share, first, last)


def large_text(source: Source, number: int, text_column: str) -> PlainText | None:
    """Where the text of a large record batch lies, if it can be read in parts."""
    schema = arrow_schema(source.path, source.mtime_ns)
    path = column_path(schema, text_column)
    if len(path) != 1:
        return None
    layout = layout_of(source.path, source.mtime_ns)
    return plain_text(source.path, layout, number, schema, path[0])


Span = tuple[int, int, int, int]  # start, stop, text_start, text_stop


def _cut_runs(sizes: Sequence[int], large: Callable[[int], list[Span]]) -> list[Span]:
    """Runs of row groups or record batches worth SEGMENT_BYTES together; a large one alone."""
    spans: list[Span] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if size >= 2 * SEGMENT_BYTES:
            if start < index:
                spans.append((start, index, 0, -1))
            spans.extend(large(index))
            start, total = index + 1, 0
            continue
        total += size
        if total >= SEGMENT_BYTES:
            spans.append((start, index + 1, 0, -1))
            start, total = index + 1, 0
    if start < len(sizes):
        spans.append((start, len(sizes), 0, -1))
    return spans


def cut_row_groups(sizes: Sequence[int]) -> list[Span]:
    """In a file of few row groups, a large one is cut into up to four ranges, or most cores would
    idle. A range is found by decoding its row group from the start, so more would cost more than
    they gain.
    """

    def large(group: int) -> list[Span]:
        if len(sizes) > FEW_ROW_GROUPS:
            return [(group, group + 1, 0, -1)]
        count = min(4, sizes[group] // SEGMENT_BYTES)
        step = -(-sizes[group] // count)
        firsts = [(group, group + 1, i * step, (i + 1) * step) for i in range(count - 1)]
        return [*firsts, (group, group + 1, (count - 1) * step, -1)]

    return _cut_runs(sizes, large)


def cut_record_batches(
    sizes: Sequence[int], rows: Sequence[int], texts: Mapping[int, int]
) -> list[Span]:
    """One that can be read in parts (`texts`: its bytes of text) is cut into ranges of its rows."""

    def large(batch: int) -> list[Span]:
        step = -(-rows[batch] // max(1, texts.get(batch, 0) // SEGMENT_BYTES)) or 1
        firsts = range(0, max(1, rows[batch]), step)
        ranges = [(batch, batch + 1, first, first + step) for first in firsts[:-1]]
        return [*ranges, (batch, batch + 1, firsts[-1], -1)]

    return _cut_runs(sizes, large)


def cut_bytes(size: int) -> list[Span]:
    """Equal byte ranges; a line belongs to the range in which it starts."""
    if size == 0:
        return [(0, 0, 0, -1)]  # an empty text file is an empty document
    return [
        (start, min(size, start + SEGMENT_BYTES), 0, -1) for start in range(0, size, SEGMENT_BYTES)
    ]
