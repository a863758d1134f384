"""Settings and sources to a plan: pure, small, the same everywhere.

A plan is the settings, the sources and the rule by which sources are cut; it holds no list of
units, so that a job of a million units has a small plan (`inputs/segments.py` cuts the sources).
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import xxhash

from tokenmill.amounts import parse_count
from tokenmill.errors import warning
from tokenmill.formats import get_format
from tokenmill.inputs.segments import cut_rule
from tokenmill.inputs.source import Source
from tokenmill.settings import Layout, PlanSettings, Val
from tokenmill.tokens.order import order_rule

SORTED_RUNS = 2  # the layout of files of sorted documents: units of another one are encoded again


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    settings: PlanSettings
    sources: tuple[Source, ...]
    revisions: dict[str, str] = {}  # of the Hub, as asked for -> commit

    def to_dict(self) -> dict[str, Any]:
        """What is bound to an output: nothing of this machine, this run or this moment."""
        plan = {
            "cut_rule": cut_rule() + (order_rule() if self.settings.by_key else []),
            "settings": self.settings.to_dict(),
            "sources": [source.identity() for source in self.sources],
        }
        return plan if not self.revisions else {**plan, "revisions": self.revisions}

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.to_dict())

    @property
    def work_fingerprint(self) -> str:
        """Covers what decides how inputs are encoded. The amounts of a mixture may still change."""
        return work_fingerprint(self.to_dict())

    @property
    def input_bytes(self) -> int:
        return sum(source.size for source in self.sources)


class BoundPlan(Plan, frozen=True, kw_only=True):
    """What an export or an import is bound to: the tokens that are there, not inputs to encode."""

    bound: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.bound


def same_content(sources: list[dict[str, Any]]) -> list[str]:
    """A warning where input files have the same content; `sources` as plans and manifests have
    them."""
    names: dict[tuple[int, str], list[str]] = {}
    for source in sources:
        if source["size"]:
            names.setdefault((source["size"], source["fingerprint"]), []).append(source["name"])
    groups = [group for group in names.values() if len(group) > 1]
    if not groups:
        return []
    more = f", and {len(groups) - 1} more" if len(groups) > 1 else ""
    first = " and ".join(groups[0][:3]) + (" ..." if len(groups[0]) > 3 else "")
    return [warning(f"input files with the same content are read more than once: {first}{more}")]


def without_amounts(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without what it says about how much of each source a mixture takes."""
    if "mixture" not in plan.get("settings", {}):
        return plan
    names = [share["name"] for share in plan["settings"]["mixture"]["shares"]]
    return {**plan, "settings": {**plan["settings"], "mixture": names}}


def work_fingerprint(plan: dict[str, Any]) -> str:
    """What the journal of a job is bound to."""
    work, settings = without_amounts(plan), plan.get("settings", {})
    if settings.get("shuffle") or "mixture" in settings:
        work = {**work, "sorted_runs": SORTED_RUNS}
    return fingerprint_of(work)


def fingerprint_of(plan: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(plan, order="sorted"))


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """In words, what another plan would change; empty when they are the same plan."""
    lines = []
    if old.get("cut_rule") != new.get("cut_rule"):
        lines.append(f"cut rule: {old.get('cut_rule')} -> {new.get('cut_rule')}")
    lines += _changes(old["settings"], new["settings"])
    lines += _changes(old.get("revisions", {}), new.get("revisions", {}), "commit ")
    known = ("cut_rule", "settings", "revisions", "sources")
    before, after = ({k: plan[k] for k in plan if k not in known} for plan in (old, new))
    lines += _changes(before, after)
    return lines + _source_difference(old["sources"], new["sources"])


def only_format_changed(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether `export` can make the new dataset of the old one's tokens. The validation rule may
    differ: it is the format's own where none was asked for, and `export` keeps the old one."""
    before, after = old["settings"], new["settings"]
    layout = {*Layout.__struct_fields__, "more", "val"}
    same = (old.keys() | new.keys()) - {"settings"}
    return (
        (before["format"], before["more"]) != (after["format"], after["more"])
        and all(old.get(key) == new.get(key) for key in same)
        and all(
            before.get(key) == after.get(key)
            for key in before.keys() | after.keys()
            if key not in layout
        )
    )


def export_command(old: dict[str, Any], new: dict[str, Any], output: str) -> str:
    """What to type for the new formats, with the options that are not their defaults."""
    after = PlanSettings.from_dict(new["settings"])
    names = [layout.format for layout in after.layouts]
    words = ["tokenmill", "export", output, "-o", f"{output.rstrip('/')}-{'-'.join(names)}"]
    words += ["--format", ",".join(names)]
    first, fmt = after.first, get_format(after.first.format)
    if first.shard_tokens and first.shard_tokens != parse_count(fmt.shard_tokens):
        words += ["--shard-tokens", str(first.shard_tokens)]
    words += ["--eot", first.eot] if first.eot != fmt.eot else []
    words += ["--cut", first.cut] if first.cut != fmt.cut and first.shard_tokens else []
    words += ["--compression", first.compression] if first.compression != "none" else []
    return shlex.join(words)


def _changes(old: dict[str, Any], new: dict[str, Any], what: str = "") -> list[str]:
    """One line for each value that differs, also for those inside of others."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        parts, new_parts = _named_parts(before), _named_parts(after)
        if parts.keys() & new_parts.keys():
            lines += [f"{key}, {line}" for line in _changes(parts, new_parts, what)]
        else:
            lines.append(f"{key}: {what}{_show(before)} -> {_show(after)}")
    return lines


def _named_parts(value: Any) -> dict[str, Any]:
    """The parts of a value by their names, such as further formats; empty where it has none."""
    if isinstance(value, dict) and not _is_val(value):
        return value
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        names = [one.get("format", one.get("name")) for one in value]
        if None not in names and len(set(names)) == len(names):
            return dict(zip(names, value, strict=True))
    return {}


def _is_val(value: dict[str, Any]) -> bool:
    return "kind" in value and value.keys() <= set(Val.__struct_fields__)


def _show(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, dict):
        if _is_val(value):
            return str(msgspec.convert(value, Val))
        return ", ".join(f"{key} {_show(one)}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        named = _named_parts(value)
        return ", ".join(named or map(_show, value)) or "none"
    if isinstance(value, str) and not (value and value.isprintable()):
        return repr(value)  # a separator of line ends would be shown as nothing
    return str(value)


def _source_difference(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[str]:
    before = {source["name"]: source for source in old}
    after = {source["name"]: source for source in new}
    lines = [f"input no longer given: {name}" for name in before if name not in after]
    lines += [f"input added: {name}" for name in after if name not in before]
    for name in (name for name in before if name in after):
        if before[name]["size"] != after[name]["size"]:
            lines.append(f"{name}: {before[name]['size']} bytes -> {after[name]['size']} bytes")
        elif before[name] != after[name]:
            lines.append(f"{name}: content changed (same size)")
    if not lines and old != new:
        lines.append("inputs in another order")
    shown = lines[:10]
    return shown + ([f"... and {len(lines) - 10} more inputs"] if len(lines) > 10 else [])
