"""tokenmill: text in, training tokens out. Exact, crash-safe, resumable.

>>> import tokenmill
>>> tokenmill.prepare("data/*.parquet", "out", format="nanogpt")
>>> ds = tokenmill.open_dataset("out")
>>> ds["train"].tokens[:10], ds["train"].documents[0]
>>> tok = tokenmill.Tokenizer("cl100k_base")  # pickles in a few bytes: ds.map(tok.map, ...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenmill.errors import TokenmillError

if TYPE_CHECKING:
    from tokenmill.adoption import adopt
    from tokenmill.comparison import DeepReport
    from tokenmill.deep import verify_deep
    from tokenmill.exporting import export
    from tokenmill.fineweb_parts import fineweb
    from tokenmill.inspection import DocumentView, Summary, inspect, inspect_document
    from tokenmill.loader import Dataset, open_dataset
    from tokenmill.pickling import PickleReport, explain_pickle
    from tokenmill.pipeline import Fetched, Result, download, prepare
    from tokenmill.portable import Tokenizer
    from tokenmill.verification import Report, verify

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "DeepReport",
    "DocumentView",
    "Fetched",
    "PickleReport",
    "Report",
    "Result",
    "Summary",
    "Tokenizer",
    "TokenmillError",
    "__version__",
    "adopt",
    "download",
    "explain_pickle",
    "export",
    "fineweb",
    "inspect",
    "inspect_document",
    "open_dataset",
    "prepare",
    "verify",
    "verify_deep",
]

_HOMES = {
    "adopt": "tokenmill.adoption",
    "export": "tokenmill.exporting",
    "prepare": "tokenmill.pipeline",
    "Result": "tokenmill.pipeline",
    "download": "tokenmill.pipeline",
    "Fetched": "tokenmill.pipeline",
    "fineweb": "tokenmill.fineweb_parts",
    "open_dataset": "tokenmill.loader",
    "Dataset": "tokenmill.loader",
    "verify": "tokenmill.verification",
    "Report": "tokenmill.verification",
    "verify_deep": "tokenmill.deep",
    "DeepReport": "tokenmill.comparison",
    "inspect": "tokenmill.inspection",
    "inspect_document": "tokenmill.inspection",
    "Summary": "tokenmill.inspection",
    "DocumentView": "tokenmill.inspection",
    "Tokenizer": "tokenmill.portable",
    "explain_pickle": "tokenmill.pickling",
    "PickleReport": "tokenmill.pickling",
}


def __getattr__(name: str) -> Any:
    """Heavy modules are imported when first used: `tokenmill --help` must be quick."""
    if name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
