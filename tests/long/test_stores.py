"""Inputs on web servers and in object stores, and the words for what goes wrong there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.commands import token_bytes
from support.inputs import write_jsonl, write_parquet
from support.stores import command, env, ok, s3  # noqa: F401

VAL = ("--val", "docs:9")


@pytest.mark.filterwarnings("ignore")
def test_s3_says_what_is_missing_and_which_login_is_needed(
    s3: Any, tmp_path: Path, texts: list[str], env: dict[str, str]
) -> None:
    for url in ("s3://corpus/none.parquet", "s3://corpus/none/*.parquet", "s3://nobody/a.parquet"):
        done = command("prepare", url, "-o", tmp_path / "out", *VAL, env=env)
        assert done.returncode == 2, done.stderr
        assert url in done.stderr
    bare = {k: v for k, v in env.items() if "KEY" not in k}
    bare.update(AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE="/dev/null", HOME=str(tmp_path))
    done = command("prepare", "s3://corpus/a.parquet", "-o", tmp_path / "out", env=bare)
    assert done.returncode == 2, done.stderr
    assert "AWS_ACCESS_KEY_ID" in done.stderr


@pytest.mark.filterwarnings("ignore")
def test_an_object_that_was_replaced_is_another_input(
    s3: Any, tmp_path: Path, texts: list[str], env: dict[str, str]
) -> None:
    body = write_jsonl(tmp_path / "a.jsonl", texts[:30]).read_bytes()
    s3.put_object(Bucket="corpus", Key="a.jsonl", Body=body)
    ok(command("prepare", "s3://corpus/a.jsonl", "-o", tmp_path / "out", *VAL, env=env))
    s3.put_object(Bucket="corpus", Key="a.jsonl", Body=body.replace(b"a", b"b"))
    done = command("prepare", "s3://corpus/a.jsonl", "-o", tmp_path / "out", *VAL, env=env)
    assert done.returncode == 2
    assert "content changed" in done.stderr


@pytest.mark.filterwarnings("ignore")
def test_objects_of_s3_give_the_tokens_of_the_same_files_on_disk(
    s3: Any, tmp_path: Path, texts: list[str], env: dict[str, str]
) -> None:
    local = [write_parquet(tmp_path / f"{i}.parquet", texts[i * 11 :]) for i in range(4)]
    for path in local:
        s3.put_object(Bucket="corpus", Key=f"web/{path.name}", Body=path.read_bytes())
    s3.put_object(Bucket="corpus", Key="web/deep/9.parquet", Body=local[0].read_bytes())
    s3.put_object(Bucket="corpus", Key="web/_SUCCESS", Body=b"")
    ok(command("prepare", *local, "-o", tmp_path / "same", *VAL))
    for i, url in enumerate(["s3://corpus/web/*.parquet", "s3://corpus/web/[0-3].parquet"]):
        out = tmp_path / f"out{i}"
        done = ok(command("prepare", url, "-o", out, *VAL, env=env))
        assert token_bytes(out) == token_bytes(tmp_path / "same")
        assert "verysecret" not in done.stdout + done.stderr
        assert "verysecret" not in (out / "manifest.json").read_text()
        assert "verysecret" not in (out / "run.json").read_text()
    ok(command("prepare", "s3://corpus/web", "-o", tmp_path / "all", *VAL, env=env))
    manifest = (tmp_path / "all" / "manifest.json").read_text()
    assert "s3://corpus/web/deep/9.parquet" in manifest
    assert "_SUCCESS" not in manifest
    gone = tmp_path / "not-kept"
    ok(command("prepare", url, "-o", gone, "--no-keep-downloads", *VAL, env=env))
    assert token_bytes(gone) == token_bytes(tmp_path / "same")
