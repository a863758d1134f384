"""What a trainer's format has to say: names, header, defaults, limits, and how to load it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tokenmill.config import Cut, Eot, PlanSettings


class Format(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    summary: str
    eot: Eot
    cut: Cut
    val: str
    sharded: bool
    header_bytes: Callable[[PlanSettings], int]
    header: Callable[[PlanSettings, int], bytes]
    file_name: Callable[[PlanSettings, str, int], str]  # split, number from 0 within the split
    trainer_glob: Callable[[PlanSettings], tuple[str, ...]]  # what the trainer would pick up
    max_shard_tokens: Callable[[PlanSettings], int | None]
    min_shard_tokens: int = 0  # a shorter file makes the trainer fail; 0: it does not
    load_lines: Callable[[PlanSettings, str, str], list[str]]  # folder, file: how to read it
