"""Names that try to get out of a folder, and a watch over what is touched outside of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OUTSIDE = "outside"
VICTIM = "victim"


def hostile_names(outside: Path) -> list[str]:
    """More than 200 names, the same ones in the same order for any folder beside the output."""
    way = f"{OUTSIDE}/{VICTIM}"
    names = [
        f"{prefix}{up}{tail}"
        for prefix in ("", "./", "index/", "index/./", "a/", "/", "//", "index//")
        for up in ("../", "../../../", "../../", "..//", "../../../../../../", ".../")
        for tail in (way, "etc/passwd", "x\0", "x" * 300)
    ]
    names += [
        "", " ", ".", "..", "...", "/", "//", "~", "~/x", "-", "--overwrite", "*", "[", "a*b",
        str(outside / VICTIM), f"//{outside / VICTIM}", f"{outside / VICTIM}/", f"file://{way}",
        "..\\outside\\victim", "C:\\x", "%2e%2e/outside/victim", "%2e%2e%2foutside%2fvictim",
        "．．／outside／victim", "\u2024\u2024/outside/victim", "..\u2215outside\u2215victim",
        "\u202e../outside/victim", "..\u200b/outside/victim", "a\u202ebin.txt",
        "\0", "train.bin\0", f"../{way}\0.bin", "train.bin\n", "a\nb", "a\rb", "\x1b[2Jx", "x\x7f",
        "x\x9b31m", "\udc80", "x" * 256, "x" * 5000, "é" * 128, "index/" + "x" * 300,
        ".hidden", ".tokenmill", ".tokenmill/lock", ".tokenmill/plan.json", "manifest.json",
        "run.json", "index", "index/", "index/.x", "index/a/b", "index/manifest.json", "o/../o",
        f"link/{VICTIM}", f"index/link/{VICTIM}", "link", f"link/../{way}", f"./link/{VICTIM}",
    ]  # fmt: skip
    return list(dict.fromkeys(names))


# --- the watch -------------------------------------------------------------------------------

_watched: list[tuple[str, list[str]]] = []  # folders, and what was touched in each
_EVENTS = {
    "open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
    "os.truncate", "os.chmod", "os.utime", "shutil.rmtree", "os.scandir", "os.listdir",
}  # fmt: skip
# These change a name in a folder: where it is a link, the link and not what it points to.
_NAMES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink"}
_hooked = False


def _reached(path: str, name_only: bool) -> str:
    if not name_only:
        return os.path.realpath(path)
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _watched or event not in _EVENTS:
        return
    for argument in arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
        if isinstance(argument, str | bytes | os.PathLike):
            real = _reached(os.fsdecode(argument), event in _NAMES)
            for folder, touched in _watched:
                if real == folder or real.startswith(folder + "/"):
                    touched.append(f"{event} {real}")


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Nothing in a folder is opened, listed, renamed or removed, and no byte of it changes."""
    global _hooked
    if not _hooked:  # it stays for the life of the process, which is a case's
        sys.addaudithook(_hook)
        _hooked = True
    before = _state(folder)
    touched: list[str] = []
    _watched.append((os.path.realpath(folder), touched))
    try:
        yield
    finally:
        _watched.pop()
    assert not touched, f"touched outside of the output: {touched[:3]}"
    assert _state(folder) == before, "something outside of the output has changed"


def _state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
