"""Folders and names that come from somebody else, and what must not be printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliability.r17_security import (
    PLACES,
    Scene,
    planted_link,
)


@pytest.mark.parametrize(
    "where", [".tokenmill", ".tokenmill/files", ".tokenmill/lock", "index", ".manifest.json.tmp"]
)
def test_nothing_is_written_or_removed_through_a_link(where: str, tmp_path: Path) -> None:
    planted_link(Scene(tmp_path), where)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "tokenizer"])
def test_a_name_that_leads_out_of_the_folder_is_not_followed(place: str, tmp_path: Path) -> None:
    for ups in (1, 3):  # from the output folder, and from the files in its work folder
        folder = tmp_path / str(ups)
        folder.mkdir()
        PLACES[place](Scene(folder), "../" * ups + "outside/victim")
