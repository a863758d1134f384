"""tokenmill: text in, training tokens out. Exact, crash-safe, resumable.

>>> import tokenmill
>>> tokenmill.prepare("data/*.parquet", "out", format="nanogpt")
>>> ds = tokenmill.open_dataset("out")
>>> ds["train"].tokens[:10], ds["train"].documents[0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenmill.errors import TokenmillError

if TYPE_CHECKING:
    from tokenmill.adoption import adopt
    from tokenmill.comparison import DeepReport
    from tokenmill.deep import verify_deep
    from tokenmill.exporting import export
    from tokenmill.inspection import DocumentView, Summary, inspect, inspect_document
    from tokenmill.loader import Dataset, open_dataset
    from tokenmill.pipeline import Result, prepare
    from tokenmill.verification import Report, verify

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "DeepReport",
    "DocumentView",
    "Report",
    "Result",
    "Summary",
    "TokenmillError",
    "__version__",
    "adopt",
    "export",
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
