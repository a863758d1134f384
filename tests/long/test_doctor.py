"""`tokenmill doctor`: the machine, and why a command's process died."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import command
from support.doctor import SECRET, by_name, why

from tokenmill.amounts import parse_bytes
from tokenmill.doctor import machine as doctor


@pytest.mark.parametrize("how", ["variable", "file", "none"])
def test_the_login_is_told_and_the_token_never(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    if how == "variable":
        monkeypatch.setenv("HF_TOKEN", SECRET)
    if how == "file":
        (tmp_path / "token").write_text(SECRET)
    for arguments in (("--offline",), ("--offline", "--json")):
        done = command("doctor", *arguments)
        assert SECRET not in done.stdout + done.stderr
    found = by_name(doctor.examine(network=False))["Hub login"].found
    assert found == ("no" if how == "none" else "yes")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("death", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, not for lack of memory (it used"),
        ("ctypes.string_at(0)", "SIGSEGV: a segmentation fault in native code"),
        ("os.abort()", "SIGABRT: native code gave up"),
        ("os._exit(42)", "exit code 42: it ended itself"),
        ("sys.exit(3)", "exit code 3: it ended itself"),
    ],
)
def test_the_death_of_a_worker_is_explained(
    death: str, said: str, method: str, tmp_path: Path
) -> None:
    done = why(tmp_path, death, method)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("done [")  # the command's own output is as it was
    report = done.stderr.partition("tokenmill doctor:")[2]
    assert "the command ended with exit code 7" in report
    assert "first to die: process " in report
    assert said in report, report
    # its memory over time: small at first, and what it held before its end (which an
    # interpreter that takes itself down gives back piece by piece, and may be seen at that)
    in_time = next(line for line in report.splitlines() if "in time:" in line)
    sizes = [
        parse_bytes("".join(part.split()[2:])) for part in in_time.split("in time:")[1].split(",")
    ]
    assert max(sizes) - sizes[0] > 50_000_000, in_time
    if "string_at" in death:
        assert "Fatal Python error: Segmentation fault" in done.stderr
        assert "in work" in done.stderr
