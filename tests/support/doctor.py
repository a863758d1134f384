"""`tokenmill doctor`: the machine, and why a command's process died."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from support.commands import command

from tokenmill.doctor.machine import Check

SECRET = "hf_never_to_be_shown"


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


POOL = """
import multiprocessing, os, signal, sys, time, ctypes
def work(i):
    if i == 3:
        time.sleep(0.4)
        held = bytearray(60_000_000)
        time.sleep(0.4)
        DEATH
    time.sleep(1.5)
if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    children = [context.Process(target=work, args=(i,)) for i in range(5)]
    for child in children: child.start()
    for child in children: child.join()
    print("done", [child.exitcode for child in children])
    sys.exit(7 if any(child.exitcode for child in children) else EXIT)
"""


def why(tmp_path: Path, death: str, method: str = "fork", code: int = 0) -> Any:
    script = tmp_path / "pool.py"
    script.write_text(
        POOL.replace("DEATH", death).replace("METHOD", method).replace("EXIT", str(code))
    )
    return command("doctor", "--why-died", "--", sys.executable, script)
