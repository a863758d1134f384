"""`tokenmill doctor`: what this machine offers, and whether the encoders are exact on it."""

from __future__ import annotations

import multiprocessing
import os
import platform
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tokenmill import __version__
from tokenmill.cgroups import cgroup_memory
from tokenmill.config import available_cores
from tokenmill.errors import TokenmillError, without_secrets
from tokenmill.processes_seen import available_memory
from tokenmill.storage import TrialWrite, trial_write

if TYPE_CHECKING:
    from tokenmill.portable import Tokenizer

Level = Literal["ok", "warn", "bad"]
LIBRARIES = (
    "gigatoken", "tiktoken", "tokenizers", "sentencepiece", "pyarrow", "numpy", "datasets", "dill",
    "multiprocess", "cloudpickle", "transformers", "huggingface_hub", "ray", "torch",
)  # fmt: skip
HUB_SECONDS = 5.0
LITTLE_DISK = 10 * 10**9
LITTLE_SHM = 256 << 20  # a container's default of 64 MB is too little for a loader's workers
# Where encoders are known to go apart: white space at ends, contractions, marks, newer letters.
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


def examine(directory: str | None = None, *, network: bool = True) -> list[Check]:
    """Everything about this machine; writes only into a directory that is given."""
    return [
        _cores(),
        *_memory(),
        _disk(directory or "."),
        *([_writing(directory)] if directory else []),
        _shared_memory(),
        _start_method(),
        _versions(),
        _exactness(),
        *_hub(network),
    ]


def _cores() -> Check:
    may, has = available_cores(), os.cpu_count() or 1
    return Check("cores", "ok", f"{may} of {has} may be used by this process")


def _memory() -> list[Check]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = available_memory()
    left = f", {free / 1e9:.1f} GB available" if free >= 0 else ""
    low = 0 <= free < 10**9
    checks = [
        Check(
            "memory",
            "warn" if low else "ok",
            f"{total / 1e9:.1f} GB{left}",
            "end other programs: a worker needs 0.35 GB" if low else "",
        )
    ]
    group = cgroup_memory()
    if group.limit >= 0:
        used = f", {group.used / 1e9:.1f} GB used" if group.used >= 0 else ""
        kills = group.kills
        checks.append(
            Check(
                "memory limit",
                "warn" if kills else "ok",
                f"{group.limit / 1e9:.1f} GB for this control group{used}",
                f"its out-of-memory killer has struck {kills} times" if kills else "",
            )
        )
    return checks


def _disk(directory: str) -> Check:
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return Check("disk", "bad", f"{directory}: {error.strerror}", "name a folder that is there")
    free = found.f_bavail * found.f_frsize
    few = found.f_files > 0 and found.f_favail < 1000
    advice = "" if free >= LITTLE_DISK else "a dataset takes 2 or 4 bytes for each token"
    if few:
        advice = f"only {found.f_favail} more files can be made (inodes)"
    where = os.path.abspath(directory)
    return Check("disk", "warn" if advice else "ok", f"{free / 1e9:.1f} GB free in {where}", advice)


def _writing(directory: str) -> Check:
    try:
        trial: TrialWrite = trial_write(Path(directory))
    except TokenmillError as error:
        return Check("writing", "bad", error.message, "choose a folder that can be written")
    slow = trial.sync_ms > 100 or trial.bytes_per_second < 50e6
    return Check(
        "writing",
        "warn" if slow else "ok",
        f"{trial.bytes_per_second / 1e6:.0f} MB/s with fsync, {trial.sync_ms:.1f} ms for a small "
        "file with fsync",
        "slow: a network file system? Write to a local disk and copy" if slow else "",
    )


def _shared_memory() -> Check:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return Check("/dev/shm", "ok", "there is none; tokenmill does not need it")
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    low = free < LITTLE_SHM
    return Check(
        "/dev/shm",
        "warn" if low else "ok",
        f"{free / 1e9:.2f} of {size / 1e9:.2f} GB free",
        "little for the workers of a torch DataLoader or Ray (SIGBUS): docker run --shm-size=8g"
        if low
        else "",
    )


def _start_method() -> Check:
    default = multiprocessing.get_start_method(allow_none=True)
    default = default or multiprocessing.get_context().get_start_method()
    known = ", ".join(multiprocessing.get_all_start_methods())
    return Check(
        "start method",
        "ok",
        f"{default} is Python's default here, tokenmill uses forkserver (there are {known})",
    )


def _versions() -> Check:
    found = [f"tokenmill {__version__}", f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    found.append(f"{platform.system()} {platform.release()} {platform.machine()}")
    return Check("versions", "ok", ", ".join(found))


def _exactness() -> Check:
    from tokenmill.portable import Tokenizer
    from tokenmill.tokenizer import ENCODINGS

    counted, slow = 0, []
    for name in ENCODINGS:
        tok = Tokenizer(name)
        try:
            wrong = wrong_texts(tok)
        except TokenmillError as error:
            return Check("exactness", "bad", f"{name}: {error.message}", error.hint)
        if wrong:
            return Check(
                "exactness",
                "bad",
                f"{name}: other ids than tiktoken's for {wrong[0]!r}",
                "use --encoder reference, and report this with the versions above",
            )
        counted += len(SAMPLE)
        if not tok.is_fast:
            slow.append(name)
    told = f"{counted} texts in {len(ENCODINGS)} encodings, all ids equal to tiktoken's"
    if slow:
        return Check("exactness", "warn", told, f"without the fast encoder: {', '.join(slow)}")
    return Check("exactness", "ok", told)


def wrong_texts(tok: Tokenizer) -> list[str]:
    """Texts of the sample on which a tokenizer and the reference differ."""
    from tokenmill.encoders.reference import ReferenceEncoder

    reference = ReferenceEncoder(tok.encoding)
    return [
        text
        for text in SAMPLE
        if tok.encode_ordinary(text) != reference.encode_document(text.encode()).tolist()
    ]


def _hub(network: bool) -> list[Check]:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    login = Check(
        "Hub login",
        "ok",
        "yes" if logged_in() else "no",
        "" if logged_in() else "needed for gated and private datasets only: hf auth login",
    )
    if not network or offline:
        why = "HF_HUB_OFFLINE is set" if offline else "--offline"
        return [Check("Hub", "ok", f"not tried ({why})"), login]
    shown = without_secrets(endpoint)
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        with urllib.request.urlopen(request, timeout=HUB_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        return [Check("Hub", "ok", f"{shown} answers (HTTP {error.code})"), login]
    except (OSError, ValueError) as error:
        reason = without_secrets(str(getattr(error, "reason", error)))
        advice = "local files need no network; behind a proxy set HTTPS_PROXY, else HF_ENDPOINT"
        return [Check("Hub", "warn", f"{shown} cannot be reached: {reason}", advice), login]
    return [Check("Hub", "ok", f"{shown} answers"), login]


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
