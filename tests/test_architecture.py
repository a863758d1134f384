"""The house rules: reading order, sizes, one writer, nothing dangerous, nothing of its makers."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "src" / "tokenmill"
MODULES = sorted(PACKAGE.rglob("*.py"))

# In the order of the data. A module imports only what stands above it.
ORDER = [
    "errors",
    "failpoints",
    "interrupts",
    "cgroups",
    "config",
    "memory",
    "tokenizer",
    "vocabulary_files",
    "texts",
    "encoders.gap_tables",
    "encoders.unicode_gap",
    "encoders.arrays",
    "encoders.cuts",
    "encoders.fast",
    "encoders.reference",
    "encoders.exact",
    "encoders.decoding",
    "encoders",
    "streams",
    "arrow_ipc",
    "arrow_large",
    "parquet_pages",
    "fields",
    "json_condensed",
    "parquet_footer",
    "remote",
    "remote.address",
    "remote.patience",
    "remote.hub",
    "remote.stores",
    "remote.locate",
    "listing",
    "sources",
    "plan",
    "separators",
    "batch",
    "columns",
    "text_batches",
    "text_files",
    "json_lines",
    "documents",
    "pack",
    "formats.base",
    "formats.nanogpt",
    "formats.llmc",
    "formats.modded",
    "formats.build_nanogpt",
    "formats.megatron",
    "formats.datatrove",
    "formats.olmo",
    "formats.flat",
    "formats.mds",
    "formats.litdata",
    "formats.tables",
    "formats.hf",
    "formats.parquet",
    "formats",
    "shards",
    "steps",
    "storage",
    "links",
    "gap_cache",
    "recipes",
    "mapping",
    "portable",
    "manifest",
    "fetch",
    "engines.observer",
    "supply",
    "needs",
    "engines.badrows",
    "engines.encoded",
    "engines.unit",
    "engines.hunt",
    "engines.frontier",
    "engines.segments",
    "engines.books",
    "engines.messages",
    "engines.worker",
    "engines.forkserver",
    "engines.preload",
    "engines.inline",
    "engines.processes",
    "engines.local",
    "engines",
    "production",
    "editions",
    "commit",
    "job",
    "hf_dataset",
    "options",
    "pipeline",
    "fineweb_parts",
    "probe",
    "estimate",
    "verification",
    "loader",
    "inspection",
    "token_streams",
    "exporting",
    "foreign_files",
    "adoption",
    "origins",
    "rereading",
    "comparison",
    "deep",
    "progress",
    "reporting",
    "summary",
    "pickling",
    "scripts",
    "patching",
    "processes_seen",
    "postmortem",
    "watching",
    "doctor",
    "cli_doctor",
    "cli_options",
    "cli_prepare",
    "cli_convert",
    "cli",
]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> set[str]:
    """Modules of ours that a module imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokenmill"):
            base = (node.module or "").removeprefix("tokenmill").removeprefix(".")
            for alias in node.names:
                deeper = f"{base}.{alias.name}".strip(".")
                found.add(deeper if deeper in ORDER else base)
    return found - {""}


def test_every_module_is_in_the_reading_order() -> None:
    names = {name_of(path) for path in MODULES} - {"", "__main__", "vocab"}
    assert names == set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_modules_above_it(path: Path) -> None:
    name = name_of(path)
    if name in ("", "__main__", "vocab"):
        return
    above = set(ORDER[: ORDER.index(name)])
    assert imports_of(path) <= above, f"{name} imports {imports_of(path) - above}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= 500
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 75, node.name
    assert ast.get_docstring(ast.parse(source)), "a module says what it is for"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_dangerous_is_called_and_only_storage_writes(path: Path) -> None:
    forbidden = {"eval", "exec", "compile"}
    writers = {
        "write_bytes", "write_text", "rename", "replace", "unlink", "remove", "rmtree", "mkdir",
        "makedirs", "tofile", "pwrite", "truncate", "ftruncate", "symlink", "link",
    }  # fmt: skip
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            # `pickling` explains picklers: it loads nothing but what it has dumped itself.
            allowed = {"pickle"} if name_of(path) == "pickling" else set()
            found = {"pickle", "dill", "marshal", "yaml", "shelve"} & set(names)
            assert found <= allowed
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            assert node.func.id not in forbidden
            if node.func.id == "open" and len(node.args) > 1:
                mode = getattr(node.args[1], "value", "r")
                assert not set(str(mode)) & set("wax+"), f"{path.name} opens a file to write"
        if isinstance(node.func, ast.Attribute) and name_of(path) not in ("storage", "steps"):
            owner = ast.unparse(node.func.value)
            if owner in ("os", "shutil") or owner.lower().endswith("path"):
                assert node.func.attr not in writers, f"{path.name}: {ast.unparse(node)}"
            assert not any(k.arg == "allow_pickle" for k in node.keywords)


def test_names_of_our_files_are_not_what_trainers_glob_for() -> None:
    from tokenmill.commit import PIECES, QUARANTINE, UNITS

    for name in (PIECES, UNITS, QUARANTINE, "manifest.json", "run.json", "x.ends", "x.runs"):
        assert not name.endswith((".bin", ".npy", ".idx", ".ds", ".csv.gz"))


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine, no name of a package mirror, in any tracked text file."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    pattern = re.compile(
        r"/(?:work|root|home)/[a-z]|https?://[^\s]*(?:mirror|simple/)|\.internal\b"
    )
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in (".parquet", ".ranks", ".png") or not path.exists():
            continue
        if path == Path(__file__):
            continue
        match = pattern.search(path.read_text(errors="ignore"))
        assert match is None, f"{name}: {match and match[0]}"


def test_the_readme_has_no_blanks_and_names_every_format_and_tokenizer() -> None:
    from tokenmill.formats import FORMATS
    from tokenmill.tokenizer import ENCODINGS

    readme = (ROOT / "README.md").read_text()
    assert not re.findall(r"@[A-Z]+@|TODO|FIXME", readme)
    for name in (*FORMATS, *ENCODINGS):
        assert f"`{name}`" in readme or f" {name}`" in readme or f"tokenizer {name}" in readme
    for link in re.findall(r"\]\(([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link
