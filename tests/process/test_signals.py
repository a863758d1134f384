"""Ctrl-C and SIGTERM in this process: what the library does, and what the command prints.

The real command, with a signal in every phase of a run, is row R5 of the scorecard.
"""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.commands import command, dataset_bytes

import tokenmill
from tokenmill import assembly
from tokenmill.cli import prepare as cli_prepare
from tokenmill.dataset.status import status
from tokenmill.engines.events import Event, UnitDone
from tokenmill.engines.observer import Observer
from tokenmill.errors import Interrupted
from tokenmill.inputs import find as sources
from tokenmill.planning import make
from tokenmill.system.interrupts import Interrupts, forget_signals, interruptible, signals_held


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_planning_stops_at_once_and_leaves_nothing(
    number: int, code: int, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = handlers()

    def slowly(*_: object, **__: object) -> object:
        send(number)
        time.sleep(30)
        raise AssertionError("it waited")

    monkeypatch.setattr(make, "find_sources", slowly)
    began = time.monotonic()
    with pytest.raises(Interrupted) as stopped:
        tokenmill.prepare(inputs, tmp_path / "o", workers=0)
    assert time.monotonic() - began < 5
    assert stopped.value.exit_code == code
    assert stopped.value.message == f"stopped by {signal.Signals(number).name}"
    assert stopped.value.hint == "run the same command again"
    assert not (tmp_path / "o").exists()
    assert handlers() == before, "the caller has its own back"


def test_a_signal_that_a_library_swallowed_is_not_forgotten(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a handler raises in a destructor is printed and lost."""
    right = sources.find_sources

    def swallowing(*args: object, **keywords: object) -> object:
        try:
            send()
            time.sleep(1)
        except KeyboardInterrupt:
            pass
        return right(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(make, "find_sources", swallowing)
    with pytest.raises(Interrupted):
        tokenmill.prepare(inputs, tmp_path / "o", workers=0)
    assert not (tmp_path / "o").exists()


def test_a_signal_in_the_commit_is_for_the_caller_when_all_is_done(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = assembly.committing.commit

    def signalled(*args: object, **options: object) -> object:
        send()
        send()
        return commit(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(assembly.committing, "commit", signalled)
    with pytest.raises(KeyboardInterrupt):
        tokenmill.prepare(inputs, tmp_path / "o", workers=0)
    assert (tmp_path / "o" / "run.json").exists()
    assert not (tmp_path / "o" / ".tokenmill").exists()
    assert tokenmill.verify(tmp_path / "o").ok
    assert tokenmill.prepare(inputs, tmp_path / "o", workers=0).already_done


def test_a_signal_while_pieces_are_checked_stops_the_check(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmill.output import workspace as job

    def fails(*_: object, **__: object) -> object:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(assembly.committing, "commit", fails)
        with pytest.raises(RuntimeError):
            tokenmill.prepare(inputs, tmp_path / "o", workers=0)
    checked: list[object] = []
    right = job.is_intact

    def slowly(*piece: Any) -> bool:
        checked.append(piece)
        send()
        time.sleep(0.3)
        return right(*piece)

    with monkeypatch.context() as patch:
        patch.setattr(job, "is_intact", slowly)
        with pytest.raises(Interrupted):
            tokenmill.prepare(inputs, tmp_path / "o", workers=0)
    assert len(checked) <= 4, "those under way, and no more"
    tokenmill.prepare(inputs, tmp_path / "o", workers=0)
    tokenmill.prepare(inputs, tmp_path / "clean", workers=0)
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "clean")


def test_only_the_first_signal_raises() -> None:
    raised = 0

    def work() -> None:
        nonlocal raised
        with interruptible():
            try:
                send()
                time.sleep(1)
            except KeyboardInterrupt:
                raised += 1
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                    send(number)
                    time.sleep(0.01)  # an unbroken clean-up
                raise

    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        work()
    assert raised == 1


def test_in_another_thread_signals_are_left_alone() -> None:
    before, seen = handlers(), []

    def work() -> None:
        with interruptible() as interrupts:
            seen.append((handlers(), interrupts.received))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, [])]


def test_what_is_ignored_stays_ignored() -> None:
    """A shell has its background jobs ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            send()
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_is_born_with_the_signals_held_and_forgets_those_that_came() -> None:
    with signals_held():
        child = os.fork()
        if child == 0:
            send(signal.SIGINT)  # as a terminal sends it, before the child has handlers of its own
            forget_signals()
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            os._exit(7 if not {signal.SIGINT, signal.SIGTERM} & blocked else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_forked_child_does_not_hold_its_parents_lock(tmp_path: Path) -> None:
    """Or a worker that has not noticed yet would keep the next coordinator out."""
    from tokenmill.output.workspace import Workspace

    lock = Workspace(tmp_path / "o").lock()
    ours, theirs = os.pipe()
    there, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.write(ready, b"x")
        os.read(ours, 1)
        os._exit(0)
    try:
        os.read(there, 1)
        lock.release()
        Workspace(tmp_path / "o").lock().release()
    finally:
        for end in (theirs, ours, there, ready):
            os.close(end)
        os.waitpid(child, 0)


# --- the command that resumes ---------------------------------------------------------------------


def resume_command(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, begun: bool = True
) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["/bin/tokenmill", *arguments])
    monkeypatch.setattr(cli_prepare, "_begun", begun)
    return shlex.split(cli_prepare.same_command())


def test_the_command_that_resumes_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["prepare", "it's/a b.jsonl", "$HOME/*.txt", "-o", "out", "--text-separator", "\n\n"]
    assert resume_command(monkeypatch, *words) == ["tokenmill", *words]


def test_without_overwrite_once_the_old_dataset_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["prepare", "a", "--overwrite", "-o", "out"]
    assert resume_command(monkeypatch, *words) == ["tokenmill", "prepare", "a", "-o", "out"]
    assert resume_command(monkeypatch, *words, begun=False) == ["tokenmill", *words]


def test_an_overwrite_that_is_no_option_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["prepare", "--name", "--overwrite", "-o", "out", "--overwrite", "--", "--overwrite"]
    assert resume_command(monkeypatch, *words) == ["tokenmill", *words[:5], *words[6:]]


@pytest.mark.parametrize("starting", [0.0, 0.1])
def test_a_signal_in_a_callback_that_drops_exceptions_is_not_lost(
    starting: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python prints and forgets what is raised in a weak reference's callback. On a busy machine
    it takes long to start the thread that brings it back."""
    start = threading.Thread.start

    def slow(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(starting)

    monkeypatch.setattr(threading.Thread, "start", slow)

    class Thing:
        pass

    def signalled(_: object) -> None:
        send()
        time.sleep(0.01)

    thing = Thing()
    reference = weakref.ref(thing, signalled)
    hook = sys.unraisablehook
    things = [thing]
    del thing

    def work() -> None:
        with interruptible():
            things.clear()
            time.sleep(10)
            raise AssertionError("it was lost")

    with pytest.raises(Interrupted):
        work()
    assert reference() is None
    assert sys.unraisablehook is hook


def test_a_signal_to_another_command(inputs: list[Path], tmp_path: Path) -> None:
    """`verify` has nothing to resume; its exit code tells all the same."""
    assert command("prepare", inputs[0], "-o", tmp_path / "o", "--workers", "0").returncode == 0
    fifo = tmp_path / "o" / "manifest.json"
    fifo.unlink()
    os.mkfifo(fifo)  # it waits in there
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen(
            [sys.executable, "-m", "tokenmill", "verify", str(tmp_path / "o")],
            stderr=subprocess.PIPE,
            text=True,
        )
        while not caught(process.pid):
            time.sleep(0.01)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == code, stderr
        assert "stopped by SIG" in stderr
        assert "resume" not in stderr
        assert "Traceback" not in stderr


def test_two_real_ctrl_c_at_a_terminal(inputs: list[Path], tmp_path: Path) -> None:
    """Typed, so that the terminal sends the signals, with the live bar on the screen."""
    slow = tmp_path / "slow.txt"
    slow.write_text("some words here " * 8_000_000)
    output = tmp_path / "it's"
    arguments = ["prepare", str(slow), "-o", str(output), "--encoder", "reference"]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "tokenmill", *arguments])
    try:
        while not (output / ".tokenmill" / "journal").exists():
            time.sleep(0.02)
        time.sleep(1)
        began = time.monotonic()
        os.write(terminal, b"\x03")
        os.write(terminal, b"\x03")
        screen = b""
        with contextlib.suppress(OSError):  # the terminal is closed
            while piece := os.read(terminal, 1000):
                screen += piece
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert time.monotonic() - began < 5
    finally:
        os.close(terminal)
    assert code == 130, screen.decode()
    assert b"Traceback" not in screen
    line = next(line for line in screen.splitlines() if b"resume with: " in line)
    assert shlex.split(line.decode().partition("resume with: ")[2])[3:] == arguments


def caught(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_takes_itself_down_changes_nothing(number: int) -> None:
    """Its handlers are gone by then, and the default one kills."""
    program = (
        "import os, sys\n"
        "class Last:\n"
        f"    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, {number:d})\n"
        "last = Last()\n"
        "sys.argv = ['tokenmill', '--version']\n"
        "from tokenmill.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("tokenmill, version")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_error_names_the_signal() -> None:
    interrupts = Interrupts()
    interrupts.check()
    interrupts.received.append(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped by SIGTERM") as stopped:
        interrupts.check()
    assert stopped.value.exit_code == 143


def test_a_loop_that_catches_every_exception_does_not_swallow_ctrl_c(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert not issubclass(Interrupted, Exception)
    begun: list[str] = []

    def signalled(*_: object, **__: object) -> object:
        send()
        time.sleep(30)
        raise AssertionError("it waited")

    monkeypatch.setattr(make, "find_sources", signalled)

    def loop() -> None:
        for name in ("a", "b"):
            begun.append(name)
            try:
                tokenmill.prepare(inputs, tmp_path / name, workers=0)
            except Exception:
                continue

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert begun == ["a"]


def test_units_that_were_written_before_a_signal_are_durable(
    inputs: list[Path], tmp_path: Path
) -> None:
    class Signalling(Observer):
        def event(self, seconds: float, event: Event) -> None:
            if isinstance(event, UnitDone):
                send()

    with pytest.raises(Interrupted) as stopped:
        tokenmill.prepare(inputs, tmp_path / "o", workers=0, observer=Signalling())
    assert stopped.value.message == "stopped by SIGINT; finished work is kept"
    assert status(tmp_path / "o").stopped["message"] == stopped.value.message
    assert tokenmill.prepare(inputs, tmp_path / "o", workers=0).run["units_resumed"] > 0


def test_before_the_first_unit_is_done_nothing_is_said_to_be_kept(
    inputs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(Interrupted) as stopped:
        tokenmill.prepare(inputs, tmp_path / "o", workers=0, on_plan=lambda _: send())
    assert stopped.value.message == "stopped by SIGINT; no part of the work was finished yet"
