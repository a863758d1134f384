"""Writes what a unit adds to the streams to its place, or its documents to a file of their own."""

from __future__ import annotations

import numpy as np
import xxhash

from tokenmill.formats import get_format
from tokenmill.output.files import JobFiles
from tokenmill.output.journal import PieceRecord
from tokenmill.output.order.sorted_run import EntryTokens, SortedRun, buffers_of
from tokenmill.settings import PlanSettings
from tokenmill.system.disk import Buffer
from tokenmill.tokens.counts import State
from tokenmill.tokens.packing import PackedStream
from tokenmill.tokens.placement import CutRule, StreamCounts, StreamState
from tokenmill.tokens.splits import WorkingFile, stream_name, streams_of


class StreamWriter:
    """Writes what a unit adds to the streams to its place."""

    def __init__(self, settings: PlanSettings, files: JobFiles) -> None:
        self.settings, self.files = settings, files
        self.rules = CutRule.all_of(settings, settings.first)
        self.stream_names = [stream_name(s) for s in streams_of(settings.val)]
        layout = settings.first
        self.header_bytes = get_format(layout.format).header_bytes(layout)

    def write_streams(
        self, streams: list[PackedStream], source: int, before: State
    ) -> tuple[list[PieceRecord], list[StreamState]]:
        """The pieces that were written, and the state of each stream after them."""
        pieces: list[PieceRecord] = []
        states = []
        for rule, name, state, packed in zip(
            self.rules, self.stream_names, before.streams, streams, strict=True
        ):
            ends, run_starts = packed.ends(), packed.run_starts()
            laid, after = rule.lay_out(state, StreamCounts.of(packed), packed.starts())
            itemsize = packed.tokens.itemsize
            for piece in laid:
                pieces.append(
                    self.write(
                        WorkingFile(piece.split, piece.file).name,
                        self.header_bytes + piece.at * itemsize,
                        packed.tokens[piece.start : piece.stop],
                    )
                )
            if len(ends):
                absolute = (ends + state.tokens).astype("<u8")
                pieces.append(self.write(f"{name}.ends", state.documents * 8, absolute))
                runs = np.empty((len(run_starts), 3), "<u8")
                runs[:, 0] = run_starts + state.documents
                if len(packed.sources):  # rows of many sources, as these count them
                    runs[:, 1], runs[:, 2] = packed.sources[run_starts], packed.rows[run_starts]
                else:
                    runs[:, 1], runs[:, 2] = source, packed.rows[run_starts] + before.rows
                pieces.append(self.write(f"{name}.runs", state.runs * 24, runs.reshape(-1)))
            states.append(after)
        return pieces, states

    def write_relative(self, streams: list[PackedStream], source: int) -> list[PieceRecord]:
        """A unit whose place is not known yet: documents, tokens and rows are counted in it."""
        pieces: list[PieceRecord] = []
        for name, packed in zip(self.stream_names, streams, strict=True):
            ends, run_starts = packed.ends(), packed.run_starts()
            if len(packed.tokens):
                pieces.append(self.write(f"{name}.tokens", 0, packed.tokens))
            if len(ends):
                pieces.append(self.write(f"{name}.ends", 0, ends.astype("<u8")))
                runs = np.empty((len(run_starts), 3), "<u8")
                runs[:, 0], runs[:, 1], runs[:, 2] = run_starts, source, packed.rows[run_starts]
                pieces.append(self.write(f"{name}.runs", 0, runs.reshape(-1)))
        return pieces

    def write(self, file: str, offset: int, data: Buffer) -> PieceRecord:
        view = memoryview(data).cast("B")
        self.files.write_at(file, offset, view)
        return PieceRecord(file, offset, len(view), xxhash.xxh3_64_intdigest(view))

    def open_sorted(self, file: str, rows_before: int = 0) -> SortedRun:
        """`rows_before`: of its source, where the file counts rows in its unit."""
        dtype = np.dtype(self.settings.first.dtype)
        return SortedRun(self.files, file, len(self.stream_names), dtype, rows_before)

    def write_sorted(self, file: str, streams: list[EntryTokens]) -> list[PieceRecord]:
        """A file of sorted documents."""
        pieces, at = [], 0
        for buffer in buffers_of(streams):
            pieces.append(self.write(file, at, buffer))
            at += pieces[-1].length
        return pieces
