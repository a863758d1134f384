"""The public functions: typed keywords, one sentence each in `help()`, messages in keywords.

Each function is thin: it says what it takes, calls the room that does the work, and shows what
happens. The keywords are those of the command line; a test compares the two with docs/python.md.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tokenmill.api import calls
from tokenmill.api.keywords import in_python

if TYPE_CHECKING:
    from tokenmill.api.display import PlanReport
    from tokenmill.dataset.deep.comparison import DeepReport
    from tokenmill.dataset.inspection import DocumentView, Summary
    from tokenmill.dataset.loader import Dataset
    from tokenmill.dataset.provenance import RowView
    from tokenmill.dataset.verification import Report
    from tokenmill.engines.observer import Observer
    from tokenmill.output.result import Result
    from tokenmill.pipeline import DownloadReport
    from tokenmill.planning.make import Proposal
    from tokenmill.settings import (
        Compression,
        Cut,
        Dtype,
        EncoderCheck,
        EncoderChoice,
        Engine,
        Eot,
        LastShard,
        OnBadRow,
        StartMethod,
    )
    from tokenmill.system.store import Place

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]


class HubDataset(Protocol):
    """A `datasets.Dataset` or `DatasetDict`."""

    @property
    def column_names(self) -> Any: ...


@in_python
def prepare(
    inputs: Paths | HubDataset,
    output: Path,
    *,
    mix: Path = "",
    text_column: str | Sequence[str] = "text",
    text: str = "",
    where: str = "",
    as_kind: str | Sequence[str] = (),
    text_separator: str | None = None,
    tokenizer: Path = "gpt2",
    pattern: str = "",
    eot_token: str | int | None = None,
    bos_token: str | int | None = None,
    format: str | Sequence[str] = "nanogpt",
    eot: Eot | None = None,
    cut: Cut | None = None,
    shard_tokens: str | int | None = None,
    min_shard_tokens: str | int | None = None,
    last_shard: LastShard | None = None,
    compression: Compression | None = None,
    name: str | None = None,
    dtype: Dtype | None = None,
    split: str = "",
    all_splits: bool = False,
    val: str | float | None = None,
    val_inputs: Paths = (),
    allow_empty_split: bool = False,
    shuffle: bool = False,
    seed: int = 0,
    drop_empty: bool = False,
    min_tokens: str | int | None = None,
    max_tokens: str | int | None = None,
    limit_docs: str | int | None = None,
    limit_tokens: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    start_method: StartMethod = "forkserver",
    encoder: EncoderChoice = "auto",
    encoder_check: EncoderCheck | bool = "sample",
    on_bad_row: OnBadRow = "stop",
    keep_downloads: bool = True,
    downloads: int = 4,
    scratch: Path = "",
    reuse: Path = "",
    part: str = "",
    engine: Engine = "local",
    ray_address: str = "",
    overwrite: bool = False,
    quiet: bool = False,
    observer: Observer | None = None,
    on_plan: Callable[[Proposal], None] | None = None,
) -> Result:
    """Turn text into token files. The same call resumes after any interruption.

    >>> tokenmill.prepare("data/*.parquet", "out", format="llmc", tokenizer="gpt2")
    """
    return calls.prepare({**locals()})


@in_python
def plan(
    inputs: Paths,
    output: Path,
    *,
    probe: bool = True,
    mix: Path = "",
    text_column: str | Sequence[str] = "text",
    text: str = "",
    where: str = "",
    as_kind: str | Sequence[str] = (),
    text_separator: str | None = None,
    tokenizer: Path = "gpt2",
    pattern: str = "",
    eot_token: str | int | None = None,
    bos_token: str | int | None = None,
    format: str | Sequence[str] = "nanogpt",
    eot: Eot | None = None,
    cut: Cut | None = None,
    shard_tokens: str | int | None = None,
    min_shard_tokens: str | int | None = None,
    last_shard: LastShard | None = None,
    compression: Compression | None = None,
    name: str | None = None,
    dtype: Dtype | None = None,
    split: str = "",
    all_splits: bool = False,
    val: str | float | None = None,
    val_inputs: Paths = (),
    allow_empty_split: bool = False,
    shuffle: bool = False,
    seed: int = 0,
    drop_empty: bool = False,
    min_tokens: str | int | None = None,
    max_tokens: str | int | None = None,
    limit_docs: str | int | None = None,
    limit_tokens: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    start_method: StartMethod = "forkserver",
    encoder: EncoderChoice = "auto",
    encoder_check: EncoderCheck | bool = "sample",
    on_bad_row: OnBadRow = "stop",
    keep_downloads: bool = True,
    downloads: int = 4,
    scratch: Path = "",
    reuse: Path = "",
    part: str = "",
    engine: Engine = "local",
    ray_address: str = "",
    overwrite: bool = False,
    quiet: bool = False,
) -> PlanReport:
    """Say what `prepare` with the same arguments would read, write, need and take. Writes nothing.

    >>> tokenmill.plan("data/*.parquet", "out", format="llmc").tokens
    """
    return calls.plan({**locals()})


@in_python
def fineweb(
    version: str = "10B",
    type: str = "edu",
    output: Path | None = None,
    *,
    revision: str = "main",
    text_column: str | Sequence[str] = "text",
    text: str = "",
    where: str = "",
    as_kind: str | Sequence[str] = (),
    text_separator: str | None = None,
    tokenizer: Path = "gpt2",
    pattern: str = "",
    eot_token: str | int | None = None,
    bos_token: str | int | None = None,
    format: str | Sequence[str] = "llmc",
    eot: Eot | None = None,
    cut: Cut | None = None,
    shard_tokens: str | int | None = None,
    min_shard_tokens: str | int | None = None,
    last_shard: LastShard | None = None,
    compression: Compression | None = None,
    name: str | None = None,
    dtype: Dtype | None = None,
    split: str = "",
    all_splits: bool = False,
    val: str | float | None = None,
    val_inputs: Paths = (),
    allow_empty_split: bool = False,
    shuffle: bool = False,
    seed: int = 0,
    drop_empty: bool = False,
    min_tokens: str | int | None = None,
    max_tokens: str | int | None = None,
    limit_docs: str | int | None = None,
    limit_tokens: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    start_method: StartMethod = "forkserver",
    encoder: EncoderChoice = "auto",
    encoder_check: EncoderCheck | bool = "sample",
    on_bad_row: OnBadRow = "stop",
    keep_downloads: bool = True,
    downloads: int = 4,
    scratch: Path = "",
    reuse: Path = "",
    part: str = "",
    engine: Engine = "local",
    ray_address: str = "",
    overwrite: bool = False,
    quiet: bool = False,
    observer: Observer | None = None,
    on_plan: Callable[[Proposal], None] | None = None,
) -> Result:
    """Download and tokenize a sample or a dump of FineWeb or FineWeb-Edu.

    >>> tokenmill.fineweb("10B", "edu", "edu_fineweb10B")
    """
    return calls.fineweb({**locals()})


@in_python
def download(
    inputs: Paths,
    output: Path = "out",
    *,
    mix: Path = "",
    text_column: str | Sequence[str] = "text",
    text: str = "",
    where: str = "",
    as_kind: str | Sequence[str] = (),
    text_separator: str | None = None,
    tokenizer: Path = "gpt2",
    pattern: str = "",
    eot_token: str | int | None = None,
    bos_token: str | int | None = None,
    format: str | Sequence[str] = "nanogpt",
    eot: Eot | None = None,
    cut: Cut | None = None,
    shard_tokens: str | int | None = None,
    min_shard_tokens: str | int | None = None,
    last_shard: LastShard | None = None,
    compression: Compression | None = None,
    name: str | None = None,
    dtype: Dtype | None = None,
    split: str = "",
    all_splits: bool = False,
    val: str | float | None = None,
    val_inputs: Paths = (),
    allow_empty_split: bool = False,
    shuffle: bool = False,
    seed: int = 0,
    drop_empty: bool = False,
    min_tokens: str | int | None = None,
    max_tokens: str | int | None = None,
    limit_docs: str | int | None = None,
    limit_tokens: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    start_method: StartMethod = "forkserver",
    encoder: EncoderChoice = "auto",
    encoder_check: EncoderCheck | bool = "sample",
    on_bad_row: OnBadRow = "stop",
    keep_downloads: bool = True,
    downloads: int = 4,
    scratch: Path = "",
    reuse: Path = "",
    part: str = "",
    engine: Engine = "local",
    ray_address: str = "",
    overwrite: bool = False,
    quiet: bool = False,
    observer: Observer | None = None,
    on_plan: Callable[[Proposal], None] | None = None,
) -> DownloadReport:
    """Download the inputs; `prepare` with the same arguments then finds them, also offline.

    >>> tokenmill.download("hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT")
    """
    return calls.download({**locals()})


@in_python
def export(
    directory: Place,
    output: Path,
    *,
    format: str | Sequence[str],
    eot: Eot | None = None,
    cut: Cut | None = None,
    shard_tokens: str | int | None = None,
    min_shard_tokens: str | int | None = None,
    last_shard: LastShard | None = None,
    compression: Compression | None = None,
    name: str | None = None,
    dtype: Dtype | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    only: str = "",
    workers: int | None = None,
    memory: str | int | None = None,
    engine: Engine = "local",
    ray_address: str = "",
    overwrite: bool = False,
    quiet: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Convert a finished dataset to another format, without encoding again.

    >>> tokenmill.export("out", "out-megatron", format="megatron")
    """
    options = {**locals()}
    from tokenmill import pipeline
    from tokenmill.api import display

    for given in ("directory", "output", "quiet", "observer"):
        options.pop(given)
    silent = quiet or observer is not None
    note = (lambda text: None) if silent else display.note_line
    run = functools.partial(pipeline.export, directory, output, note=note, **options)
    shown: dict[str, Any] = {"quiet": quiet, "observer": observer, "on_plan": None}
    result = display.shown_run(lambda observer, on_plan: run(observer=observer), **shown)
    result = display.reworded(result)
    if not silent:
        display.show_converted(result)
    return result


@in_python
def finish(
    directory: Path,
    *,
    workers: int | None = None,
    memory: str | int | None = None,
    scratch: Path = "",
    allow_empty_split: bool = False,
    part: str = "",
    quiet: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Make a dataset of what all parts of a job have recorded. The same call resumes. With `part`,
    several machines make its files; a call without `part` then makes what is missing, and commits.

    >>> tokenmill.finish("out", part="0/3")
    >>> tokenmill.finish("out")
    """
    return calls.finish({**locals()})


@in_python
def adopt(
    directory: Path,
    *,
    format: str,
    tokenizer: Path = "gpt2",
    pattern: str = "",
    eot: Eot | None = None,
    eot_token: str | int | None = None,
    dtype: Dtype | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Result:
    """Give token files that another tool made a manifest and an index. The files stay untouched.

    >>> tokenmill.adopt("nanoGPT/data/openwebtext", format="nanogpt")
    """
    from tokenmill.api import display
    from tokenmill.dataset.adopt import adopt as import_files

    result = import_files(
        directory,
        format=format,
        tokenizer=os.fspath(tokenizer),
        pattern=pattern,
        eot=eot,
        eot_token=eot_token,
        dtype=dtype,
        overwrite=overwrite,
    )
    result = display.reworded(result)
    if not quiet:
        display.show_converted(result)
    return result


@in_python
def verify(directory: Place, *, threads: int | None = None) -> Report:
    """Compare every byte of a dataset with its manifest. Problems are returned, not raised.

    >>> report = tokenmill.verify("out")
    >>> report.ok, report.problems
    """
    from tokenmill.dataset.verification import verify as check

    return check(directory, threads=threads)


@in_python
def verify_deep(
    directory: Place,
    *,
    sample: str | int | None = None,
    source_root: Path | None = None,
    tokenizer: str | None = None,
    seconds: float = 60.0,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> DeepReport:
    """Compare a dataset with its sources: documents are read and encoded again.

    Problems are returned, not raised. Sources that cannot be found are an error.

    >>> tokenmill.verify_deep("out", sample=10_000).ok
    """
    options = {**locals()}
    from tokenmill.dataset.deep.verification import verify_deep as check

    return check(**options)


@in_python
def inspect(directory: Place) -> Summary:
    """Settings, files, splits, counts, document lengths and largest sources of a dataset.

    >>> tokenmill.inspect("out").lengths.median
    """
    from tokenmill.dataset.inspection import inspect as look

    return look(directory)


@in_python
def inspect_document(
    directory: Place,
    *,
    document: int | None = None,
    token: int | None = None,
    split: str = "train",
    tokenizer: str | None = None,
) -> DocumentView:
    """One document of a dataset: its text, its ids, the file and row it came from.

    >>> tokenmill.inspect_document("out", document=17).text
    """
    from tokenmill.dataset.inspection import inspect_document as look

    return look(directory, document=document, token=token, split=split, tokenizer=tokenizer)


@in_python
def inspect_row(directory: Place, *, source: Path, row: int) -> RowView:
    """Where a row of a source went: split, document, tokens and files; or why it did not.

    >>> tokenmill.inspect_row("out", source="part-3.parquet", row=17).documents[0].first_token
    """
    from tokenmill.dataset.provenance import inspect_row as look

    return look(directory, source=source, row=row)


@in_python
def open_dataset(
    directory: Place, *, format: str | None = None, tokenizer: str | None = None
) -> Dataset:
    """Open a finished dataset. Of several formats, `format` says which is read.

    >>> ds = tokenmill.open_dataset("out")
    >>> ds["train"].tokens[:10], ds["train"].documents[0], ds.tokenizer.decode([464, 3290])
    """
    from tokenmill.dataset.loader import open_dataset as load

    return load(directory, format=format, tokenizer=tokenizer)
