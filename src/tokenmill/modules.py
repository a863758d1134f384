"""Modules of this package pickle by their name, wherever they are installed.

dill takes a module for somebody's script unless it lies in site-packages, and pickles all that is
in it. A function that names `tokenmill` would then drag the whole package along, or fail on an
object in it that does not pickle: with an editable install, or a clone on the path.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class NamedModule(ModuleType):
    """A module that is pickled as its name; so are the modules below it, as they are imported."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)

    def __setattr__(self, name: str, value: Any) -> None:
        # A module that has been imported becomes an attribute of its package.
        if type(value) is ModuleType and value.__name__ == f"{self.__name__}.{name}":
            pickle_by_name(value)
        super().__setattr__(name, value)


def pickle_by_name(module: ModuleType) -> None:
    module.__class__ = NamedModule
    for name, value in list(vars(module).items()):
        if type(value) is ModuleType and value.__name__ == f"{module.__name__}.{name}":
            pickle_by_name(value)


def pickle_package_by_name() -> None:
    pickle_by_name(sys.modules[__name__.partition(".")[0]])
