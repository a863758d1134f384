"""Why a function does not reach another process: the very object that does not pickle, by its path.

Python's error names a type (`cannot pickle 'builtins.CoreBPE' object`) and not where it hangs. This
walks what the picklers walk (closure, defaults, globals, attributes, items) and goes down wherever
a part fails on its own, until nothing below fails: that is the culprit.

What is pickled here is unpickled at once, in the same process: nobody else's data is ever loaded.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from tokenmill.errors import first_line, printable

MOST_ITEMS = 10_000  # of a container are looked at
DEEPEST = 30
LARGE_BYTES = 1 << 20


class Pickler(NamedTuple):
    name: str
    used_by: str
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any] | None  # None: it could do harm
    by_value: bool  # functions of a script go with closure and all; else by their name alone
    with_globals: bool


class Verdict(NamedTuple):
    """What one pickler makes of the function."""

    pickler: str
    used_by: str
    size: int  # bytes; 0: it does not pickle
    error: str = ""
    path: tuple[str, ...] = ()  # from the function to the culprit
    culprit: str = ""  # its type
    advice: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


class PickleReport(NamedTuple):
    """For a person as text (`print`), for a program as fields."""

    function: str
    verdicts: tuple[Verdict, ...]
    undefined: tuple[str, ...]  # globals that are not there when the module is imported
    absent: tuple[str, ...]  # picklers that are not installed

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts) and not self.undefined

    def __str__(self) -> str:
        return "\n".join(report_lines(self))


def explain_pickle(function: Any) -> PickleReport:
    """What pickle, dill and cloudpickle make of a function, and which part of it they refuse."""
    picklers, absent = _picklers()
    return PickleReport(
        function=_name_of(function),
        verdicts=tuple(_verdict(function, pickler) for pickler in picklers),
        undefined=tuple(_undefined(function)),
        absent=tuple(absent),
    )


def _picklers() -> tuple[list[Pickler], list[str]]:
    found = [
        Pickler("pickle", "multiprocessing", pickle.dumps, pickle.loads, False, False),
    ]
    absent = []
    try:
        dill = import_module("dill")
    except ImportError:
        absent.append("dill")
    else:
        # Not loaded: dill opens a file anew as it was opened, and empties one opened to write.
        found.append(Pickler("dill", "datasets.map's workers", dill.dumps, None, True, False))
        recursive = functools.partial(dill.dumps, recurse=True)
        used_by = "datasets.map's fingerprint, without which nothing is cached"
        found.append(Pickler("dill, recursive", used_by, recursive, None, True, True))
    try:
        cloud = import_module("cloudpickle")
    except ImportError:
        absent.append("cloudpickle")
    else:
        found.append(
            Pickler("cloudpickle", "Ray, Spark, joblib", cloud.dumps, pickle.loads, True, True)
        )
    return found, absent


def _verdict(function: Any, pickler: Pickler) -> Verdict:
    error, payload = _attempt(function, pickler)
    if error:
        path, culprit = _find(function, pickler)
        cause = _attempt(culprit, pickler)[0] or error
        return Verdict(
            pickler.name, pickler.used_by, 0, cause, path, type_name(culprit), advice_for(culprit)
        )
    try:
        if pickler.loads is not None:
            pickler.loads(payload)
    except BaseException as problem:
        _raise_if_stopped(problem)
        return Verdict(
            pickler.name,
            pickler.used_by,
            len(payload),
            f"it pickles, but does not come back: {_told(problem)}",
            culprit=type_name(function),
            advice="a pool of workers hangs or dies on such a thing: give its class a __reduce__",
        )
    return Verdict(pickler.name, pickler.used_by, len(payload))


def _attempt(thing: Any, pickler: Pickler) -> tuple[str, bytes]:
    """What is wrong with pickling it, or the bytes."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dill tells of what it tries in between
            return "", pickler.dumps(thing)
    except BaseException as error:  # a panic of native code is no Exception
        _raise_if_stopped(error)
        return _told(error), b""


def _raise_if_stopped(error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
        raise error


def _told(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {first_line(error)}")


# --- finding the culprit ---------------------------------------------------------------------


def _find(thing: Any, pickler: Pickler) -> tuple[tuple[str, ...], Any]:
    """Down along parts that fail on their own; returns the way and the last of them."""
    path: tuple[str, ...] = ()
    seen = {id(thing): thing}  # kept: what `__reduce__` makes is gone else, and its id is reused
    while len(path) < DEEPEST:
        for step, part in itertools.islice(parts_of(thing, pickler), MOST_ITEMS):
            if id(part) in seen or _is_plain(part):
                continue
            seen[id(part)] = part
            if _attempt(part, pickler)[0]:
                path, thing = (*path, step), part
                break
        else:
            break
    return path, thing


def _is_plain(part: Any) -> bool:
    return part is None or isinstance(part, str | bytes | int | float | bool)


def parts_of(thing: Any, pickler: Pickler) -> Iterator[tuple[str, Any]]:
    """What a pickler would take along with a thing, each with a name for people."""
    if isinstance(thing, functools.partial):
        yield "function of the partial", thing.func
        yield from ((f"argument {i} of the partial", a) for i, a in enumerate(thing.args))
        yield from ((f"argument `{k}` of the partial", a) for k, a in thing.keywords.items())
    elif isinstance(thing, types.MethodType):
        yield "object that the method belongs to", thing.__self__
        yield "function of the method", thing.__func__
    elif isinstance(thing, types.FunctionType):
        if pickler.by_value:
            yield from _function_parts(thing, pickler.with_globals)
    elif isinstance(thing, dict):
        yield from ((f"key {_short(key)}", key) for key in thing)
        yield from ((f"[{_short(key)}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"[{index}]", value) for index, value in enumerate(thing))
    elif isinstance(thing, type):
        if pickler.by_value:
            yield from ((f"class attribute `{k}`", v) for k, v in vars(thing).items())
    else:
        yield from _object_parts(thing)


def _function_parts(function: types.FunctionType, with_globals: bool) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"closure variable `{name}`", cell.cell_contents
        except ValueError:  # not set yet
            continue
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    yield from ((f"default of `{n}`", v) for n, v in zip(arguments, defaults, strict=True))
    yield from ((f"default of `{n}`", v) for n, v in (function.__kwdefaults__ or {}).items())
    yield from ((f"attribute `{n}`", v) for n, v in vars(function).items())
    if with_globals:
        for name in _global_names(code):
            if name in function.__globals__:
                yield f"global `{name}`", function.__globals__[name]


def _global_names(code: types.CodeType) -> list[str]:
    """Names that a function, or one inside it, may look up in its module."""
    import dis

    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    steps = [(step.opname, str(step.argval)) for step in dis.get_instructions(code)]
    # LOAD_NAME: in the body of a class, where a name may be its own.
    in_class = {name for op, name in steps if op == "STORE_NAME"}
    own = [
        name
        for op, name in steps
        if op == "LOAD_GLOBAL" or (op == "LOAD_NAME" and name not in in_class)
    ]
    return list(dict.fromkeys([*own, *(name for c in inner for name in _global_names(c))]))


def _object_parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """As its class wants it pickled: an attribute that is left out on purpose is no culprit."""
    try:
        reduced = thing.__reduce_ex__(4)
    except BaseException as error:
        _raise_if_stopped(error)
        return
    if not isinstance(reduced, tuple):
        return
    state = reduced[2] if len(reduced) > 2 else None
    states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for part in states:
        if isinstance(part, dict):
            yield from ((f"`{name}`", value) for name, value in part.items())
        elif part is not None:
            yield "state", part
    for index, argument in enumerate(reduced[1] or ()):
        yield f"argument {index} of its __reduce__", argument
    for extra in reduced[3:5]:  # items of subclasses of list and dict
        if extra is not None:
            yield from ((f"[{index}]", value) for index, value in enumerate(extra))


def _undefined(function: Any) -> Iterator[str]:
    """Globals that a function wants and its module does not have: made under
    `if __name__ == "__main__"` or inside another function, they are not there under spawn."""
    import builtins

    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType):
        own = _set_globals(function.__code__)  # loaded lazily, by the function itself
        for name in _global_names(function.__code__):
            known = name in function.__globals__ or hasattr(builtins, name) or name in own
            if not known:
                yield name


def _set_globals(code: types.CodeType) -> set[str]:
    import dis

    found = {str(s.argval) for s in dis.get_instructions(code) if s.opname == "STORE_GLOBAL"}
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return found.union(*map(_set_globals, inner))


# --- what is said ----------------------------------------------------------------------------


def type_name(thing: Any) -> str:
    if isinstance(thing, types.FunctionType):
        local = "<locals>" in thing.__qualname__
        return "lambda" if thing.__name__ == "<lambda>" else f"{'local ' * local}function"
    kind = type(thing)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__.removeprefix('_')}.{kind.__qualname__}"


def advice_for(thing: Any) -> str:
    """What to do instead, by what it is."""
    kind = type(thing)
    where = f"{kind.__module__}.{kind.__qualname__}".lower()
    if isinstance(thing, types.FunctionType):
        return (
            "pickle takes a function by its name alone: put it at the top level of a module (dill "
            "and cloudpickle take it as it is)"
        )
    if any(word in where for word in ("tiktoken", "corebpe", "gigatoken", "tokenizer")):
        return "use tokenmill.Tokenizer in its place: it pickles by its name (doctor --patch)"
    if isinstance(thing, io.IOBase):
        return "pass the path and open the file inside the function"
    if isinstance(thing, types.GeneratorType):
        return "pass a list, or make the generator inside the function"
    if isinstance(thing, types.ModuleType):
        return "import the module inside the function"
    if any(word in where for word in ("lock", "thread", "condition", "event", "queue")):
        return "a lock belongs to one process: make it inside the function, or leave it out"
    if any(word in where for word in ("connection", "cursor", "socket", "client", "session")):
        return "connect inside the function, once in each process"
    return "make it inside the function, once in each process; or give its class a __reduce__"


def report_lines(report: PickleReport) -> list[str]:
    lines = [f"{report.function}: {'pickles' if report.ok else 'does not reach every worker'}"]
    for verdict in report.verdicts:
        who = f"  {verdict.pickler} ({verdict.used_by}): "
        if verdict.ok:
            large = verdict.size >= LARGE_BYTES
            note = ", which every task carries along" if large else ""
            lines.append(f"{who}yes, {_size(verdict.size)}{note}")
            continue
        lines.append(f"{who}no")
        way = " -> ".join(verdict.path) or "the function itself"
        lines.append(f"    culprit: {printable(way)} ({verdict.culprit})")
        lines.append(f"    because: {verdict.error}")
        lines.append(f"    instead: {verdict.advice}")
    for name in report.undefined:
        lines.append(
            f"  global `{name}`: not there when the module is imported; under spawn and forkserver "
            "a worker stops with NameError, unless its pool's initializer makes it"
        )
        lines.append("    instead: define it at the top level, or pass it to the function")
    lines += [f"  {name}: not installed, not tried" for name in report.absent]
    return lines


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", "") or type_name(function)
    return printable(str(name))


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= LARGE_BYTES else f"{size:,} bytes"


def _short(key: Any) -> str:
    text = repr(key) if _is_plain(key) else type_name(key)
    return text if len(text) <= 40 else text[:37] + "..."
