"""Settings on disk: flat for the first format, as the first version wrote them; `more` for others.

Old manifests and unfinished jobs are read by it, and checksums of manifests hang on the order.
"""

from __future__ import annotations

import msgspec
import pytest

from tokenmill.planning.options import Options, plan_settings
from tokenmill.settings import Layout, PlanSettings

ON_DISK = [
    "text_column", "text_separator", "may_cut", "tokenizer", "tokenizer_sha256", "pattern",
    "eot_id", "bos_id", "vocab_size", "format", "dtype", "eot", "cut", "shard_tokens",
    "min_shard_tokens", "last_shard", "compression", "more", "val", "seed", "name", "drop_empty",
    "min_tokens", "max_tokens", "limit_docs", "limit_tokens",
]  # fmt: skip


def settings_for(format: str) -> PlanSettings:
    return plan_settings(Options(format=format, seed=7, min_tokens=2, name="n"), "out")


@pytest.mark.parametrize("format", ["nanogpt", "llmc,megatron", "hf,nanogpt,mds"])
def test_settings_come_back_from_disk_as_they_were(format: str) -> None:
    settings = settings_for(format)
    stored = settings.to_dict()
    assert list(stored) == ON_DISK
    assert PlanSettings.from_dict(stored) == settings
    assert PlanSettings.from_dict(msgspec.json.decode(msgspec.json.encode(stored))) == settings
    assert {name: stored[name] for name in Layout.__struct_fields__} == msgspec.to_builtins(
        settings.first
    )
    assert stored["more"] == [msgspec.to_builtins(layout) for layout in settings.layouts[1:]]


def test_settings_of_the_first_version_have_one_layout() -> None:
    """Without `more` and the fields that came later."""
    later = ("more", "min_shard_tokens", "last_shard", "compression", "bos_id", "pattern")
    stored = settings_for("llmc").to_dict()
    old = {name: value for name, value in stored.items() if name not in later}
    assert PlanSettings.from_dict(old) == settings_for("llmc")


def test_what_is_missing_is_said() -> None:
    stored = settings_for("llmc").to_dict()
    for name in ("dtype", "tokenizer"):
        with pytest.raises(msgspec.ValidationError, match=name):
            PlanSettings.from_dict({key: stored[key] for key in stored if key != name})


def test_a_folder_for_each_format_where_there_are_several() -> None:
    one, two = settings_for("llmc"), settings_for("llmc,mds")
    assert [one.folder_of(layout) for layout in one.layouts] == [""]
    assert [two.folder_of(layout) for layout in two.layouts] == ["llmc/", "mds/"]
