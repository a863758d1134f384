"""A `datasets.Dataset` as input: its own Arrow files where they are the dataset, else a copy.

A dataset that was filtered, selected, renamed or made in memory is not what is on disk, so its
text column is written once, as an Arrow stream, into the user's cache folder:

    $XDG_CACHE_HOME/tokenmill/datasets/FINGERPRINT-ROWS-KEY/text-HASH.arrow

KEY is of the column and the output folder, so that two jobs never share (and remove) a copy; HASH
is of the content, so that the plan is bound to it. The copy stays while the job may be resumed and
goes when it is done. `datasets` itself is never imported here: only such an object's own methods
are called.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from tokenmill.errors import RefusedError, SourceError, StorageError, UsageError
from tokenmill.inputs.readers.arrow_ipc import BatchStream, layout_of, open_batches
from tokenmill.inputs.readers.fields import check_column
from tokenmill.inputs.split_names import SplitChoice, split_named, two_splits
from tokenmill.system.cache import GrowingFile, cache_folder
from tokenmill.system.disk import content_digest, remove_folder, sweep_unlocked

COPY_BATCH_BYTES = 4 << 20
COPY_BATCH_ROWS = 10_000
# The copy's name holds its content's hash, so its time must say nothing else.
COPY_MTIME_NS = 10**18
# Steps that datasets repeats on a mapped file and that change no row.
HARMLESS_STEPS = {"replace_schema_metadata"}


def is_dataset(inputs: Any) -> bool:
    """Whether it comes from `datasets` or looks as if; raises for kinds that cannot be read."""
    family = [cls for cls in type(inputs).__mro__ if cls.__module__.split(".")[0] == "datasets"]
    if isinstance(inputs, dict) and (family or any(map(_looks_like_one, inputs.values()))):
        return all(map(is_dataset, inputs.values()))
    if _looks_like_one(inputs):
        return True
    if family:
        raise UsageError(
            f"a {type(inputs).__name__} is a stream: it cannot be read again, so a run "
            "could not be resumed",
            hint="load it without streaming=True, or give the files it streams from",
        )
    if isinstance(inputs, list | tuple) and any(map(_looks_like_one, inputs)):
        raise UsageError(
            "a list of datasets cannot be read",
            hint="join them first: datasets.concatenate_datasets([...])",
        )
    return False


def chosen_splits(inputs: Any, choice: SplitChoice) -> tuple[list[Any], list[Any]]:
    """The datasets for train and for val: of a DatasetDict by the names of its splits."""
    if not isinstance(inputs, dict):
        return [inputs], []
    names = [str(name) for name in inputs]
    if not choice.wanted:
        if len(names) > 1 and not choice.all_splits:
            raise two_splits(f"a {type(inputs).__name__}", names)
        return list(inputs.values()), []
    chosen = {
        wanted: [one for name, one in inputs.items() if split_named(str(name)) == wanted]
        for wanted in choice.wanted
    }
    for wanted, found in chosen.items():
        if not found:
            raise UsageError(
                f"the {type(inputs).__name__} has no split {wanted!r}",
                hint=f"its splits are: {', '.join(names)}",
            )
    return chosen[choice.wanted[0]], chosen.get("validation", []) if choice.by_name else []


def _looks_like_one(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("_fingerprint", "data", "cache_files", "iter"))


@contextlib.contextmanager
def dataset_files(
    dataset: Any, output: str | os.PathLike[str], text_column: str
) -> Iterator[list[str]]:
    """The files to read; a copy is removed after the work in the `with` block is done."""
    if getattr(dataset, "format", {}).get("type") == "custom":
        raise UsageError(
            "this Dataset has a transform (with_transform) that tokenmill would not apply",
            hint="apply it first with .map(), or remove it with .reset_format()",
        )
    path = check_column("the dataset", dataset.data.schema, text_column)
    files = _own_files(dataset, path[0])
    if files:
        yield files
        return
    folder = _copy_folder(dataset, text_column, output)
    kept = _intact_copy(folder)
    try:
        yield [str(kept or _write_copy(dataset, path[0], folder))]
    except (UsageError, RefusedError):
        if kept is None:  # nothing was begun that could be resumed
            remove_folder(folder)
        raise
    remove_folder(folder)


# --- the dataset's own files -----------------------------------------------------------------


def _own_files(dataset: Any, column: str) -> list[str]:
    """Arrow files that together are the dataset, row for row; empty where there are none."""
    if dataset._indices is not None or not dataset.cache_files:
        return []
    blocks = getattr(dataset.data, "blocks", [[dataset.data]])
    files: list[str] = []
    for block in blocks:
        table = block[0]
        path = getattr(table, "path", None)
        steps = {step[0] for step in getattr(table, "replays", None) or ()}
        if len(block) != 1 or path is None or not steps <= HARMLESS_STEPS:
            return []
        if not _is_file_of(os.fspath(path), table, column):
            return []
        files.append(os.path.abspath(path))
    named = [os.path.abspath(entry["filename"]) for entry in dataset.cache_files]
    rows = sum(block[0].num_rows for block in blocks)
    same = files == named and rows == len(dataset) and len(set(files)) == len(files)
    return files if same else []


def _is_file_of(path: str, table: Any, column: str) -> bool:
    """Whether a file still holds a table's rows: their count, the columns, both ends' text."""
    try:
        layout = layout_of(path, os.stat(path).st_mtime_ns)
        if layout.rows != table.num_rows:
            return False
        filled = [number for number, block in enumerate(layout.blocks) if block.rows]
        for number, at in ((filled[0], 0), (filled[-1], -1)) if filled else ():
            with BatchStream(path, layout, number, number + 1) as stream:
                records = open_batches(stream, None).read_next_batch()
            records.validate(full=True)
            if records.schema.names != table.schema.names:
                return False
            ours = records.column(column)
            if ours[at % len(ours)] != table.column(column)[at % table.num_rows]:
                return False
    except (OSError, ValueError, SourceError):
        return False
    return True


# --- the copy --------------------------------------------------------------------------------


def _copy_folder(dataset: Any, text_column: str, output: str | os.PathLike[str]) -> Path:
    key = xxhash.xxh3_64_hexdigest(
        os.fsencode(os.path.realpath(output)) + b"\0" + text_column.encode()
    )
    fingerprint = re.sub(r"[^A-Za-z0-9]", "", str(dataset._fingerprint))[:64]
    return cache_folder() / "datasets" / f"{fingerprint}-{len(dataset)}-{key}"


def _intact_copy(folder: Path) -> Path | None:
    """A copy that an earlier call left, if its content is what its name says."""
    copies = sorted(folder.glob("text-*.arrow"))
    return next((path for path in copies if path.stem == f"text-{content_digest(path)}"), None)


def _write_copy(dataset: Any, column: str, folder: Path) -> Path:
    import pyarrow

    narrow = dataset.with_format("arrow").select_columns([column])
    schema = pyarrow.schema([dataset.data.schema.field(column)]).remove_metadata()
    average = dataset.data.nbytes // max(1, dataset.data.num_rows)
    rows = max(1, min(COPY_BATCH_ROWS, COPY_BATCH_BYTES // (average + 1)))
    sweep_unlocked(folder)
    try:
        with GrowingFile(folder) as file:
            with pyarrow.ipc.new_stream(file, schema) as writer:
                for table in narrow.iter(batch_size=rows):
                    writer.write_table(table.replace_schema_metadata(None).cast(schema))
            return file.finish(f"text-{file.digest}.arrow", COPY_MTIME_NS)
    except StorageError as error:
        error.advised(
            "this dataset is not what is on disk, so its text is copied first: set "
            "XDG_CACHE_HOME to a folder with space, or save_to_disk and give that folder"
        )
        raise
