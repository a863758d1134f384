"""A JSON line too long to be decoded at once: what decides about it, without its long strings.

The line passes by in pieces. All of it is kept but the good middle parts of long strings, in
whose place a mark stands. The usual decoder then reads what is left, and so everything it knows
(which field is wanted, the last of two that have the same name, what is no JSON and why) holds
here too. If the text it finds has a mark in it, the text is that long string, whose place in the
line is known, and which is decoded part by part in a second pass.

A part is decoded by the usual decoder too, as a string of its own. It ends where no letter, no
escape and no pair of escapes (a surrogate pair) is cut.
"""

from __future__ import annotations

import bisect
import re
import secrets
from collections.abc import Callable, Iterator

import msgspec

from tokenmill.fields import row_fault

HEAD_BYTES = 4096  # of a string are kept in any case
PART_BYTES = 1 << 20
SPACES = re.compile(rb"[ \t\r]{256,}")
ESCAPE_BYTES = 6  # \u12ab
HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")  # the first half

_decode_text = msgspec.json.Decoder(str).decode
_skip_text = msgspec.json.Decoder(msgspec.defstruct("Nothing", [])).decode


def decode_part(part: bytes | bytearray) -> bytes:
    """The text of a part of a string, as UTF-8."""
    return _decode_text(b'"' + part + b'"').encode()


def safe_end(data: bytes | bytearray) -> int:
    """Up to where a string's bytes may be decoded by themselves: 0 where more must be seen."""
    end = len(data)
    for back in range(1, min(4, end) + 1):
        byte = data[end - back]
        if byte >= 0xC0:  # a lead byte: does its letter end here?
            whole = back >= 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return end if whole else end - back
        if byte < 0x80:
            break
    escape = data.rfind(b"\\", max(0, end - ESCAPE_BYTES + 1))
    if escape >= 0:
        if _backslashes(data, escape) % 2:  # of two, the second begins no escape
            escape -= 1
        length = ESCAPE_BYTES if data[escape + 1 : escape + 2] == b"u" else 2
        if escape + length > end:
            end = escape
    pair = end - ESCAPE_BYTES  # where its first half would begin
    if HIGH_SURROGATE.match(data, max(0, pair), end) and _backslashes(data, pair) % 2 == 0:
        end = pair
    return end


def _backslashes(data: bytes | bytearray, position: int) -> int:
    """How many stand directly before a position."""
    count = 0
    while count < position and data[position - count - 1] == 0x5C:
        count += 1
    return count


def closing_quote(data: bytes | bytearray, start: int) -> int:
    """Where the string that the data begins in ends, looked for from `start` on; or -1."""
    quote = data.find(b'"', start)
    while quote >= 0 and _backslashes(data, quote) % 2:
        quote = data.find(b'"', quote + 1)
    return quote


class LongString:
    """A string of the line; parts of it were left out where its mark stands."""

    def __init__(self, start: int) -> None:
        self.start = start  # of its first byte behind the quote, in the line
        self.stop = -1
        self.text_bytes = 0  # of its text, once decoded
        self.left_out = 0  # of these, how many are not in the condensed line
        self.faults = 0  # parts that are no text
        self.left_out_before = 0  # the first of these
        self.skip_fault = False  # one that even who skips the string will not have
        self.keep_next = False


class Condensed:
    """A line in the making. `limit` is told how much is kept whenever that has grown."""

    def __init__(
        self,
        limit: Callable[[int], None] = lambda _: None,
        head: int = HEAD_BYTES,
        part: int = PART_BYTES,
    ) -> None:
        self.limit, self.head, self.part = limit, head, part
        self.kept = bytearray()
        self.long: list[LongString] = []
        self.length = 0  # of the line so far
        self._nonce = secrets.token_hex(16).encode()  # stands in no line
        self._places: list[int] = [0]  # in `kept`, from which on ...
        self._shifts: list[int] = [0]  # ... a byte stood so much further in the line
        self._waiting = bytearray()
        self._searched = 0
        self._string: LongString | None = None

    @property
    def _position(self) -> int:
        """In the line, of what waits."""
        return self.length - len(self._waiting)

    def add(self, piece: bytes) -> None:
        self._waiting += piece
        self.length += len(piece)
        while self._waiting and self._step():
            pass
        self.limit(len(self.kept))

    def end(self) -> None:
        """No more of the line: what waits is kept as it is."""
        self._keep(self._waiting)
        self._waiting.clear()

    def _step(self) -> bool:
        """Deal with the beginning of what waits; False when more of the line is needed."""
        waiting, string = self._waiting, self._string
        if string is None:
            quote = waiting.find(b'"')
            self._keep_outside(bytes(waiting if quote < 0 else waiting[: quote + 1]))
            if quote >= 0:
                self._string = LongString(self._position)
            return True
        quote = closing_quote(waiting, self._searched)
        enough = self.head if self._position == string.start else self.part
        if 0 <= quote <= enough:
            self._take(bytes(waiting[:quote]), string)
            string.stop = self._position
            self._keep(b'"')
            del waiting[:1]
            self._string, self._searched = None, 0
            return True
        # Every quote before this place is known to be no end.
        seen = len(waiting) if quote < 0 else quote
        if len(waiting) > enough:
            end = safe_end(waiting[:enough])
            self._take(bytes(waiting[:end]), string)
            self._searched = max(0, seen - end)
            return True
        self._searched = seen
        return False

    def _take(self, part: bytes, string: LongString) -> None:
        """A part of a string: kept if it is its beginning, or not good text."""
        first = self._position == string.start
        del self._waiting[: len(part)]
        try:
            size, fault = len(decode_part(part)), False
        except (msgspec.DecodeError, UnicodeError):
            size, fault = 0, True
        if first:
            string.text_bytes += size
            string.faults += fault
            string.keep_next = fault
            self._keep(part)
            return
        if not self.long or self.long[-1] is not string:
            self.long.append(string)
            self._keep(self._mark(len(self.long) - 1), in_line=False)
        keep = self._worth_keeping(part, string, fault)
        string.text_bytes += size
        if keep:
            self._keep(part)
        else:
            string.left_out += size
            self._shift(len(part))

    def _worth_keeping(self, part: bytes, string: LongString, fault: bool) -> bool:
        """The first part that is no text, and the first that nobody will pass over, each with
        what follows it: they decide what is wrong with the line."""
        keep, string.keep_next = string.keep_next, False
        if fault and not string.faults:
            string.left_out_before = string.left_out
        if fault and not string.skip_fault:
            try:
                _skip_text(b'{"a":"%b"}' % part)
                passable = True
            except (msgspec.DecodeError, UnicodeError):
                passable = False
            if not passable or not string.faults:
                keep = string.keep_next = True
            string.skip_fault = not passable
        string.faults += fault
        return keep

    def _keep_outside(self, part: bytes) -> None:
        """What stands between strings; of long white space a little."""
        del self._waiting[: len(part)]
        done = 0
        for spaces in SPACES.finditer(part):
            self._keep(part[done : spaces.start() + 1])
            self._shift(spaces.end() - spaces.start() - 1)
            done = spaces.end()
        self._keep(part[done:])

    def _keep(self, part: bytes | bytearray, *, in_line: bool = True) -> None:
        self.kept += part
        if not in_line:
            self._shift(-len(part))

    def _shift(self, count: int) -> None:
        shift = self._shifts[-1] + count
        if self._places[-1] == len(self.kept):
            self._shifts[-1] = shift
        else:
            self._places.append(len(self.kept))
            self._shifts.append(shift)

    def _mark(self, number: int) -> bytes:
        return b"%b-%d-" % (self._nonce, number)

    # --- what the line holds -----------------------------------------------------------------

    @property
    def blank(self) -> bool:
        return not self.kept.strip()

    def marked(self, text: bytes) -> LongString | None:
        """The long string of which this is the beginning and the mark; None: it is complete."""
        found = re.search(self._nonce + rb"-(\d+)-", text)
        return self.long[int(found[1])] if found else None

    def fault(self, error: Exception, name: str) -> str:
        """Why the line is no row, with places as they are in the whole line."""
        reason = row_fault(error, bytes(self.kept), name)
        if isinstance(error, UnicodeDecodeError):
            string = self.marked(error.object)
            if string is None or error.start < error.object.find(self._nonce):
                return reason
            shift = string.left_out_before - len(self._mark(self.long.index(string)))
            return re.sub(
                r"(position )(\d+)(?:-(\d+))?",
                lambda m: m[1] + "-".join(str(int(n) + shift) for n in m.groups()[1:] if n),
                reason,
            )
        return re.sub(r"\(byte (\d+)\)", lambda m: f"(byte {self._in_line(int(m[1]))})", reason)

    def _in_line(self, position: int) -> int:
        return position + self._shifts[bisect.bisect_right(self._places, position) - 1]


def decode_string(pieces: Iterator[bytes], part: int = PART_BYTES) -> Iterator[bytes]:
    """The text of a good string whose bytes come in pieces, in parts, as UTF-8."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) > part:
            end = safe_end(waiting[:part])
            yield decode_part(waiting[:end])
            del waiting[:end]
    if waiting:
        yield decode_part(waiting)
