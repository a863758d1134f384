"""Every message that the source can say, found by reading it: errors, hints, warnings, notes.

A value that is known only at run time is shown as `…`; where the source has two wordings, both
are shown with a slash between them.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.inputs import ROOT

from tokenmill import errors

PACKAGE = ROOT / "src" / "tokenmill"
HOLE = "…"
MOST = 4  # wordings of one part that are listed

ERRORS = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, BaseException) and hasattr(cls, "exit_code")
}
# Functions that make an error, or a part of what is shown: which argument is the text.
MAKERS = {
    "damaged": ("error, exit 3", 1),
    "_lost": ("error, exit 3", 0),
    "_contradiction": ("error, exit 2", 1),
    "_fault": ("error", 0),
    "warning": ("warning", 0),
    "problem": ("found by verify", 0),
    "Problem": ("found by verify", 0),
    "note": ("note", 0),
    "_require": ("why the fast encoder is not used", 1),
}


class Message(NamedTuple):
    topic: str
    text: str
    hint: str
    kind: str


FINISHED = "Finished datasets: open, verify, inspect, export, import"
TOPICS = {
    "Options and keywords": ("settings", "amounts", "planning/options", "keywords", "api", "cli",
                             "fineweb_parts", "display"),
    "Inputs: finding and reading files": ("inputs", "planning/make", "texts"),
    "Inputs: downloads": ("inputs/download", "inputs/remote", "planning/hub_tokenizer",
                          "engines/supply"),
    "Tokenizers": ("tokenizer",),
    "Formats, shards and splits": ("formats", "tokens", "planning/empty_splits",
                                   "planning/estimate", "output/result", "planning/plan"),
    "Memory, disk and the output folder": ("system", "output", "planning/needs"),
    "Workers and the run": ("engines", "pipeline"),
    FINISHED: ("dataset",),
    "Diagnosis with `tokenmill doctor`": ("doctor", "cli/doctor"),
}  # fmt: skip


def topic_of(path: Path) -> str:
    name = path.relative_to(PACKAGE).with_suffix("").as_posix()
    found = [
        (len(prefix), topic)
        for topic, prefixes in TOPICS.items()
        for prefix in prefixes
        if name == prefix or name.startswith(f"{prefix}/")
    ]
    return max(found)[1] if found else "Options and keywords"


class Reader:
    """The wordings of an expression, with what its names were given in the same function."""

    def __init__(self, function: ast.AST) -> None:
        self.given: dict[str, list[ast.expr]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.given.setdefault(node.targets[0].id, []).append(node.value)
            elif isinstance(node, ast.NamedExpr):
                self.given.setdefault(node.target.id, []).append(node.value)

    def texts(self, node: ast.expr | None, depth: int = 0) -> list[str]:
        match node:
            case None:
                return [""]
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return self._joined([self.texts(part, depth) for part in parts])
            case ast.FormattedValue(value=value):
                found = self.texts(value, depth + 1)
                return found if depth < 3 and all(found) and len(found) <= MOST else [HOLE]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([self.texts(left, depth), self.texts(right, depth)])
            case ast.IfExp(body=body, orelse=other):
                return [*self.texts(body, depth), *self.texts(other, depth)]
            case ast.BoolOp(values=values):
                return [text for value in values for text in self.texts(value, depth)]
            case ast.Name(id=name) if depth < 4:
                values = self.given.get(name, [])
                found = [text for value in values for text in self.texts(value, depth + 1)]
                return found if found and any(text.strip(HOLE) for text in found) else [HOLE]
            case _:
                return [HOLE]

    @staticmethod
    def _joined(parts: list[list[str]]) -> list[str]:
        found = [""]
        for wordings in parts:
            shown = list(dict.fromkeys(wordings))
            if len(found) * len(shown) > MOST:
                shown = [HOLE]
            found = [before + after for before in found for after in shown]
        return found


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _owners(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Every call, with the function that it is in."""

    def visit(node: ast.AST, owner: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield child, owner
            inside = isinstance(child, ast.FunctionDef) and not isinstance(owner, ast.FunctionDef)
            yield from visit(child, child if inside else owner)

    return visit(tree, tree)


def _plain(texts: list[str]) -> str:
    """All wordings in one line, each once."""
    cleaned = [re.sub(rf"{HOLE}[{HOLE}\s]*{HOLE}", HOLE, " ".join(text.split())) for text in texts]
    return " / ".join(text for text in dict.fromkeys(cleaned) if text.strip(f"{HOLE}: "))


def messages_in(path: Path) -> Iterator[Message]:
    tree, topic = ast.parse(path.read_text()), topic_of(path)
    readers: dict[int, Reader] = {}
    for call, owner in _owners(tree):
        name = _called(call)
        if name not in ERRORS and name not in MAKERS and name != "advised":
            continue
        reader = readers.get(id(owner)) or readers.setdefault(id(owner), Reader(owner))
        hints = [k.value for k in call.keywords if k.arg == "hint"]
        hint = _plain(reader.texts(hints[0])) if hints else ""
        if name in ERRORS and call.args:
            of_click = (
                isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "click"
            )
            code = 2 if of_click else ERRORS[name].exit_code
            kind, at = "stopped by a signal" if name == "Interrupted" else f"error, exit {code}", 0
        elif name in MAKERS and len(call.args) > MAKERS[name][1]:
            kind, at = MAKERS[name]
        elif name == "advised" and call.args:
            kind, at = "error", 0
            hint = _plain(reader.texts(call.args[0]))
            if hint:
                yield Message(topic, "(another hint)", hint, kind)
            continue
        else:
            continue
        if text := _plain(reader.texts(call.args[at])):
            yield Message(topic, text, hint, kind)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        if "fault" in node.name and topic == FINISHED:  # they say what is wrong with a dataset
            for step in ast.walk(node):
                value = getattr(step, "value", None)
                said = isinstance(step, ast.Return | ast.Yield) and isinstance(value, ast.expr)
                if said and (text := _plain(Reader(node).texts(value))):
                    yield Message(topic, text, "", "found by verify")
        if node.name == "note" and node.decorator_list:  # of an event
            for step in ast.walk(node):
                if isinstance(step, ast.Return) and (
                    text := _plain(Reader(node).texts(step.value))
                ):
                    yield Message(topic, text, "", "note")


@functools.cache
def all_messages() -> list[Message]:
    return [message for path in sorted(PACKAGE.rglob("*.py")) for message in messages_in(path)]


def searchable(text: str) -> str:
    """For the order: without what stands for a file's name."""
    return re.sub(rf"^[{HOLE}\s:'\"-]+", "", text).lower()


def page() -> str:
    """docs/errors.md."""
    found = all_messages()
    lines = [
        "# Errors, hints and warnings",
        "",
        "Every message of tokenmill, and what to do about it. Search for a few words of yours: `…`",
        "stands for a name or a number in your message. The last column has the exit code of the",
        "command; [command-line.md](command-line.md#exit-codes) explains it. In Python the same",
        "messages speak of keywords (`shard_tokens=5`) and not of options (`--shard-tokens 5`).",
        "",
        "This page is made from the source by `make docs`.",
        "",
    ]  # fmt: skip
    for topic in TOPICS:
        mine = sorted({m for m in found if m.topic == topic}, key=lambda m: (searchable(m.text), m))
        lines += [f"## {topic}", "", "| message | what to do | |", "| --- | --- | --- |"]
        for message in mine:
            cells = (message.text, message.hint, message.kind)
            shown = (cell.replace("|", "\\|").replace("<", "\\<") for cell in cells)
            lines.append(f"| {' | '.join(shown)} |")
        lines.append("")
    return "\n".join(lines)
