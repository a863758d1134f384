"""Inputs on web servers and in object stores, and the words for what goes wrong there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.inputs.remote.address import (
    fixed_folder,
    hub_address,
    is_url,
    matcher,
    public_name,
    refuse_credentials,
)

STEPS = st.lists(st.sampled_from(["a", "b", "ab", "a.b", "é"]), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("url", "kind", "repo", "revision", "path"),
    [
        ("hf://datasets/a/b", "dataset", "a/b", "main", ""),
        ("hf://datasets/a/b/x/*.parquet", "dataset", "a/b", "main", "x/*.parquet"),
        ("hf://datasets/a/b@v1/x", "dataset", "a/b", "v1", "x"),
        ("hf://datasets/a/b@refs/convert/parquet/x", "dataset", "a/b", "refs/convert/parquet", "x"),
        ("hf://datasets/a/b@refs%2Fpr%2F7/x", "dataset", "a/b", "refs/pr/7", "x"),
        ("hf://a/b/x.jsonl", "model", "a/b", "main", "x.jsonl"),
        ("https://huggingface.co/datasets/a/b", "dataset", "a/b", "main", ""),
        ("https://huggingface.co/datasets/a/b/tree/main/x", "dataset", "a/b", "main", "x"),
        ("https://hf.co/datasets/a/b/blob/v1/x%20y.txt", "dataset", "a/b", "v1", "x y.txt"),
        ("https://huggingface.co/a/b/resolve/main/x.txt?download=true", "model", "a/b", "main",
         "x.txt"),
    ],
)  # fmt: skip
def test_addresses_of_the_hub(url: str, kind: str, repo: str, revision: str, path: str) -> None:
    found = hub_address(url)
    assert found is not None
    assert (found.kind, found.repo, found.revision, found.path) == (kind, repo, revision, path)


@pytest.mark.parametrize("url", ["hf://", "hf://datasets/a", "hf://x", "hf://datasets//b/c"])
def test_what_is_no_address_of_the_hub_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        hub_address(url)


def test_other_urls_are_not_taken_for_the_hub() -> None:
    assert hub_address("https://host/datasets/a/b/x.parquet") is None
    assert hub_address("s3://datasets/a/b") is None
    assert is_url("s3://a")
    assert not is_url("C:/data")
    assert not is_url("data/x.parquet")
    assert public_name("https://h/x?sig=1") == "https://h/x"
    refuse_credentials("hf://datasets/a/b@main/x")
    with pytest.raises(UsageError):
        refuse_credentials("s3://key:secret@bucket/x")
    with pytest.raises(UsageError, match="holds credentials") as refused:
        refuse_credentials("s3://key:sec/r+et@bucket/x")  # every other key of Amazon's has a slash
    assert "r+et" not in refused.value.message
    for url in ("https://host:8080/a@b", "http://[::1]:80/a@b", "s3://bucket/a:b@c"):
        refuse_credentials(url)
    with pytest.raises(UsageError, match="not a URL"):
        hub_address("https://[x/y.parquet")


@given(
    STEPS,
    st.lists(st.sampled_from(["*", "?", "a", "a*", "[ab]", "**", "*b", "[!a]b"]), max_size=4),
)
def test_patterns_mean_what_they_mean_to_a_shell(steps: list[str], pattern: list[str]) -> None:
    """Against a slow twin that walks both from the left."""
    import fnmatch

    def twin(names: list[str], parts: list[str]) -> bool:
        if not parts:
            return not names
        if parts[0] == "**":
            if len(parts) == 1:
                return True  # whatever is below, and the folder itself
            return any(twin(names[i:], parts[1:]) for i in range(len(names) + 1))
        return (
            bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and twin(names[1:], parts[1:])
        )

    path, text = "/".join(steps), "/".join(pattern)
    if pattern and pattern[-1] == "**":
        return  # names files at any depth; compared by hand below
    assert bool(matcher(text).fullmatch(path)) == (twin(steps, pattern) and bool(pattern))


def test_the_folder_to_list_is_the_part_before_the_first_wildcard() -> None:
    assert fixed_folder("data/x/*.parquet") == "data/x"
    assert fixed_folder("data/*/x.parquet") == "data"
    assert fixed_folder("*.parquet") == ""
    assert fixed_folder("data/x.parquet") == "data"
    assert matcher("a/**").fullmatch("a/b/c")
    assert not matcher("a/*.txt").fullmatch("a/b/c.txt")


def test_two_stars_inside_a_name_are_one() -> None:
    assert matcher("a/**.txt").fullmatch("a/b.txt")
    assert not matcher("a/**.txt").fullmatch("a/b/c.txt")
    assert matcher("[^a].txt").fullmatch("b.txt")
    assert not matcher("[^a].txt").fullmatch("a.txt")
