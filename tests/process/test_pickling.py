"""`explain_pickle` names the very object, and the patch repairs the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cases import quick
from support.commands import command

from tokenmill.doctor.patching import patch_script, unified_diff

GLOBAL_SCRIPT = """\
import gigatoken
import tiktoken

enc = tiktoken.get_encoding("cl100k_base")
core = enc._core_bpe


def tokenize(row):
    return {"ids": core.encode_ordinary(row["text"]) + [enc.eot_token]}


def by_main(row):
    return made_under_main.encode(row["text"])


def outer():
    def inner(row):
        return row
    return inner


if __name__ == "__main__":
    made_under_main = enc
    raise SystemExit("the script itself must not run")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script, and tiktoken without its network."""
    path = tmp_path / "train.py"
    path.write_text(GLOBAL_SCRIPT)
    (tmp_path / "sitecustomize.py").write_text(
        "import tiktoken, tiktoken.registry\n"
        "from tokenmill.tokenizer.bundled import get_encoding as find, bundled_ranks\n"
        "def get_encoding(name):\n"
        "    e = find(name)\n"
        "    return tiktoken.Encoding(name, pat_str=e.pattern, special_tokens=e.special_tokens,"
        " mergeable_ranks=bundled_ranks(name))\n"
        "tiktoken.get_encoding = tiktoken.registry.get_encoding = get_encoding\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    return path


def test_doctor_names_the_culprit_of_a_scripts_function(script: Path) -> None:
    done = command("doctor", f"{script}:tokenize")
    assert done.returncode == 1, done.stderr
    assert "culprit: global `core` (CoreBPE)" in done.stdout
    assert "cannot pickle 'builtins.CoreBPE' object" in done.stdout
    # by name, and in datasets' workers under fork, it does go: the truth, line by line
    assert "  pickle (multiprocessing): yes" in done.stdout
    assert "  dill (datasets.map's workers): yes" in done.stdout
    assert "the script itself" not in done.stdout + done.stderr


def test_doctor_finds_globals_that_are_made_only_when_the_script_runs(script: Path) -> None:
    done = command("doctor", f"{script}:by_main")
    assert done.returncode == 1
    assert "global `made_under_main`: not there when the module is imported" in done.stdout


@pytest.mark.parametrize(
    ("target", "said"),
    quick(
        [
            ("train.py", "say which function"),
            ("missing.py:f", "cannot be read"),
            ("train.py:nothing", "there are: tokenize, by_main, outer"),
            ("train.py:inner", "is made inside outer()"),
            ("train.py:enc", "is not a function"),
            ("bad.py:f", "line 2: the script stops when it is imported: ZeroDivisionError"),
            ("wrong.py:f", "line 1: the script stops when it is imported: SyntaxError"),
            ("exits.py:f", "SystemExit"),
            ("binary.py:f", "is not a Python script"),
            ("coded.py:f", "cannot be read: unknown encoding"),
        ],
        first=2,
        several=True,
    ),
)
def test_what_is_wrong_with_the_target_is_said(script: Path, target: str, said: str) -> None:
    (script.parent / "bad.py").write_text("x = 1\nx / 0\n")
    (script.parent / "wrong.py").write_text("def f(:\n")
    (script.parent / "binary.py").write_bytes(b"x = 1\0\n")
    (script.parent / "coded.py").write_text("# coding: klingon\n")
    (script.parent / "exits.py").write_text("import sys\nsys.exit(3)\n")
    done = command("doctor", f"{script.parent}/{target}")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_patch_is_a_diff_that_repairs_the_script(script: Path) -> None:
    done = command("doctor", "--patch", f"{script}:tokenize")
    assert done.returncode == 0, done.stderr
    assert "after the patch: tokenize: pickles" in done.stderr
    before = script.read_text()
    assert before == GLOBAL_SCRIPT  # nothing is written
    applied = subprocess.run(
        ["patch", "-p0", str(script)], input=done.stdout, text=True, capture_output=True
    )
    assert applied.returncode == 0, applied.stdout + applied.stderr
    text = script.read_text()
    assert 'enc = tokenmill.Tokenizer("cl100k_base")' in text
    assert "core = enc\n" in text
    assert "import tiktoken" not in text  # nobody needs it any more
    assert command("doctor", f"{script}:tokenize").returncode == 0
    # and it still does what it did
    code = "import train; print(train.tokenize({'text': 'hello world'}))"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=script.parent, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "{'ids': [15339, 1917, 100257]}", ran.stderr


def test_a_diff_without_a_last_line_end_can_be_applied(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text('import tiktoken\ne = tiktoken.get_encoding("gpt2")')
    diff = unified_diff(path.read_text(), patch_script(path.read_text()).text, path).decode()
    done = subprocess.run(["patch", "-p0", str(path)], input=diff, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
    assert path.read_text() == 'import tokenmill\ne = tokenmill.Tokenizer("gpt2")'


FINEWEB = """\
import tiktoken
NAME = "caf\u00e9\x0c"

enc = tiktoken.get_encoding("gpt2")
eot = enc._special_tokens['<|endoftext|>']  # as the FineWeb scripts have it
print("{printed by the script}", NAME == "caf\\xe9\\x0c")
def tokenize(row):
    return [eot, *enc.encode_ordinary(row["text"])]

if __name__ == "__main__":
    print(tokenize({"text": "hello"}))
"""


@pytest.mark.parametrize(
    "kind", quick(["latin-1", "line ends of Windows", "utf-8", "utf-8-sig", "U+2028"], first=2)
)
def test_the_diff_applies_to_the_file_as_it_is_and_the_script_runs(kind: str, script: Path) -> None:
    text, encoding = FINEWEB, kind if kind[0] in "ul" and " " not in kind else "utf-8"
    if kind == "latin-1":
        text = f"# coding: latin-1\n{text}"
    elif kind == "line ends of Windows":
        text = text.replace("\n", "\r\n")
    elif kind == "U+2028":  # ends a line for str.splitlines, not for Python nor for `patch`
        text = f'"""A\u2028B"""\n{text}'
    path = script.parent / "my script.py"
    path.write_bytes(text.encode(encoding))
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "doctor", "--patch", f"{path.name}:tokenize"],
        cwd=path.parent, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"{printed by" not in done.stdout.replace(b'print("{printed', b"")
    applied = subprocess.run(
        ["patch", "-p0"], cwd=path.parent, input=done.stdout, capture_output=True
    )
    assert applied.returncode == 0, applied.stdout + applied.stderr
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["{printed by the script} True", "[50256, 31373]"], ran.stderr


def test_what_the_script_prints_is_not_in_the_json(script: Path) -> None:
    path = script.parent / "prints.py"
    path.write_text("print('at import')\ndef f(x):\n    return x\n")
    done = command("doctor", "--json", f"{path}:f")
    assert json.loads(done.stdout)["ok"]
    assert "at import" in done.stderr


def test_a_repair_is_offered_where_there_is_one(script: Path) -> None:
    assert "a diff that repairs it" in command("doctor", f"{script}:tokenize").stdout
    path = script.parent / "locked.py"
    path.write_text("import threading\nlock = threading.Lock()\ndef f(x):\n    return lock\n")
    done = command("doctor", f"{path}:f")
    assert done.returncode == 1
    assert "a diff that" not in done.stdout


def test_the_patch_of_a_nested_function_works_without_running_it(tmp_path: Path) -> None:
    path = tmp_path / "nested.py"
    path.write_text(
        "import tiktoken\n\ndef main():\n    enc = tiktoken.get_encoding('gpt2')\n"
        "    def tokenize(row):\n        return enc.encode_ordinary(row['text'])\n"
        "    return tokenize\n"
    )
    done = command("doctor", "--patch", f"{path}:tokenize")
    assert done.returncode == 0, done.stderr
    assert '+    enc = tokenmill.Tokenizer("gpt2")' in done.stdout
    assert "is made inside main()" in done.stderr
