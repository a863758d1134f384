"""A driver in a process of its own, on a small cluster that ends with it; and what it opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from reliability.corpus import documents, write_arrow, write_jsonl
from reliability.r19_cluster import options_of, write_corpus

# In a process of its own: Ray leaves threads and handlers behind. The cluster is small, and ends
# with the process; its start takes most of the time. Every way to open an input is watched: those
# of Python by an audit hook, those of Arrow where the readers call them.
ON_RAY = """
import contextlib, json, os, signal, sys
import pyarrow, pyarrow.parquet, ray
from tokenmill import pipeline
from tokenmill.cli.main import cli
from tokenmill.engines.events import UnitDone
from tokenmill.engines.observer import Observer
from tokenmill.errors import Interrupted
steps, inputs, options, folder = json.loads(sys.argv[1])
opened = []

def note(path):
    if isinstance(path, (str, bytes)) and os.fsdecode(path).startswith(
        (folder + "/in/", folder + "/web/.tokenmill/downloads/")
    ):
        opened.append(os.fsdecode(path))

def watched(kind):
    def opens(path, *args, **options):
        note(path)
        return kind(path, *args, **options)
    return opens

class StopAfterOne(Observer):
    def event(self, seconds, event):
        if isinstance(event, UnitDone):
            os.kill(os.getpid(), signal.SIGINT)

pyarrow.OSFile = watched(pyarrow.OSFile)
pyarrow.parquet.ParquetFile = watched(pyarrow.parquet.ParquetFile)
sys.addaudithook(lambda name, args: note(args[0]) if name == "open" else None)
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
         object_store_memory=80_000_000, logging_level="ERROR")
if "stop" in steps:
    with contextlib.suppress(Interrupted):
        pipeline.prepare(inputs, folder + "/out", engine="ray", observer=StopAfterOne(), **options)
    assert not os.path.exists(folder + "/out/manifest.json"), "it was not stopped"
if "prepare" in steps:
    pipeline.prepare(inputs, folder + "/out", engine="ray", **options)
if "export" in steps:
    cli.main(["export", folder + "/out", "-o", folder + "/other", "--format", "megatron",
              "--engine", "ray", "--quiet"], standalone_mode=False)
if "fineweb" in steps:
    cli.main(["fineweb", "--version", "10B", "-o", folder + "/web", "--val", "docs:9",
              "--engine", "ray", "--quiet"], standalone_mode=False)
ray.shutdown()
seen = list(opened)
open(inputs[0]).close()
print("\\n" + json.dumps([seen, opened[len(seen):]]))
"""


def write_all_kinds(folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """Inputs of every kind that is opened in a way of its own, and the options of a job."""
    write_corpus(folder, 5, 2)
    write_jsonl(folder / "c.jsonl.gz", documents(20, "c"))
    write_arrow(folder / "d.arrow", documents(40, "d"))
    (folder / "e.txt").write_text("\n".join(documents(9, "e")))
    return options_of("llmc", folder)


def opened_by_driver(
    steps: list[str],
    inputs: list[Path],
    options: dict[str, Any],
    folder: Path,
    env: dict[str, str] | None = None,
) -> list[str]:
    """Carry out steps on a cluster: which inputs its driver has opened."""
    told = json.dumps([steps, list(map(str, inputs)), options, str(folder)])
    command = [sys.executable, "-c", ON_RAY, told]
    done = subprocess.run(command, env=env or dict(os.environ), check=True, stdout=subprocess.PIPE)
    opened, by_the_test = json.loads(done.stdout.splitlines()[-1])
    assert by_the_test == [str(inputs[0])], "the test does not see what the driver opens"
    return list(opened)
