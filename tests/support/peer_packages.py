"""The owners of the formats, from PyPI. `make test` skips what is not installed; `make test-peers`
has it all, and fails where something is missing."""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

MUST = bool(os.environ.get("TOKENMILL_PEERS"))


def peer(name: str) -> Any:
    """A package of somebody else; its warnings are its own affair."""
    if name.split(".")[0] == "streaming":
        _without_pictures()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError:
            if MUST:
                raise
    pytest.skip(f"{name} is not installed: make test-peers", allow_module_level=True)


def _without_pictures() -> None:
    """streaming imports torchvision for datasets of pictures, which needs a torch with CUDA; what
    reads tokens does not touch it."""
    if "torchvision" in sys.modules:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("transformers.feature_extraction_utils")
        except ImportError:
            return
    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    functional = sys.modules["torchvision.transforms.functional"]
    functional.to_tensor = None  # type: ignore[attr-defined]
    sys.modules["torchvision.transforms"].functional = functional  # type: ignore[attr-defined]
