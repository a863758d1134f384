"""tokenmill: text in, training tokens out. Exact, crash-safe, resumable.

>>> import tokenmill
>>> tokenmill.prepare("data/*.parquet", "out", format="nanogpt")
>>> ds = tokenmill.open_dataset("out")
>>> ds["train"].tokens[:10], ds["train"].documents[0]
>>> tok = tokenmill.Tokenizer("cl100k_base")  # pickles in a few bytes: ds.map(tok.map, ...)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenmill._version import __version__
from tokenmill.errors import TokenmillError
from tokenmill.modules import pickle_package_by_name

if TYPE_CHECKING:
    from tokenmill.api.display import PlanReport
    from tokenmill.api.functions import (
        adopt,
        download,
        export,
        fineweb,
        finish,
        inspect,
        inspect_document,
        inspect_row,
        open_dataset,
        plan,
        prepare,
        verify,
        verify_deep,
    )
    from tokenmill.dataset.deep.comparison import DeepReport
    from tokenmill.dataset.inspection import DocumentView, Summary
    from tokenmill.dataset.loader import Dataset
    from tokenmill.dataset.provenance import RowView
    from tokenmill.dataset.verification import Report
    from tokenmill.doctor.pickling import PickleReport, explain_pickle
    from tokenmill.output.result import Result
    from tokenmill.pipeline import DownloadReport
    from tokenmill.tokenizer.tokenizer import Tokenizer

__all__ = [
    "Dataset",
    "DeepReport",
    "DocumentView",
    "DownloadReport",
    "PickleReport",
    "PlanReport",
    "Report",
    "Result",
    "RowView",
    "Summary",
    "Tokenizer",
    "TokenmillError",
    "__version__",
    "adopt",
    "download",
    "explain_pickle",
    "export",
    "fineweb",
    "finish",
    "inspect",
    "inspect_document",
    "inspect_row",
    "open_dataset",
    "plan",
    "prepare",
    "verify",
    "verify_deep",
]

_HOMES = {
    "tokenmill.api.functions": {
        "adopt",
        "download",
        "export",
        "finish",
        "fineweb",
        "inspect",
        "inspect_document",
        "inspect_row",
        "open_dataset",
        "plan",
        "prepare",
        "verify",
        "verify_deep",
    },
    "tokenmill.dataset.deep.comparison": {"DeepReport"},
    "tokenmill.dataset.inspection": {"DocumentView", "Summary"},
    "tokenmill.dataset.loader": {"Dataset"},
    "tokenmill.dataset.provenance": {"RowView"},
    "tokenmill.dataset.verification": {"Report"},
    "tokenmill.api.display": {"PlanReport"},
    "tokenmill.doctor.pickling": {"PickleReport", "explain_pickle"},
    "tokenmill.output.result": {"Result"},
    "tokenmill.pipeline": {"DownloadReport"},
    "tokenmill.tokenizer.tokenizer": {"Tokenizer"},
}

pickle_package_by_name()  # under dill too


def __getattr__(name: str) -> Any:
    """Heavy modules are imported when first used: `tokenmill --help` must be quick."""
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
