"""`--encoder-check`: which documents the reference encodes again, and what is said about them."""

from __future__ import annotations

from pathlib import Path

from support.checking import (
    encoder,  # noqa: F401
)
from support.commands import interrupted

import tokenmill
from tokenmill.cli.summary import check_line


def test_after_a_resume_all_checks_the_documents_of_this_run_and_says_so(
    tmp_path: Path, large_inputs: list[Path]
) -> None:
    paths = [large_inputs[0], large_inputs[2]]
    interrupted(paths, tmp_path / "o", units=2)
    result = tokenmill.prepare(paths, tmp_path / "o", workers=2, encoder_check="all")
    stats, counts = result.run["encoder"], result.manifest.counts
    assert result.run["units_resumed"] > 0
    done = stats["checked_documents"] + stats["reference_documents"]
    assert 0 < done < counts["rows"]
    assert check_line(result).startswith(f"all {stats['checked_documents']:,} documents that this")
