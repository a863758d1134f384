"""The repair as a unified diff: a script's tokenizers become `tokenmill.Tokenizer`.

Only the expressions that make a tokenizer are changed. The code that uses it stays, because our
methods are tiktoken's. Where a library's methods differ (gigatoken's `encode` gives numpy), the
calls are changed too. What cannot be repaired safely is left as it is, with a note.
"""

from __future__ import annotations

import ast
import difflib
import io
import itertools
import os
from pathlib import Path
from typing import NamedTuple

from tokenmill.tokenizer.bundled import ENCODINGS
from tokenmill.tokenizer.tokenizer import Tokenizer

OURS = "tokenmill.Tokenizer"
# Tokenizers of others, which mostly pickle, if slowly.
LEFT_ALONE = (
    "transformers.AutoTokenizer", "transformers.PreTrainedTokenizerFast",
    "transformers.GPT2Tokenizer", "transformers.LlamaTokenizer", "tokenizers.Tokenizer",
    "sentencepiece.SentencePieceProcessor",
)  # fmt: skip


class Edit(NamedTuple):
    start: int  # in bytes of the script
    end: int
    text: str


class PatchedScript(NamedTuple):
    text: str
    notes: tuple[str, ...]  # what a person has to look at, and what is left as it is
    ours: bool = False  # tokenizers in it are ours already


def patch_script(text: str) -> PatchedScript:
    """The script with its tokenizers replaced; the same text where there is nothing to do, as in
    a script that was patched before."""
    repair = _Repair(text)
    repair.visit(repair.tree)
    repair.change_calls()
    if repair.edits:
        changed = _apply(text, repair.edits)
        text = _with_import(changed, repair.aliases, _names(repair.tree))
    return PatchedScript(text, tuple(repair.notes), repair.has_ours)


def unified_diff(before: str, after: str, path: Path, encoding: str = "utf-8") -> bytes:
    """For `patch`, so in the script's own encoding and with its line ends."""
    mark = "\ufeff" if encoding == "utf-8-sig" else ""
    # For `patch` a line ends with \n alone; Python's `splitlines` knows ten other ends.
    old, new = (io.StringIO(mark + text).readlines() for text in (before, after))
    name = name_in_diff(path)
    name += "\t" * (" " in name)  # without it `patch` takes the first word for the name
    lines = []
    for line in difflib.unified_diff(old, new, name, name):
        lines.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(lines).encode("utf-8" if mark else encoding, "surrogateescape")


def name_in_diff(path: Path) -> str:
    """As seen from here: `patch` refuses names that begin with / or ../"""
    here = os.path.relpath(path)
    return here if not here.startswith("..") else str(path)


class _Source:
    """A script as bytes, and where in them a part of its tree is."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.content = text.encode()
        lengths = map(len, self.content.splitlines(keepends=True))
        self.lines = list(itertools.accumulate(lengths, initial=0))  # where each begins

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        last, column = node.end_lineno or 0, node.end_col_offset or 0
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[last - 1] + column

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.content[start:end].decode()


class _Repair(ast.NodeVisitor):
    def __init__(self, text: str) -> None:
        source = _Source(text)
        self.tree, self._span, self._text = source.tree, source.span, source.text
        self.aliases = _aliases(self.tree)
        self.edits: list[Edit] = []
        self.notes: list[str] = []
        self.numpy_names: set[str] = set()  # variables that held a gigatoken tokenizer
        self.ours: set[str] = set()  # variables that now hold our tokenizer
        self.has_ours = False  # already, before anything is changed

    def visit_Assign(self, node: ast.Assign) -> None:
        value = node.value
        if isinstance(value, ast.Call) and self._full_name(value.func).startswith("gigatoken."):
            self.numpy_names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        self.generic_visit(node)
        was_ours = isinstance(value, ast.Call) and self._full_name(value.func) == OURS
        if was_ours or (self.edits and self.edits[-1][:2] == self._span(value)):
            self.ours |= {t.id for t in node.targets if isinstance(t, ast.Name)}

    def visit_Call(self, node: ast.Call) -> None:
        name = self._full_name(node.func)
        if name == OURS:  # what it is made of stays as it is: tokenmill.Tokenizer(tiktoken...)
            self.has_ours = True
            return
        if name.startswith(LEFT_ALONE):
            self.notes.append(
                f"line {node.lineno}: `{ast.unparse(node)}` is left as it is: --patch changes "
                "tiktoken's and gigatoken's tokenizers; tokenmill.Tokenizer takes a tokenizer.json "
                "or a SentencePiece .model"
            )
        replacement = self._replacement(node)
        if replacement is None:
            self.generic_visit(node)
        elif replacement:
            self._replace(node, replacement)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == "_core_bpe" and isinstance(node.ctx, ast.Load):
            # The native half of a tiktoken.Encoding: our tokenizer has its methods.
            start, end = self._span(node)[1] - len("._core_bpe"), self._span(node)[1]
            self.edits.append(Edit(start, end, ""))
        self.generic_visit(node)

    def _replacement(self, node: ast.Call) -> str | None:
        """None: not a tokenizer. '': left alone, with a note."""
        name = self._full_name(node.func)
        whole = f"tokenmill.Tokenizer({self._text(node)})"
        if name in ("tiktoken.get_encoding", "tiktoken.encoding_for_model"):
            bundled = _bundled_name(node, name)
            return f'tokenmill.Tokenizer("{bundled}")' if bundled else whole
        if name in ("tiktoken.Encoding", "tiktoken.core.Encoding"):
            return whole
        if name.endswith("_tiktoken.CoreBPE") and len(node.args) == 3:
            ranks, special, pattern = map(self._text, node.args)
            return (
                f'tokenmill.Tokenizer(tiktoken.Encoding("custom", pat_str={pattern}, '
                f"mergeable_ranks={ranks}, special_tokens={special}))"
            )
        if isinstance(node.func, ast.Attribute) and node.func.attr == "as_tiktoken":
            inner = node.func.value
            return self._gigatoken(inner) if isinstance(inner, ast.Call) else None
        return self._gigatoken(node)

    def _gigatoken(self, node: ast.Call) -> str | None:
        name = self._full_name(node.func)
        if name == "gigatoken.Tokenizer.from_tiktoken" and node.args:
            words = {k.arg: self._text(k.value) for k in node.keywords}
            ours = {"pretokenizer": "pattern", "special_tokens": "special_tokens"}
            more = "".join(f", {ours[key]}={words[key]}" for key in ours if key in words)
            return f"tokenmill.Tokenizer({self._text(node.args[0])}{more})"
        if name != "gigatoken.Tokenizer" or len(node.args) != 1:
            return None
        source = node.args[0]
        if isinstance(source, ast.Constant) and isinstance(source.value, str):
            short = source.value.rpartition("/")[2]
            if short in ENCODINGS:
                return f'tokenmill.Tokenizer("{short}")'
            if not Path(source.value).exists():
                self.notes.append(
                    f"line {node.lineno}: {source.value!r} is neither bundled nor a file here: "
                    "download its tokenizer.json and give tokenmill.Tokenizer the path"
                )
                return ""
        return f"tokenmill.Tokenizer({self._text(source)})"

    def change_calls(self) -> None:
        """Where a gigatoken tokenizer was used: the same values from ours."""
        for node in ast.walk(self.tree):
            self._note_if_missing(node)
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner, method = node.func.value, node.func.attr
            if not (isinstance(owner, ast.Name) and owner.id in self.numpy_names):
                continue
            if method == "encode" and len(node.args) == 1:
                text = self._text(node.args[0])
                self._replace(node, f"{owner.id}.encode_to_numpy({text}, disallowed_special=())")
            else:
                self.notes.append(f"line {node.lineno}: look at `{ast.unparse(node)}` yourself")

    def _note_if_missing(self, node: ast.AST) -> None:
        """Our surface is tiktoken's but for a few methods that nobody is known to use."""
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            return
        known = hasattr(Tokenizer, node.attr) or node.attr == "_core_bpe"
        if node.value.id in self.ours - self.numpy_names and not known:
            self.notes.append(
                f"line {node.lineno}: a tokenmill.Tokenizer has no `{node.attr}`: look at "
                f"`{ast.unparse(node)}` yourself"
            )

    def _full_name(self, node: ast.expr) -> str:
        """`tk.get_encoding` as `tiktoken.get_encoding`, by the script's imports."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self._full_name(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def _replace(self, node: ast.expr, text: str) -> None:
        self.edits.append(Edit(*self._span(node), text))


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Names of the script, and what each is called in its own module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _bundled_name(node: ast.Call, function: str) -> str:
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    if len(arguments) != 1 or not isinstance(arguments[0], ast.Constant):
        return ""
    name = str(arguments[0].value)
    if function.endswith("encoding_for_model"):
        from tiktoken.model import encoding_name_for_model

        try:
            name = encoding_name_for_model(name)
        except KeyError:
            return ""
    return name if name in ENCODINGS else ""


def _apply(text: str, edits: list[Edit]) -> str:
    source = text.encode()
    for edit in sorted(edits, reverse=True):
        source = source[: edit.start] + edit.text.encode() + source[edit.end :]
    return source.decode()


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _with_import(text: str, aliases: dict[str, str], used_before: set[str]) -> str:
    """`import tokenmill` in place of an import that nobody needs any more, else behind the last."""
    source = _Source(text)
    body = source.tree.body
    imported = [alias for node in body if isinstance(node, ast.Import) for alias in node.names]
    if any(alias.name == "tokenmill" and not alias.asname for alias in imported):
        return text
    given_up = used_before - _names(source.tree)
    leading = 1 if ast.get_docstring(source.tree) is not None else 0
    for node in body[leading:]:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            break
        leading += 1
        names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        home = aliases.get(names[0], "")
        if len(names) == 1 and names[0] in given_up and home.startswith(("tiktoken", "gigatoken")):
            return _apply(text, [Edit(*source.span(node), "import tokenmill")])
    before = body[:leading]
    after = body[leading]  # what was repaired, at the latest
    if before and before[-1].end_lineno == after.lineno:  # behind a semicolon
        end = source.span(before[-1])[1]
        return _apply(text, [Edit(end, end, "; import tokenmill")])
    # Before the first statement, not the first line: a comment there may name the encoding.
    decorators = [node.lineno for node in getattr(after, "decorator_list", [])]
    at = (before[-1].end_lineno or 0) if before else min([after.lineno, *decorators]) - 1
    line_end = "\r\n" if "\r\n" in text else "\n"
    start = source.lines[at]
    return _apply(text, [Edit(start, start, f"import tokenmill{line_end}")])
