"""`tokenmill doctor`: the machine, and why a command's process died."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.cases import quick
from support.commands import command, in_process
from support.doctor import SECRET, by_name, why

from tokenmill.doctor import machine as doctor
from tokenmill.doctor import postmortem, watching
from tokenmill.doctor.postmortem import Postmortem, WatchedProcess, cause_of_death, report_lines
from tokenmill.errors import UsageError
from tokenmill.system import limits
from tokenmill.system import proc as processes_seen
from tokenmill.system.disk import trial_write
from tokenmill.system.limits import CgroupMemory, cgroup_cores, cgroup_memory
from tokenmill.system.proc import KernelLog, Stat, oom_kills, read_stat


def test_the_machine_is_described(tmp_path: Path) -> None:
    done = in_process("doctor", "--offline", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for name in ("cores:", "memory:", "disk:", "writing:", "/dev/shm:", "start method:",
                 "versions:", "exactness:", "Hub:", "Hub login:"):  # fmt: skip
        assert name in done.stdout, name
    assert "all ids equal to tiktoken's" in done.stdout
    assert "forkserver" in done.stdout
    assert "MB/s with fsync" in done.stdout
    assert not list(tmp_path.iterdir())  # the trial leaves nothing


def test_the_machine_as_json() -> None:
    checks = json.loads(in_process("doctor", "--offline", "--json").stdout)
    assert {check["level"] for check in checks} <= {"ok", "warn", "bad"}
    assert "writing" not in {check["name"] for check in checks}  # no folder was given


class _Hub(BaseHTTPRequestHandler):
    status = 200
    seen: list[Any]

    def do_HEAD(self) -> None:
        type(self).seen.append(dict(self.headers))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def hub(status: int) -> Any:
    _Hub.status, _Hub.seen = status, []
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("status", [200, 403])
def test_a_hub_that_answers_is_reachable_and_gets_no_token(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with hub(status) as endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        checks = by_name(doctor._hub(True))
        assert checks["Hub"].level == "ok"
        assert "answers" in checks["Hub"].found
    assert len(_Hub.seen) == 1
    assert SECRET not in str(_Hub.seen)


def test_a_hub_that_does_not_answer_is_said_and_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://user:{SECRET}@127.0.0.1:{port}")
        check = by_name(doctor._hub(True))["Hub"]
    assert check.level == "warn"
    assert "cannot be reached" in check.found
    assert SECRET not in check.found
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in by_name(doctor._hub(True))["Hub"].found


def test_an_encoder_that_errs_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "wrong_texts", lambda tok: ["it's"] if tok.name == "gpt2" else [])
    check = doctor._exactness()
    assert check.level == "bad"
    assert "gpt2: other ids than tiktoken's for \"it's\"" in check.found


def test_the_sample_would_find_a_wrong_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmill import Tokenizer

    tok = Tokenizer("gpt2")
    assert doctor.wrong_texts(tok) == []
    monkeypatch.setattr(Tokenizer, "encode_ordinary", lambda *_: [1])
    assert len(doctor.wrong_texts(tok)) == len(doctor.SAMPLE)


def test_a_folder_that_cannot_be_written_is_bad(tmp_path: Path) -> None:
    checks = by_name(doctor.examine(str(tmp_path / "missing"), network=False))
    assert checks["disk"].level == checks["writing"].level == "bad"
    done = in_process("doctor", "--offline", "--directory", str(tmp_path / "missing"))
    assert done.returncode == 1


def test_a_trial_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmill.errors import StorageError
    from tokenmill.system import disk as steps

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steps, "write_all", full)
    with pytest.raises(StorageError, match="No space left"):
        trial_write(tmp_path)
    assert not list(tmp_path.iterdir())


GROUPS = {
    "version 2": {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.max": "4000000000\n",
        "sys/fs/cgroup/a/memory.current": "1000000000\n",
        "sys/fs/cgroup/a/memory.events": "low 0\noom 3\noom_kill 2\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/cpu.max": "300000 100000\n",
    },
    "version 1": {
        "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "4000000000\n",
        "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1000000000\n",
        "sys/fs/cgroup/memory/x/memory.oom_control": "under_oom 0\noom_kill 2\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "75000\n",
        "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "50000\n",
    },
    # In a container the path is the host's, and the files are those of the root.
    "a container of version 1": {
        "proc/self/cgroup": "4:memory:/docker/x\n3:cpu:/docker/x\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000000\n",
        "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 2\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    },
}


@pytest.mark.parametrize("groups", GROUPS)
def test_limits_and_kills_of_control_groups_are_read(groups: str, tmp_path: Path) -> None:
    for name, content in GROUPS[groups].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "proc" / "vmstat").write_text("pgfault 1\noom_kill 5\n")
    assert cgroup_memory(str(tmp_path)) == (4 * 10**9, 10**9, 2)
    assert cgroup_cores(str(tmp_path)) == 1.5
    assert sorted(oom_kills(str(tmp_path)).values()) == [2, 5]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_memory(str(tmp_path)) == (-1, -1, 0)
    assert cgroup_cores(str(tmp_path)) == 0


def test_memory_and_workers_keep_within_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "cgroup_memory", lambda: CgroupMemory(10**9, 0, 0))
    monkeypatch.setattr(limits, "cgroup_cores", lambda: 0.5)
    assert limits.memory_allowed() == 10**9
    assert limits.available_cores() == 1
    monkeypatch.setattr(limits, "cgroup_memory", lambda: CgroupMemory(-1, -1, 0))
    monkeypatch.setattr(limits, "cgroup_cores", lambda: 0.0)
    assert limits.memory_allowed() > 10**9
    assert limits.available_cores() == len(os.sched_getaffinity(0))


def test_a_worker_that_ends_with_0_while_the_command_fails_is_pointed_at(tmp_path: Path) -> None:
    done = why(tmp_path, "os._exit(0)", code=9)
    assert done.returncode == 9
    assert "first to end: process" in done.stderr
    assert "takes for the end of work" in done.stderr


def test_an_ordinary_exception_is_not_blamed_on_workers_that_ended_well(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def tokenize(row):\n"
        "    return {}['ids']\n"
        "if __name__ == '__main__':\n"
        "    print('the output of the command')\n"
        "    with ProcessPoolExecutor(2) as pool:\n"
        "        list(pool.map(tokenize, range(4)))\n"
    )
    done = command("doctor", "--why-died", "--", sys.executable, script)
    assert done.returncode == 1
    told = done.stderr.partition("tokenmill doctor:")[2]
    assert "exit code 1 is how Python ends after an ordinary exception" in told
    assert "exit code 0" not in told
    assert done.stdout == "the output of the command\n"
    as_json = command("doctor", "--why-died", "--json", "--", sys.executable, script)
    assert json.loads(as_json.stdout)["dead"] == []
    assert "the output of the command\n" in as_json.stderr


def test_a_command_that_ends_well_has_nobody_dead(tmp_path: Path) -> None:
    done = why(tmp_path, "pass")
    assert done.returncode == 0
    assert "the command ended with exit code 0" in done.stderr
    assert "die" not in done.stderr.partition("tokenmill doctor:")[2]


def test_a_command_that_is_killed_itself_is_explained() -> None:
    done = command("doctor", "--why-died", "--", "sh", "-c", "sleep 0.3; kill -9 $$")
    assert done.returncode == 137
    assert "the command ended with SIGKILL" in done.stderr
    assert "the command itself: process" in done.stderr
    as_json = command("doctor", "--why-died", "--json", "--", "sh", "-c", "sleep 0.3; kill -9 $$")
    assert "SIGKILL" in json.loads(as_json.stdout)["dead"][-1]["how"]


def test_datasets_abrupt_death_is_explained(tmp_path: Path) -> None:
    """The very message that brings people here."""
    script = tmp_path / "train.py"
    script.write_text(
        "import datasets, os, signal, time\n"
        "def tokenize(row):\n"
        "    if row['n'] == 30:\n"
        "        time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return {'ids': [1]}\n"
        "if __name__ == '__main__':\n"
        "    ds = datasets.Dataset.from_dict({'n': list(range(40))})\n"
        "    ds.map(tokenize, num_proc=2)\n"
    )
    done = command("doctor", "--why-died", "--json", "--", sys.executable, script)
    assert "abruptly died" in done.stderr
    found = json.loads(done.stdout)
    assert found["code"] == 1
    assert found["dead"][0]["code"] == -9
    assert "SIGKILL" in found["dead"][0]["how"]
    assert len(found["dead"][0]["memory"]) >= 2


def seen(ended_with: int | None, **values: Any) -> WatchedProcess:
    one = WatchedProcess(2**22 + 1, Stat("S", 1, 1, 0, 0), available=20 * 10**9)
    one.status, one.ended = ended_with, 1.0
    one.samples = [(0.0, 10**8), (1.0, 10**9)]
    for name, value in values.items():
        setattr(one, name, value)
    return one


def test_a_sigkill_is_held_against_what_the_kernel_counts_and_logs() -> None:
    limit = 24 * 10**9
    assert "not for lack of memory" in cause_of_death(seen(9), limit)
    assert "counter oom_kill rose" in cause_of_death(seen(9, oom_kills=1), limit)
    line = "Out of memory: Killed process 4711 (python) total-vm:9kB"
    assert f"kernel log: {line}" in cause_of_death(seen(9, log=[line]), limit)
    assert "probably by the out-of-memory killer" in cause_of_death(seen(9, available=10**9), limit)
    assert "probably by the out-of-memory killer" in cause_of_death(seen(9), 10**9 + 10**7)
    assert "did not tell how" in cause_of_death(seen(None), limit)
    crash = "python[4711]: segfault at 0 ip 0 sp 0 error 4"
    assert crash in cause_of_death(seen(11, log=[crash]), limit)


def test_what_a_pool_does_to_the_others_is_not_the_cause() -> None:
    first, second = seen(11, ended=1.0), seen(15, ended=2.0)
    command = seen(0)
    lines = report_lines(Postmortem("x", "ended", 1, 3.0, [command, second, first], 24 * 10**9))
    told = "\n".join(lines)
    assert "SIGSEGV" in told.split("also:")[0]
    assert "(SIGTERM)" in told.split("also:")[1]


def test_the_kernels_log_is_read_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("6,1,1,-;Killed process 1 (old)\n")
    log = KernelLog(str(path))
    with path.open("a") as file:
        file.write("4,2,2,-;Killed process 2 (python)\n")
    assert log.lines() == ["Killed process 2 (python)"]
    assert log.lines() == []
    log.close()
    assert KernelLog(str(tmp_path / "missing")).lines() == []


def test_memory_of_a_long_life_stays_a_short_list() -> None:
    one = seen(0)
    for i in range(100_000):
        one.sample(i / 5, i, 1)
    assert len(one.samples) <= postmortem.MOST_SAMPLES
    assert one.samples[-1][0] > 19_000
    assert one.peak == 99_999


@pytest.mark.parametrize(("state", "resident"), [("Z", 0), ("R", 0)])
def test_a_process_without_memory_when_it_is_first_seen_has_no_sample(
    state: str, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends has given its memory back; one between fork and exec has none yet."""
    stats = {2**22 + 1: Stat(state, 1, 1, resident, 0)}
    monkeypatch.setattr(watching, "descendants", lambda root: dict(stats))
    child = subprocess.Popen(["true"])
    child.wait()
    watcher = watching._Watcher(child, lambda _: None)
    watcher._look()
    (one,) = watcher.seen.values()
    one.status, one.ended = signal.SIGKILL, 1.0
    told = report_lines(Postmortem("x", "ended", 1, 3.0, [seen(0), one], 24 * 10**9))
    assert "    in time: not seen alive" in told
    assert not [line for line in told if "0 bytes" in line]
    assert one.available > 0
    stats[2**22 + 1] = Stat("R", 1, 1, 10**6, 0)
    watcher._sampled = -1.0
    watcher._look()
    assert [resident for _, resident in one.samples] == [10**6]
    watcher.close()


def test_wrong_uses_are_said() -> None:
    for arguments, said in (
        (("--why-died",), "no command"),
        (("--why-died", "--", "no-such-command-anywhere"), "cannot be run"),
        (("--patch",), "of which script"),
        (("a.py:f", "b.py:g"), "one function at a time"),
    ):
        done = command("doctor", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_signal_ends_the_command_too(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "doctor", "--why-died", "--", sys.executable, "-c",
         code],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


POOL_THAT_HANGS = """
import multiprocessing, os, signal, sys, time
def work(i):
    with open(f"{sys.argv[1]}/{os.getpid()}", "w"):
        pass
    time.sleep(2 if i else 60)
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(2), chunksize=1)  # waits for ever
"""


@pytest.mark.parametrize("number", quick([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_a_pool_that_waits_for_a_dead_worker_is_told_of_and_explained_when_it_is_stopped(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Nothing else ends it. And its other workers do not outlive it."""
    (tmp_path / "pids").mkdir()
    (tmp_path / "x.py").write_text(POOL_THAT_HANGS)
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "doctor", "--why-died", "--", sys.executable,
         str(tmp_path / "x.py"), str(tmp_path / "pids")],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    limit = threading.Timer(60, process.terminate)
    limit.start()
    while "the command still runs after" not in (line := process.stderr.readline()):
        assert line, "it ended"
    limit.cancel()
    process.send_signal(number)
    _, told = process.communicate(timeout=20)  # the workers hold our stderr: they have ended too
    assert process.returncode == 128 + number
    assert "the command was stopped after" in told
    assert "how:     SIGKILL, not for lack of memory" in told
    assert "num_proc" not in told  # which would not help
    workers = [read_stat(int(path.name)) for path in (tmp_path / "pids").iterdir()]
    assert len(workers) >= 2
    assert not [stat for stat in workers if stat is not None and stat.state not in "ZX"]


def test_a_command_of_many_processes_does_not_use_up_our_files() -> None:
    watch = f"{sys.executable} -m tokenmill doctor --why-died -- sh -c"
    script = f"ulimit -n 40; exec {watch} 'for i in $(seq 50); do sleep 0.06; done; exit 3'"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "the command ended with exit code 3" in done.stderr


def test_advice_fits_the_end() -> None:
    limit = 24 * 10**9
    assert "Fatal Python error" in postmortem.death_advice(seen(signal.SIGSEGV), limit)
    assert postmortem.death_advice(seen(signal.SIGPIPE), limit) == ""
    assert "num_proc" in postmortem.death_advice(seen(signal.SIGKILL, oom_kills=1), limit)
    assert "ask who" in postmortem.death_advice(seen(signal.SIGKILL), limit)


def test_the_kernels_news_are_for_all_that_ended_then_and_by_its_number_for_one() -> None:
    lines = [f"Out of memory: Killed process {pid} (python)" for pid in (4711, 2**22 + 1, 4712)]
    assert lines[1] in cause_of_death(seen(9, log=lines), 24 * 10**9)
    assert lines[0] in cause_of_death(seen(9, log=lines[::2]), 24 * 10**9)  # as in a container

    class Log:
        def lines(self) -> list[str]:
            return [lines.pop()] if lines else []

    child = subprocess.Popen(["true"])
    child.wait()
    watcher = watching._Watcher(child, lambda _: None)
    watcher.log = Log()  # type: ignore[assignment]
    bystander, victim = seen(0), seen(9)
    for one in (bystander, victim):  # another process ends first, and the news are read then
        watcher._end(one)
    assert len(bystander.log) == 1
    assert len(victim.log) == 2


def test_processes_are_found_with_and_without_the_kernels_lists_of_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 30 & echo; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        try:
            for listed in (True, False):
                with monkeypatch.context() as patched:
                    patched.setattr(os.path, "exists", lambda _, listed=listed: listed)
                    found = processes_seen.descendants(os.getpid())
                assert found[os.getpid()].state == "R"
                assert shell.pid in found
                assert [s.parent for s in found.values()].count(shell.pid) == 1
        finally:
            for pid in list(processes_seen.descendants(shell.pid))[::-1]:
                os.kill(pid, signal.SIGKILL)


def test_where_there_is_no_proc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    with pytest.raises(UsageError, match="works on Linux only"):
        watching.watch(["true"])


def test_a_helper_that_ends_with_1_is_not_taken_for_the_one_that_died() -> None:
    script = "sh -c 'sleep 0.3; exit 1'; sh -c 'sleep 0.3; kill -9 $$'; exit 3"
    done = command("doctor", "--why-died", "--", "sh", "-c", script)
    told = done.stdout + done.stderr
    assert "SIGKILL" in told.split("also:")[0].split("first to die")[1]
