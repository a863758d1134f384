"""The commands and files of docs/cluster.md: accepted by our parser, and consistent."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from tokenmill.cli.main import cli

PAGE = (Path(__file__).parents[3] / "docs/cluster.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def in_shell(block: str) -> list[list[str]]:
    """The words behind `tokenmill` in each command, also in one that is quoted."""
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        quoted = [one.split() for one in words if one.startswith("tokenmill ")]
        for some in (words, *quoted):
            if "tokenmill" in some:
                found.append(some[some.index("tokenmill") + 1 :])
    return found


def in_files() -> list[tuple[dict[str, Any], list[str]]]:
    """A Kubernetes object, and the words behind `tokenmill` in it."""
    found = []
    for one in (one for block in blocks("yaml") for one in yaml.safe_load_all(block)):
        spec = one["spec"]
        if "entrypoint" in spec:
            words = shlex.split(spec["entrypoint"])
        else:
            words = [str(word) for word in spec["template"]["spec"]["containers"][0]["command"]]
        assert words[0] == "tokenmill"
        found.append((one, words[1:]))
    return found


SHELL = [words for block in blocks("bash") for words in in_shell(block)]
COMMANDS = SHELL + [words for _, words in in_files()]


def parsed(words: list[str]) -> dict[str, Any]:
    """Our own parser, without the command being carried out."""
    chosen = cli.commands[words[0]]
    with chosen.make_context(words[0], words[1:]) as context:
        return context.params


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_page_is_accepted(words: list[str]) -> None:
    parsed(words)
    with pytest.raises(click.UsageError, match="No such option"):
        parsed([*words, "--no-such-option"])


def test_the_page_has_a_command_for_each_way() -> None:
    kinds = {one["kind"] for one, _ in in_files()}
    assert kinds == {"Job", "RayJob"}
    assert [words[0] for words in SHELL if "--part" in words] == ["prepare", "finish"]
    assert sum("--engine" in words for words in COMMANDS) >= 3
    assert sum(words[0] == "finish" for words in COMMANDS) >= 1


def test_arrays_have_as_many_members_as_there_are_parts() -> None:
    slurm = next(block for block in blocks("bash") if "#SBATCH" in block)
    array = re.search(r"--array=0-(\d+)", slurm)
    assert array
    (part,) = [parsed(words)["part"] for words in in_shell(slurm)]
    assert part == f"auto/{int(array[1]) + 1}"
    job, words = next((one, words) for one, words in in_files() if one["kind"] == "Job")
    assert parsed(words)["part"] == f"auto/{job['spec']['completions']}"
    assert job["spec"]["completionMode"] == "Indexed"


def test_every_volume_of_the_job_is_there_and_used() -> None:
    spec = next(one for one, _ in in_files() if one["kind"] == "Job")["spec"]["template"]["spec"]
    mounts = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    assert {one["name"] for one in spec["volumes"]} == set(mounts)
    paths = [word for word in spec["containers"][0]["command"] if str(word).startswith("/")]
    assert all(any(path.startswith(mount) for mount in mounts.values()) for path in paths)


def test_a_ray_job_resumes_and_leaves_a_core_for_its_driver() -> None:
    job, words = next((one, words) for one, words in in_files() if one["kind"] == "RayJob")
    assert job["spec"]["backoffLimit"] > 0
    assert job["spec"]["entrypointNumCpus"] == 1
    assert parsed(words)["engine"] == "ray"
    assert parsed(words)["ray_address"] == "auto"
