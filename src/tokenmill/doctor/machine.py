"""`tokenmill doctor`: what this machine offers, and whether the encoders are exact on it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tokenmill._version import __version__
from tokenmill.amounts import show_bytes, show_speed
from tokenmill.errors import TokenmillError, without_secrets
from tokenmill.system.disk import trial_write
from tokenmill.system.limits import available_cores, cgroup_memory
from tokenmill.system.proc import available_memory

if TYPE_CHECKING:
    from tokenmill.tokenizer.tokenizer import Tokenizer

Level = Literal["ok", "warn", "bad"]
LIBRARIES = (
    "gigatoken", "tiktoken", "tokenizers", "sentencepiece", "pyarrow", "numpy", "datasets", "dill",
    "multiprocess", "cloudpickle", "transformers", "huggingface_hub", "ray", "torch",
)  # fmt: skip
HUB_SECONDS = 5.0
LITTLE_DISK = 10 * 10**9
LITTLE_SHM = 256 << 20  # a container's default of 64 MB is too little for a loader's workers
# Where encoders are known to differ: white space at ends, contractions, marks, newer letters.
SAMPLE = (
    "Hello world, it's 1234567 o'clock.\n\n  Indented\tand \u00a0 spaced   ",
    "naïve café – “quotes” … don't DON'T you'LL", "<|endoftext|> is text <|fim_prefix|>",
    "日本語のテキスト、中文。 한국어 텍스트", "Привет, мир! Γειά σου Κόσμε", "ไทยไม่มีช่องว่าง",
    "👩‍👩‍👧‍👦 🇩🇪 e\u0301\u0323", "def f(x):\n    return x  # code\n\n\n",
    " ", "", "\r\n\r\n", "a" * 300,
    "\u088fgap \U000323b0 letters's \ua7ce's", "x" + " " * 500 + "y",
)  # fmt: skip


class Check(NamedTuple):
    """One line of the report."""

    name: str
    level: Level
    found: str
    advice: str = ""


def _checked(name: str, found: str, advice: str = "") -> Check:
    """A warning where there is advice."""
    return Check(name, "warn" if advice else "ok", found, advice)


def examine(directory: str | None = None, *, network: bool = True) -> list[Check]:
    """Everything about this machine; writes only into a directory that is given."""
    cores = f"{available_cores()} of {os.cpu_count() or 1} may be used by this process"
    return [
        _checked("cores", cores),
        *_memory(),
        _disk(directory or "."),
        *([_writing(directory)] if directory else []),
        _shared_memory(),
        _start_method(),
        _versions(),
        _exactness(),
        *_hub(network),
    ]


def _memory() -> list[Check]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = available_memory()
    left = f", {show_bytes(free)} available" if free >= 0 else ""
    advice = "end other programs: a worker needs 0.35 GB" if 0 <= free < 10**9 else ""
    checks = [_checked("memory", f"{show_bytes(total)}{left}", advice)]
    group = cgroup_memory()
    if group.limit >= 0:
        used = f", {show_bytes(group.used)} used" if group.used >= 0 else ""
        found = f"{show_bytes(group.limit)} for this control group{used}"
        kills = f"its out-of-memory killer has struck {group.kills} times" if group.kills else ""
        checks.append(_checked("memory limit", found, kills))
    return checks


def _disk(directory: str) -> Check:
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return Check("disk", "bad", f"{directory}: {error.strerror}", "name a folder that is there")
    free = found.f_bavail * found.f_frsize
    advice = "" if free >= LITTLE_DISK else "a dataset takes 2 or 4 bytes for each token"
    if found.f_files > 0 and found.f_favail < 1000:
        advice = f"only {found.f_favail} more files can be made (inodes)"
    return _checked("disk", f"{show_bytes(free)} free in {os.path.abspath(directory)}", advice)


def _writing(directory: str) -> Check:
    try:
        trial = trial_write(Path(directory))
    except TokenmillError as error:
        return Check("writing", "bad", error.message, "choose a folder that can be written")
    slow = trial.sync_ms > 100 or trial.bytes_per_second < 50e6
    return _checked(
        "writing",
        f"{show_speed(trial.bytes_per_second)} with fsync, {trial.sync_ms:.1f} ms for a small "
        "file with fsync",
        "slow: a network file system? Write to a local disk and copy" if slow else "",
    )


def _shared_memory() -> Check:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return _checked("/dev/shm", "there is none; tokenmill does not need it")
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    little = (
        "little for the workers of a torch DataLoader or Ray (SIGBUS): docker run --shm-size=8g"
    )
    shown = f"{show_bytes(free)} of {show_bytes(size)} free"
    return _checked("/dev/shm", shown, little if free < LITTLE_SHM else "")


def _start_method() -> Check:
    default = multiprocessing.get_start_method()
    known = ", ".join(multiprocessing.get_all_start_methods())
    return _checked(
        "start method",
        f"{default} is Python's default here, tokenmill uses forkserver (there are {known})",
    )


def _versions() -> Check:
    found = [f"tokenmill {__version__}", f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    found.append(f"{platform.system()} {platform.release()} {platform.machine()}")
    return _checked("versions", ", ".join(found))


def _exactness() -> Check:
    from tokenmill.tokenizer.bundled import ENCODINGS
    from tokenmill.tokenizer.tokenizer import Tokenizer

    counted, slow = 0, []
    for name in ENCODINGS:
        tok = Tokenizer(name)
        try:
            wrong = wrong_texts(tok)
        except TokenmillError as error:
            return Check("exactness", "bad", f"{name}: {error.message}", error.hint)
        if wrong:
            found = f"{name}: other ids than tiktoken's for {wrong[0]!r}"
            advice = "use --encoder reference, and report this with the versions above"
            return Check("exactness", "bad", found, advice)
        counted += len(SAMPLE)
        if not tok.is_fast:
            slow.append(f"{name} ({tok.why_slow})")
    told = f"{counted} texts in {len(ENCODINGS)} encodings, all ids equal to tiktoken's"
    return _checked(
        "exactness", told, f"without the fast encoder: {', '.join(slow)}" if slow else ""
    )


def wrong_texts(tok: Tokenizer) -> list[str]:
    """Texts of the sample on which a tokenizer and the reference differ."""
    from tokenmill.tokenizer.encoders.reference import ReferenceEncoder

    reference = ReferenceEncoder(tok.encoding)
    return [
        text
        for text in SAMPLE
        if tok.encode_ordinary(text) != reference.encode_document(text.encode()).tolist()
    ]


def _hub(network: bool) -> list[Check]:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    login = Check("Hub login", "ok", "yes")
    if not logged_in():
        advice = "needed for gated and private datasets only: hf auth login"
        login = Check("Hub login", "ok", "no", advice)
    if not network or offline:
        why = "HF_HUB_OFFLINE is set" if offline else "--offline"
        return [_checked("Hub", f"not tried ({why})"), login]
    shown = without_secrets(endpoint)
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        with urllib.request.urlopen(request, timeout=HUB_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        return [_checked("Hub", f"{shown} answers (HTTP {error.code})"), login]
    except (OSError, ValueError) as error:
        reason = without_secrets(str(getattr(error, "reason", error)))
        advice = "local files need no network; behind a proxy set HTTPS_PROXY, else HF_ENDPOINT"
        return [_checked("Hub", f"{shown} cannot be reached: {reason}", advice), login]
    return [_checked("Hub", f"{shown} answers"), login]


def logged_in() -> bool:
    """Whether there is a token. It is never read: a variable is set, or a file is there."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False


def check_lines(checks: list[Check]) -> list[str]:
    marks = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}
    lines = []
    for check in checks:
        lines.append(f"{marks[check.level]}  {check.name + ':':14} {check.found}")
        if check.advice:
            lines.append(f"{'':22}{check.advice}")
    return lines
