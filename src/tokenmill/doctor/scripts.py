"""A user's script, examined without running its main part.

It is imported as multiprocessing's spawn imports it: the part under `if __name__ == "__main__"`
does not run. Then it takes the place of `__main__`, as if it had been run: picklers treat the
functions of `__main__` differently from those of an importable module.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import io
import itertools
import os
import sys
import tokenize
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenmill.errors import UsageError, first_line

LOADED_AS = "tokenmill_script"


def split_target(target: str) -> tuple[Path, str]:
    """`train.py:tokenize` as its file and the function's name."""
    path, colon, name = target.rpartition(":")
    if not colon or not name.replace(".", "_").isidentifier():
        raise UsageError(
            f"{target}: say which function of the script",
            hint="tokenmill doctor script.py:function",
        )
    return Path(path), name


def read_script(path: Path) -> tuple[str, str]:
    """Its text with the line ends it has, and its encoding: as Python reads it (a byte order mark,
    `# coding: latin-1`), so that a diff of it can be applied."""
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    if "\0" in text:
        raise UsageError(f"{path}: is not a Python script (it holds a null byte)")
    return text, encoding


class _ScriptLoader(importlib.abc.InspectLoader):
    """The text of a script as a module, from memory: a patched one is never written."""

    def __init__(self, text: str, path: Path) -> None:
        self.text, self.path = text, path

    def get_source(self, fullname: str) -> str:
        return self.text

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.text, str(self.path))


@contextlib.contextmanager
def as_main(text: str, path: Path) -> Iterator[types.ModuleType]:
    """The script as the module `__main__`, for a while."""
    module = types.ModuleType(LOADED_AS)
    module.__file__ = str(path)
    before, search, argv = sys.modules["__main__"], list(sys.path), sys.argv
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules[LOADED_AS] = module
    sys.argv = [str(path)]
    try:
        # What the script prints is not what we print: a diff, or JSON.
        with contextlib.redirect_stdout(sys.stderr):
            _execute(_ScriptLoader(text, path), module, path)
            _rename(module)
            yield module
    finally:
        sys.modules.pop(LOADED_AS, None)
        _set_main(before)
        sys.path[:] = search
        sys.argv = argv


def _execute(loader: _ScriptLoader, module: types.ModuleType, path: Path) -> None:
    try:
        loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        line = error.lineno if isinstance(error, SyntaxError) else _line_in(error, path)
        hint = 'put what it does under `if __name__ == "__main__":`; spawn imports it alike'
        if any("ConnectionError" in cls.__name__ for cls in type(error).__mro__):
            hint = (
                "it needs the network to be imported, and so does every spawned worker; "
                "tokenmill.Tokenizer does not (--patch puts it in place)"
            )
        raise UsageError(
            f"{path}, line {line}: the script stops when it is imported: "
            f"{type(error).__name__}: {first_line(error)}",
            hint=hint,
        ) from None


def _line_in(error: BaseException, path: Path) -> int:
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == str(path)]
    return lines[-1] if lines else 0


def _rename(module: types.ModuleType) -> None:
    """As if it had been run: its functions and classes belong to `__main__`."""
    module.__name__ = "__main__"
    _set_main(module)
    for value in list(vars(module).values()):
        owned = isinstance(value, types.FunctionType | type)
        if owned and getattr(value, "__module__", "") == LOADED_AS:
            value.__module__ = "__main__"
            for inner in vars(value).values() if isinstance(value, type) else ():
                if isinstance(inner, types.FunctionType):
                    inner.__module__ = "__main__"


def _set_main(module: types.ModuleType) -> None:
    sys.modules["__main__"] = module
    dill: Any = sys.modules.get("dill._dill")
    if hasattr(dill, "_main_module"):  # it remembers the `__main__` of when it was imported
        dill._main_module = module


def function_in(module: types.ModuleType, text: str, path: Path, name: str) -> Any:
    """The function of that name; the error says whether it is made only when the script runs."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    if found is not None:
        raise UsageError(f"{path}: {name} is not a function but {type(found).__name__}")
    outer = _outer_function(text, name.rpartition(".")[2])
    if outer:
        raise UsageError(
            f"{path}: {name} is made inside {outer}, so it is there only while that runs",
            lines=_captured(text, name.rpartition(".")[2]),
            hint=f"--patch works all the same; or write `print(tokenmill.explain_pickle({name}))` "
            f"into {outer}, before it is used",
        )
    known = [key for key, value in vars(module).items() if isinstance(value, types.FunctionType)]
    raise UsageError(f"{path}: no function {name}", hint=f"there are: {', '.join(known) or 'none'}")


DOES_NOT_PICKLE = {
    "tiktoken": "does not pickle; use tokenmill.Tokenizer in its place",
    "gigatoken": "does not pickle; use tokenmill.Tokenizer in its place",
    "open(": "an open file does not pickle; open it inside the function",
    "lock(": "a lock does not pickle; make it inside the function",
    "connect(": "a connection does not pickle; connect inside the function",
}


def _captured(text: str, name: str) -> list[str]:
    """What a function takes along of the function that it is made in, as the source tells: each
    variable, the line in which it is made, and whether such a thing is known not to pickle."""
    lines: dict[str, str] = {}
    for outer in ast.walk(ast.parse(text)):
        inside = list(ast.walk(outer)) if isinstance(outer, ast.FunctionDef) else []
        inner = next((node for node in inside if node is not outer and _makes(node, name)), None)
        if inner is None:
            continue
        own = set(ast.walk(inner))
        loaded = {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for variable, value in (
            pair for node in inside if node not in own for pair in _given(node)
        ):
            if variable not in loaded:
                continue
            source = ast.unparse(value)
            why = (why for word, why in DOES_NOT_PICKLE.items() if word in source.lower())
            told = f"it takes along `{variable}`, made in line {value.lineno}: {source}"
            lines[variable] = f"{told}{''.join(f' ({one})' for one in itertools.islice(why, 1))}"
    return list(lines.values())


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that a statement, or `with ... as`, gives a value; and the value."""
    if isinstance(node, ast.Assign):
        yield from ((one.id, node.value) for one in node.targets if isinstance(one, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value
    elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
        yield node.optional_vars.id, node.context_expr


def _outer_function(text: str, name: str) -> str:
    for outer in ast.walk(ast.parse(text)):
        if not any(inner is not outer and _makes(inner, name) for inner in ast.walk(outer)):
            continue
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return f"{outer.name}()"
        if isinstance(outer, ast.If) and "__name__" in ast.unparse(outer.test):
            return 'the part under `if __name__ == "__main__"`'
    return ""


def _makes(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == name
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in node.targets
    )
