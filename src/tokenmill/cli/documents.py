"""What `inspect` prints of one document, of one row of a source, and of quarantined rows."""

from __future__ import annotations

import shlex
from typing import Any

import click

from tokenmill.amounts import counted
from tokenmill.dataset.inspection import DocumentView, QuarantineReport
from tokenmill.dataset.provenance import RowView
from tokenmill.errors import printable

TEXT_SHOWN = 1500
TOKENS_SHOWN = 120
QUARANTINED_TEXT = 300  # letters of a quarantined row


def document_lines(view: DocumentView, *, full: bool, color: bool) -> list[str]:
    lines = [
        f"{view.split} document {view.document:,} of {view.documents:,}",
        f"  source  {printable(view.source)}, row {view.row:,} (counted from 0)",
        *_origin_lines(view),
        f"  tokens  {view.first_token:,} to {view.first_token + view.tokens - 1:,} of {view.split}"
        f" ({view.tokens:,})",
    ]
    lines += _in_lines(view.places)
    if view.cut:
        lines.append(f"  note    {view.cut}")
    low, high = _window(len(view.ids), len(view.ids) if full else TOKENS_SHOWN, view.token)
    if view.token >= 0:
        at = view.token
        lines.append(
            f"  token   {view.first_token + at:,} is number {at:,} of the document: "
            f"id {view.ids[at]}, '{view.pieces[at]}'"
        )
    lines += ["", *_text_lines(view, full)]
    shown = f" {low:,} to {high - 1:,} of {len(view.ids):,}" if high - low < len(view.ids) else ""
    lines += ["", f"tokens{shown}", _apart(view, low, high, color)]
    lines += ["", f"ids{shown}", " ".join(map(str, view.ids[low:high]))]
    return lines


def row_lines(view: RowView, directory: str) -> list[str]:
    lines = [f"{view.source}, row {view.row:,} (counted from 0)"]
    for one in view.documents:
        here, split = f"{one.split} document {one.document:,} of {one.documents:,}", one.split
        last = one.first_token + one.tokens - 1
        held = f"{one.first_token:,} to {last:,} of {split}" if one.tokens else "none"
        lines += [f"  is      {here}", f"  tokens  {held} ({one.tokens:,})", *_in_lines(one.places)]
        if one.cut:
            lines.append(f"  note    {one.cut}")
        of = f" --split {split}" if split != "train" else ""
        shown = f"tokenmill inspect {shlex.quote(directory)} --document {one.document}{of}"
        lines.append(f"  text    {shown}")
    if not view.documents:
        lines.append(f"  {view.state}: {view.reason}")
    return [printable(line) for line in lines]


def _origin_lines(view: DocumentView) -> list[str]:
    """Of a document of a prepared dataset: what that was made from."""
    if view.origin is None:
        return []
    origin, name = view.origin, printable(view.source)
    made = f"{printable(origin.source)}, row {origin.row:,}"
    return [f"  there   train document {origin.document:,} of the dataset {name}, made from {made}"]


def _in_lines(places: list[dict[str, Any]]) -> list[str]:
    """The files that hold a document."""
    return [
        f"  in      {place['path']}, from token {place['first_token']:,} ({place['tokens']:,})"
        for place in places
    ]


def _window(length: int, shown: int, middle: int) -> tuple[int, int]:
    """The part of so many tokens or letters that is shown: around the middle, within the whole."""
    low = max(0, min(middle - shown // 2, length - shown))
    return low, min(low + shown, length)


def _text_lines(view: DocumentView, full: bool) -> list[str]:
    """The text; of a long one the beginning, or the part around the token asked for."""
    length = len(view.text)
    first, last = _window(length, length if full else TEXT_SHOWN, view.character)
    before = f" (from character {first:,} on)" if first else ""
    lines = [f"text{before}", printable(view.text[first:last], keep="\n\t")]
    if last < length:
        lines.append(f"... {length - last:,} more characters (--full shows all)")
    return lines


def _apart(view: DocumentView, low: int, high: int, color: bool) -> str:
    """Tokens one after the other: in colors, or with bars between them."""
    if not color:
        marked = [
            f"[[{piece}]]" if at == view.token else piece
            for at, piece in enumerate(view.pieces[low:high], low)
        ]
        return "│".join(marked)  # not the |, which is a token itself
    special, grounds = set(view.specials), ("blue", "green", "magenta", "cyan")
    return "".join(
        click.style(
            piece,
            fg="black" if at != view.token else "white",
            bg="red" if at == view.token else "yellow" if at in special else grounds[at % 4],
        )
        for at, piece in enumerate(view.pieces[low:high], low)
    )


def quarantine_lines(report: QuarantineReport, *, full: bool) -> list[str]:
    if not report.rows:
        return ["no row was quarantined"]
    lines = [f"{report.path}: {counted(report.total, 'row')} quarantined"]
    for row in report.rows:
        at = f"row {row.row:,}" if row.rows == 1 else f"rows {row.row:,} to {row.last:,}"
        at += f", line {row.line:,}" if row.line >= 0 else ""
        at += f", {row.part}" if row.part else ""
        lines += ["", f"{row.source}, {at} (rows are counted from 0): {row.reason}"]
        shown = row.text if full else row.text[:QUARANTINED_TEXT]
        lines += [f"  {line}" for line in printable(shown, keep="\n\t").splitlines()]
        if len(shown) < len(row.text) or row.sha256:
            lines.append(f"  ... ({row.length:,} bytes in all)")
    if report.more:
        lines += ["", "... and more (--full shows all)"]
    return [printable(line, keep="\t") for line in lines]
