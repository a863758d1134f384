"""Why a function does not reach another process: the object that does not pickle, by its path.

Python's error names a type (`cannot pickle 'builtins.CoreBPE' object`) but not where it is. This
walks what the picklers walk (closure, defaults, globals, attributes, items) and goes down wherever
a part fails on its own, until nothing below fails: that is the culprit.

What is pickled here is unpickled at once, in the same process: other people's data is never loaded.
"""

from __future__ import annotations

import builtins
import dis
import functools
import io
import itertools
import pickle
import types
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from tokenmill.amounts import show_bytes
from tokenmill.errors import first_line, printable

MOST_ITEMS = 10_000  # of a container are looked at
DEEPEST = 30
LARGE_BYTES = 1 << 20

FINGERPRINT = "datasets.map's fingerprint, without which nothing is cached"


class Pickler(NamedTuple):
    name: str
    used_by: str
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any] | None = None  # None: it could do harm
    by_value: bool = True  # functions of a script with their closure; else by their name alone
    with_globals: bool = True


class PickleVerdict(NamedTuple):
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

    def lines(self) -> list[str]:
        who = f"  {self.pickler} ({self.used_by}): "
        if self.ok:
            note = ", which every task carries along" if self.size >= LARGE_BYTES else ""
            return [f"{who}yes, {show_bytes(self.size)}{note}"]
        way = " -> ".join(self.path) or "the function itself"
        return [
            f"{who}no",
            f"    culprit: {printable(way)} ({self.culprit})",
            f"    because: {self.error}",
            f"    instead: {self.advice}",
        ]


class PickleReport(NamedTuple):
    """For a person as text (`print`), for a program as fields."""

    function: str
    verdicts: tuple[PickleVerdict, ...]
    undefined: tuple[str, ...]  # globals that are not there when the module is imported
    absent: tuple[str, ...]  # picklers that are not installed

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts) and not self.undefined

    def _headline(self) -> str:
        if self.ok:
            return "pickles"
        sent = [verdict.ok for verdict in self.verdicts if verdict.used_by != FINGERPRINT]
        if all(sent) and not self.undefined:
            return "reaches every worker, but `datasets` cannot cache its results"
        return "does not reach every worker"

    def __str__(self) -> str:
        lines = [f"{self.function}: {self._headline()}"]
        for verdict in self.verdicts:
            lines += verdict.lines()
        for name in self.undefined:
            lines.append(
                f"  global `{name}`: not there when the module is imported; under spawn and "
                "forkserver a worker stops with NameError, unless its pool's initializer makes it"
            )
            lines.append("    instead: define it at the top level, or pass it to the function")
        lines += [f"  {name}: not installed, not tried" for name in self.absent]
        return "\n".join(lines)


def explain_pickle(function: Any) -> PickleReport:
    """What pickle, dill and cloudpickle make of a function, and which part of it they refuse."""
    picklers, absent = _picklers()
    return PickleReport(
        function=printable(str(getattr(function, "__qualname__", "") or type_name(function))),
        verdicts=tuple(_verdict(function, pickler) for pickler in picklers),
        undefined=tuple(_undefined(function)),
        absent=tuple(absent),
    )


def _picklers() -> tuple[list[Pickler], list[str]]:
    found = [Pickler("pickle", "multiprocessing", pickle.dumps, pickle.loads, False, False)]
    absent = []
    try:
        # Not loaded: dill opens a file again as it was opened, and empties one opened to write.
        dill = import_module("dill")
        found.append(Pickler("dill", "datasets.map's workers", dill.dumps, with_globals=False))
        recursive = functools.partial(dill.dumps, recurse=True)
        found.append(Pickler("dill, recursive", FINGERPRINT, recursive))
    except ImportError:
        absent.append("dill")
    try:
        dumps = import_module("cloudpickle").dumps
        found.append(Pickler("cloudpickle", "Ray, Spark, joblib", dumps, pickle.loads))
    except ImportError:
        absent.append("cloudpickle")
    return found, absent


def _verdict(function: Any, pickler: Pickler) -> PickleVerdict:
    error, payload = _attempt(pickler.dumps, function)
    if error:
        path, culprit = _find(function, pickler)
        error = _attempt(pickler.dumps, culprit)[0] or error
        kind, advice = type_name(culprit), pickling_advice(culprit)
        return PickleVerdict(pickler.name, pickler.used_by, 0, error, path, kind, advice)
    error, _ = _attempt(pickler.loads, payload) if pickler.loads else ("", None)
    if error:
        return PickleVerdict(
            pickler.name,
            pickler.used_by,
            len(payload),
            f"it pickles, but does not come back: {error}",
            culprit=type_name(function),
            advice="a pool of workers hangs or dies on such a thing: give its class a __reduce__",
        )
    return PickleVerdict(pickler.name, pickler.used_by, len(payload))


def _attempt(function: Callable[[Any], Any], argument: Any) -> tuple[str, Any]:
    """What is wrong with calling it, or the result."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dill warns about what it tries in between
            return "", function(argument)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of native code is not an Exception
        return printable(f"{type(error).__name__}: {first_line(error)}"), None


def _find(thing: Any, pickler: Pickler) -> tuple[tuple[str, ...], Any]:
    """Down along parts that fail on their own; returns the way and the last of them."""
    path: tuple[str, ...] = ()
    seen = {id(thing): thing}  # kept: what `__reduce__` makes is gone else, and its id is reused
    while len(path) < DEEPEST:
        for step, part in itertools.islice(parts_of(thing, pickler), MOST_ITEMS):
            if id(part) in seen or _is_plain(part):
                continue
            seen[id(part)] = part
            if _attempt(pickler.dumps, part)[0]:
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


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _global_names(code: types.CodeType) -> list[str]:
    """Names that a function, or one inside it, may look up in its module."""
    found = []
    for one in _codes(code):
        steps = [(step.opname, str(step.argval)) for step in dis.get_instructions(one)]
        # LOAD_NAME: in the body of a class, where a name may be its own.
        in_class = {name for op, name in steps if op == "STORE_NAME"}
        found += [
            name
            for op, name in steps
            if op == "LOAD_GLOBAL" or (op == "LOAD_NAME" and name not in in_class)
        ]
    return list(dict.fromkeys(found))


def _object_parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """As its class wants it pickled: an attribute that is left out on purpose is not a culprit."""
    _, reduced = _attempt(lambda one: one.__reduce_ex__(4), thing)
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
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return
    steps = [step for code in _codes(function.__code__) for step in dis.get_instructions(code)]
    own = {str(step.argval) for step in steps if step.opname == "STORE_GLOBAL"}  # loaded lazily
    for name in _global_names(function.__code__):
        if name not in function.__globals__ and not hasattr(builtins, name) and name not in own:
            yield name


def type_name(thing: Any) -> str:
    if isinstance(thing, types.FunctionType):
        local = "<locals>" in thing.__qualname__
        return "lambda" if thing.__name__ == "<lambda>" else f"{'local ' * local}function"
    kind = type(thing)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__.removeprefix('_')}.{kind.__qualname__}"


def pickling_advice(thing: Any) -> str:
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


def _short(key: Any) -> str:
    text = repr(key) if _is_plain(key) else type_name(key)
    return text if len(text) <= 40 else text[:37] + "..."
