"""The house rules: reading order, sizes, one writer, nothing dangerous, nothing of its makers."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from support.inputs import ROOT

PACKAGE = ROOT / "src" / "tokenmill"


MODULES = sorted(PACKAGE.rglob("*.py"))


# Modules that change the disk, all through `system.disk.disk`; `failpoints` breaks that in tests.
WRITERS = (
    "system.disk",
    "system.failpoints",
    "system.cache",
    "system.lock",
    "system.store",
    "output.objects.shared_folder",
)


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def rooms() -> list[Path]:
    """The rooms in the order of the contract in pyproject.toml, from the first to the last."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [
        name.strip()
        for layer in reversed(contracts["contracts"][0]["layers"])
        for name in layer.split("|")
    ]
    return [PACKAGE / name for name in layers if (PACKAGE / name).is_dir()]


def test_every_folder_is_a_room_of_the_contract() -> None:
    folders = {path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(rooms())


def test_a_room_and_the_root_hold_a_dozen_modules_at_most() -> None:
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        modules = [
            path.name
            for path in folder.glob("*.py")
            if not re.match(r"__init__|__main__", path.name)
        ]
        # one module for each trainer's format, and no more than that
        assert len(modules) <= (14 if folder.name == "formats" else 12), modules


def test_the_table_of_rooms_in_the_docs_is_made_from_their_docstrings() -> None:
    lines = ["| room | input | does | output |", "| --- | --- | --- | --- |"]
    for room in rooms():
        told = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
        found = re.search(r"\n\nInput: (.+)\nDoes: (.+)\nOutput: (.+)$", told)
        assert found, f"{room.name}/__init__.py: three lines, Input, Does and Output, end it"
        lines.append(
            f"| `{room.name}/` | " + " | ".join(part.rstrip(".") for part in found.groups()) + " |"
        )
    table = "\n".join(lines)
    docs = (ROOT / "docs" / "how-it-works.md").read_text()
    shown = docs[docs.index("<!-- rooms:") :].split("-->", 1)[1].split("<!--")[0].strip()
    assert shown == table, f"docs/how-it-works.md should have:\n{table}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= 500
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name
    assert ast.get_docstring(ast.parse(source)), "a module says what it is for"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_dangerous_is_called(path: Path) -> None:
    # `pickling` explains picklers: it loads nothing but what it has dumped itself.
    allowed = {"pickle"} if name_of(path) == "doctor.pickling" else set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            assert {"pickle", "dill", "marshal", "yaml", "shelve"} & set(names) <= allowed
        if isinstance(node, ast.Call):
            assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords)
            if isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile")


# Calls that change a disk whatever they are called on.
WRITES = {
    "write_bytes", "write_text", "tofile", "pwrite", "pwritev", "ftruncate", "symlink", "link",
    "symlink_to", "hardlink_to", "rename", "unlink", "rmdir", "rmtree", "mkdir", "makedirs",
    "touch", "chmod", "chown", "utime", "mkstemp", "mkdtemp", "NamedTemporaryFile",
    "TemporaryFile", "TemporaryDirectory", "copyfile", "copytree", "savez",
}  # fmt: skip


# Those that lists, strings, arrays and files of ours have, too: only on these.
WRITES_OF_MODULES = {
    "os": {"remove", "replace", "truncate", "renames", "removedirs", "write"},
    "shutil": {"copy", "copy2", "move"},
    "np": {"save"},
}


CREATES = {"O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND"}


def write_in(node: ast.Call) -> bool:
    """Whether a call changes the disk, as far as its text tells."""
    names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    if isinstance(node.func, ast.Name):
        function, owner = node.func.id, ""
    elif isinstance(node.func, ast.Attribute):
        function, owner = node.func.attr, ast.unparse(node.func.value)
    else:
        return False
    if function == "open":
        # open(path, mode), path.open(mode), os.open(path, flags)
        modes = [n.value for n in node.args[-1:] if isinstance(n, ast.Constant)]
        modes += [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
        written = any(
            set(mode) & set("wax+") for mode in modes if isinstance(mode, str) and len(mode) <= 3
        )
        return written or (owner == "os" and bool(names & CREATES))
    if function == "memmap":
        return any(k.arg == "mode" and ast.unparse(k.value) != "'r'" for k in node.keywords)
    if function == "replace" and len(node.args) == 1 and not node.keywords:
        return True  # of a path; a string's takes two
    return function in WRITES or function in WRITES_OF_MODULES.get(owner, ())


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_writers_change_the_disk(path: Path) -> None:
    if name_of(path) in WRITERS:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            assert not write_in(node), f"{path.name}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "line",
    [
        "array.tofile(path)", "(folder / name).write_bytes(content)", "path.rename(other)",
        "os.open(path, os.O_CREAT | os.O_CLOEXEC)", "tempfile.NamedTemporaryFile()",
        "tempfile.mkstemp()", "os.utime(path)", "open(path, 'w')", "path.open('ab')",
        "open(path, mode='r+')", "temporary.replace(path)", "np.memmap(path, mode='r+')",
        "shutil.rmtree(folder)", "os.replace(a, b)", "Path(x).unlink()", "np.save(path, array)",
    ],
)  # fmt: skip
def test_a_line_that_writes_is_found(line: str) -> None:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert write_in(call)


@pytest.mark.parametrize(
    "line",
    ["open(path)", "open(path, 'rb')", "text.replace('a', 'b')", "np.memmap(path, mode='r')",
     "names.remove(name)", "os.open(path, os.O_RDONLY)", "msgspec.structs.replace(a, b=1)"],
)  # fmt: skip
def test_a_line_that_reads_is_let_through(line: str) -> None:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert not write_in(call)


def test_names_of_our_files_are_not_what_trainers_glob_for() -> None:
    from tokenmill.output.commit import QUARANTINE
    from tokenmill.output.editions import PIECES, UNITS

    for name in (PIECES, UNITS, QUARANTINE, "manifest.json", "run.json", "x.ends", "x.runs"):
        assert not name.endswith((".bin", ".npy", ".idx", ".ds", ".csv.gz"))


def test_the_readme_has_no_blanks_and_names_every_format_and_tokenizer() -> None:
    from tokenmill.formats import FORMATS
    from tokenmill.tokenizer.bundled import ENCODINGS

    readme = (ROOT / "README.md").read_text()
    assert not re.findall(r"@[A-Z]+@|TODO|FIXME", readme)
    for name in (*FORMATS, *ENCODINGS):
        assert f"`{name}`" in readme or f" {name}`" in readme or f"tokenizer {name}" in readme
    for link in re.findall(r"\]\((?!https://)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link
    assert len(readme.splitlines()) < 200
