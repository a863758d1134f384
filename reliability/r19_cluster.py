"""R19: a Ray cluster of three nodes whose workers, nodes, head and driver are killed; and jobs in
parts, of `prepare` and of `finish`, that run twice, at once, out of order, and are killed. The
bytes are those of one machine."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from reliability.corpus import dataset_bytes, documents, write_jsonl, write_parquet
from reliability.scorecard import Check

ID = "R19"
PROMISE = "more than one machine"
MARK = "workers, nodes, head and driver killed; parts twice, at once, killed: the bytes of one run"
PARTS = 16
FINISH_PARTS = 3
JOBS: dict[str, dict[str, Any]] = {
    "llmc": {"format": "llmc", "shard_tokens": 7000, "val": "docs:9"},
    "nanogpt": {"format": "nanogpt", "val": 0.1},
    "mds": {"format": "mds", "val": 0.1},
    "shuffled": {"format": "llmc", "shard_tokens": 7000, "val": "docs:9", "shuffle": True},
    "mixed": {"format": "llmc", "shard_tokens": 7000, "val": 0.1, "shuffle": True},
}
RAY_CASES = ("same", "workers", "nodes", "driver", "stopped", "head")
# How the command ends if that is done to it. The same command then goes on.
ENDS = {"driver": -signal.SIGKILL, "stopped": 128 + signal.SIGTERM, "head": 1}
TOLD = {"stopped": "finished work is kept", "head": "the head of the Ray cluster has not answered"}
COMMON: dict[str, Any] = {"name": "x", "on_bad_row": "quarantine", "encoder_check": "none"}
KNOBS = {"LEASE_BYTES": "3000", "RANGE_BYTES": "20000", "MAX_RUNS": "4", "MAKE_BYTES": "1"}
MIX = """
tokens = 9000
[source.some]
inputs = ["a.parquet"]
weight = 0.4
[source.other]
inputs = ["b*.jsonl"]
weight = 0.6
max_epochs = 90
"""


def write_corpus(folder: Path, files: int, size: int) -> None:
    folder.mkdir(parents=True)
    write_parquet(folder / "a.parquet", documents(60, "a"), rows=8)
    for number in range(files):
        texts = [text * size for text in documents(12, f"b{number}")]
        path = write_jsonl(folder / f"b{number:02}.jsonl", texts)
        if number == 3:
            path.write_bytes(path.read_bytes() + b'{"text": 17}\n')
    (folder / "mix.toml").write_text(MIX)


def options_of(job: str, folder: Path) -> tuple[list[Path], dict[str, Any]]:
    if job == "mixed":
        return [], {**COMMON, **JOBS[job], "mix": folder / "mix.toml"}
    inputs = sorted(path for path in folder.iterdir() if path.suffix != ".toml")
    return inputs, {**COMMON, **JOBS[job]}


def run(check: Check) -> str:
    names = [f"parts {job} {n}" for job in JOBS for n in range(check.scale(4, 1))]
    names += [f"finish {job} {n}" for job in JOBS for n in range(check.scale(4, 1))]
    names += [f"ray {case} {n}" for case in RAY_CASES for n in range(check.scale(2, 1))]
    if check.fast and not check.only:  # the start of a cluster takes seconds
        names = ["parts llmc 0", "parts shuffled 0", "finish llmc 0", "ray workers 0"]
    check.processes = 1

    def one(name: str, folder: Path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "reliability.r19_cluster", name, str(folder), str(check.seed)],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, **{f"TOKENMILL_{key}": value for key, value in KNOBS.items()}},
        )
        assert done.returncode == 0, done.stderr[-2500:]
        return name.rpartition(" ")[0].partition(" ")[0]

    check.each(names, one, seconds=1000)
    done = check.outcomes
    return (
        f"{done['parts']} jobs in {PARTS} parts, {done['finish']} finished in {FINISH_PARTS}, "
        f"{done['ray']} on Ray: "
        f"{len(check.failures)} failures"
    )


# --- one case, in a process of its own -------------------------------------------------------


def expected(job: str, corpus: Path, output: Path) -> dict[str, bytes]:
    from tokenmill import pipeline

    inputs, options = options_of(job, corpus)
    pipeline.prepare(inputs, output, workers=0, **options)
    return dataset_bytes(output)


def compare(found: Path, wanted: dict[str, bytes]) -> None:
    here = dataset_bytes(found)
    differing = [name for name in here.keys() | wanted.keys() if here.get(name) != wanted.get(name)]
    assert not differing, f"not what one machine makes: {differing[:5]}"
    left = [path.name for path in found.iterdir() if path.name.startswith(".")]
    assert not left, f"left over: {left}"


def parts_case(job: str, folder: Path, rng: random.Random) -> None:
    from tokenmill import finishing, pipeline
    from tokenmill.errors import RefusedError

    write_corpus(folder / "in", 10, 2)
    wanted = expected(job, folder / "in", folder / "one")
    inputs, options = options_of(job, folder / "in")

    def part(number: int) -> None:
        given = {**options, "part": f"{number}/{PARTS}", "workers": 0}
        pipeline.prepare(inputs, folder / "out", **given)

    missing = 0  # the first lease has a segment for sure
    order = [*rng.sample(range(1, PARTS), PARTS - 1), missing]
    fork = multiprocessing.get_context("fork")
    turns = [*order[:-1], *rng.sample(order[:-1], 4)]
    again: list[int] = []
    for first, second in zip(turns[::2], turns[1::2], strict=False):
        pair = {number: fork.Process(target=part, args=(number,)) for number in (first, second)}
        for process in pair.values():
            process.start()
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.4)
            pair[first].kill()
        for number, process in pair.items():
            process.join(300)
            if process.exitcode:
                assert number == first, f"part {number} ended with {process.exitcode}"
                again.append(number)
    done = {number for pair in zip(turns[::2], turns[1::2], strict=False) for number in pair}
    for number in [*again, *(set(order[:-1]) - done)]:
        part(number)
    try:
        finishing.finish(folder / "out", workers=0)
    except RefusedError as error:
        assert f" {missing} of {PARTS}" in error.hint, error.hint
    else:
        raise AssertionError(f"finish did not miss part {missing}")
    part(missing)
    finishing.finish(folder / "out", workers=0)
    compare(folder / "out", wanted)


def finish_case(job: str, folder: Path, rng: random.Random) -> None:
    """Files that parts of `finish` make: killed, twice, two at once, and some that none makes."""
    from tokenmill import finishing, pipeline

    write_corpus(folder / "in", 10, 2)
    wanted = expected(job, folder / "in", folder / "one")
    inputs, options = options_of(job, folder / "in")
    output = folder / "out"
    pipeline.prepare(inputs, output, workers=0, part="0/1", **options)

    def part(number: int) -> None:
        finishing.finish(output, workers=0, part=f"{number}/{FINISH_PARTS}")

    fork = multiprocessing.get_context("fork")
    for turn in range(4):
        pair = [fork.Process(target=part, args=(rng.randrange(FINISH_PARTS),)) for _ in range(2)]
        for process in pair:
            process.start()
        if turn < 2:
            time.sleep(rng.random())
            pair[0].kill()
        for process in pair:
            process.join(300)
            allowed = (0, -signal.SIGKILL) if turn < 2 and process is pair[0] else (0,)
            assert process.exitcode in allowed, f"a part of finish ended with {process.exitcode}"
    assert not (output / "manifest.json").exists(), "a reader sees half a dataset"
    made = len(list((output / ".tokenmill/files/made-by-parts").iterdir()))
    assert made, "no part has recorded a file"
    finishing.finish(output, workers=0)
    compare(output, wanted)


class Nodes:
    """A cluster of three nodes on this machine, of our own."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.others = [self.cluster.add_node(num_cpus=1) for _ in range(2)]

    def workers(self) -> list[Any]:
        """Processes below the nodes of this cluster that encode."""
        import psutil  # type: ignore[import-untyped]

        found = []
        for node in self.cluster.list_all_nodes():
            for started in node.all_processes.get("raylet", ()):
                for process in psutil.Process(started.process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):  # it has just ended
                        told = " ".join(process.cmdline())
                        if "WorkerHolder" in told or "spawn_main" in told:
                            found.append(process)
        return found

    def kill_head(self) -> None:
        self.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    def close(self) -> None:
        """Also without a head: then nobody can be asked which nodes there are."""
        for node in self.cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        self.cluster.worker_nodes, self.cluster.head_node = set(), None


def start_job(inputs: list[Path], options: dict[str, Any], output: Path, address: str) -> Any:
    words = [*map(str, inputs), "-o", str(output), "--engine", "ray", "--ray-address", address]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        words += [option] if value is True else [option, str(value)]
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "prepare", *words, "--quiet"], stderr=subprocess.PIPE
    )


def ended(process: Any) -> tuple[int, str]:
    _, told = process.communicate(timeout=300)
    if process.returncode not in (0, 4, -signal.SIGKILL):
        sys.stderr.write(told.decode()[-2000:])
    return int(process.returncode), told.decode()


def wait_for_units(output: Path, count: int, process: Any) -> None:
    units = output / ".tokenmill/units"
    while process.poll() is None and (not units.exists() or len(list(units.iterdir())) < count):
        time.sleep(0.02)


def ray_case(case: str, folder: Path, rng: random.Random) -> None:
    jobs = list(JOBS) if case == "same" else [rng.choice(["llmc", "shuffled"])]
    slow = {} if case == "same" else {"encoder": "reference"}
    write_corpus(folder / "in", 30, 2 if case == "same" else 40)
    nodes = Nodes()
    try:
        for job in jobs:
            output, one = folder / f"out {job}", folder / f"one {job}"
            wanted = expected(job, folder / "in", one)
            inputs, options = options_of(job, folder / "in")
            again = [*inputs], {**options, **slow}, output
            process = start_job(*again, nodes.cluster.address)
            if case != "same":
                wait_for_units(output, rng.randint(1, 8), process)
            if case == "workers":
                for _ in range(4):
                    alive = nodes.workers()
                    if alive and process.poll() is None:
                        rng.choice(alive).kill()
                    time.sleep(rng.random())
            elif case == "nodes":
                for _ in range(2):
                    nodes.cluster.remove_node(nodes.others.pop(0), allow_graceful=False)
                    nodes.others.append(nodes.cluster.add_node(num_cpus=1))
            elif case == "driver":
                process.send_signal(signal.SIGKILL)
            elif case == "stopped":
                process.send_signal(signal.SIGTERM)
            elif case == "head":
                nodes.kill_head()
            code, told = ended(process)
            if case in ENDS and code not in (0, 4):
                assert (code, TOLD.get(case, "") in told) == (ENDS[case], True), (code, told)
                assert not (output / "manifest.json").exists(), "a reader sees half a dataset"
                recorded = len(list((output / ".tokenmill/records").glob("*")))
                if case == "head":
                    nodes.close()
                    nodes = Nodes()
                else:
                    nodes.cluster.remove_node(nodes.others.pop(), allow_graceful=False)
                code, _ = ended(start_job(*again, nodes.cluster.address))
                done = json.loads((output / "run.json").read_text())
                assert done["units_resumed"] >= recorded, "recorded units were done again"
            assert code == 4, f"{job} ended with {code}"  # a row is quarantined
            compare(output, wanted)
    finally:
        nodes.close()


def main(name: str, folder: str, seed: str) -> None:
    kind, what, _ = name.split()
    rng = random.Random(f"{seed} {name}")
    cases = {"parts": parts_case, "finish": finish_case, "ray": ray_case}
    cases[kind](what, Path(folder), rng)


if __name__ == "__main__":
    main(*sys.argv[1:])
