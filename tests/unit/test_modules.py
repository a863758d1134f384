"""Modules of this package pickle by their name, also where they are not in site-packages."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import dill
import pytest
from datasets.fingerprint import Hasher

import tokenmill
import tokenmill.dataset.loader
from tokenmill import formats, settings
from tokenmill.dataset import loader

PICKLERS: dict[str, Callable[[Any], bytes]] = {
    "pickle": pickle.dumps,
    "dill": dill.dumps,
    "dill, recursive": lambda value: dill.dumps(value, recurse=True),
    "cloudpickle": cloudpickle.dumps,
}


@pytest.mark.parametrize("module", [tokenmill, formats, settings, loader])
@pytest.mark.parametrize("pickler", PICKLERS)
def test_a_module_pickles_as_its_name(module: Any, pickler: str) -> None:
    content = PICKLERS[pickler](module)
    assert len(content) < 200
    assert pickle.loads(content) is module


def test_a_function_that_names_the_package_reaches_datasets(monkeypatch: Any) -> None:
    """An editable install: the package is not in site-packages."""
    _ = tokenmill.prepare, tokenmill.open_dataset  # and with them most of the package
    scope: dict[str, Any] = {"tokenmill": tokenmill, "__name__": "__main__"}
    exec("def encode(batch):\n    return tokenmill.Tokenizer('gpt2').encode(batch)", scope)
    encode = scope["encode"]
    assert len(dill.dumps(encode, recurse=True)) < 2000
    first = Hasher.hash(encode)
    importlib.import_module("tokenmill.cli.main")
    assert Hasher.hash(encode) == first, "what else is imported makes no other fingerprint"
