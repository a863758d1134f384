"""What `status` prints: how far a folder is, why its run stopped, and how to go on."""

from __future__ import annotations

import shlex

import msgspec

from tokenmill.amounts import counted, show_bytes
from tokenmill.dataset.status import Status
from tokenmill.errors import printable
from tokenmill.settings import Val

STATES = {
    "finished": "finished",
    "unfinished": "unfinished",
    "removing": "a dataset that --overwrite was removing",
    "foreign": "files that tokenmill did not make",
    "empty": "nothing in it",
}


def status_lines(found: Status, here: str) -> list[str]:
    """`here`: the folder in which the reader is."""
    told = STATES[found.state]
    if found.state == "unfinished" and found.input_bytes_done >= 0 and found.input_bytes:
        share = 100 * found.input_bytes_done / found.input_bytes
        told += f", {min(share, 100):.0f} % of the input is done"
    lines = [f"{found.directory}: {told}"]
    counts = found.counts
    if found.state == "unfinished" and not counts.get("rows"):
        lines.append("  done      nothing that is durable yet")
    elif counts:
        durable = " (durable: a crash costs none of it)" if found.state == "unfinished" else ""
        lines.append(
            f"  {'has' if found.state == 'finished' else 'done':8}  "
            f"{counted(counts['documents'], 'document')}, {counted(counts['tokens'], 'token')}, "
            f"{counted(counts['quarantined'], 'row')} quarantined{durable}"
        )
    if counts:
        files = counted(found.sources, "file")
        lines.append(f"  input     {files}, {show_bytes(found.input_bytes)}")
    lines += [f"  {'bound to' if i == 0 else '':8}  {x}" for i, x in enumerate(_binding(found))]
    if found.finished:
        lines.append(f"  made      {found.finished}")
    lines += _part_lines(found)
    lines += [] if found.parts else _why_stopped(found)
    if found.process:
        lines.append(f"  running   process {found.process} is at work here now")
    if found.files and found.state == "foreign":
        lines.append(f"  files     {', '.join(found.files[:5])}")
    return [printable(line) for line in [*lines, *_going_on(found, here)]]


def _part_lines(found: Status) -> list[str]:
    """Of a job on several machines: each part that is not complete, and how many are."""
    if not found.parts:
        return []
    left = [part for part in found.parts if part.leases_done < part.leases]
    complete = len(found.parts) - len(left)
    lines = [
        f"  leases    {found.leases_done:,} of {found.leases:,} complete",
        f"  parts     {complete:,} of {len(found.parts):,} complete",
    ]
    for part in left:
        said = f"{part.state} on {part.host}, {part.when}" if part.state else "not begun"
        why = f": {part.message.splitlines()[0]}" if part.message else ""
        done = f"{part.leases_done:,} of {part.leases:,} leases"
        lines.append(f"    {part.part:8}  {done}, {said}{why}")
    return lines + _finish_lines(found)


def _finish_lines(found: Status) -> list[str]:
    """The same of parts of `finish`."""
    if not found.finish_parts:
        return []
    total, made = found.files_to_make, found.files_made
    lines = [f"  files     {made:,} of {total:,} made" if total else "  files     not known yet"]
    for part in found.finish_parts:
        if part.files and part.files_made == part.files:
            continue
        said = f"{part.state} on {part.host}, {part.when}" if part.state else "not begun"
        why = f": {part.message.splitlines()[0]}" if part.message else ""
        lines.append(f"    {part.part:8}  {part.files_made:,} of {part.files:,} files, {said}{why}")
    return lines


def _why_stopped(found: Status) -> list[str]:
    if found.state != "unfinished" or found.process:
        return []
    if not found.stopped.get("message"):
        return ["  stopped   no error is recorded: the process was killed, or the machine stopped"]
    first, *more = found.stopped["message"].split("\n")
    when = f" ({found.stopped['when']})" if found.stopped.get("when") else ""
    lines = [f"  stopped   {first}{when}", *(f"            {line.strip()}" for line in more)]
    return [*lines, f"  hint      {found.stopped['hint']}"] if found.stopped.get("hint") else lines


def _binding(found: Status) -> list[str]:
    """What the same command must say again, in the words of its options."""
    s = found.settings
    if not s:
        return []
    formats = ", ".join([s["format"], *(layout["format"] for layout in s.get("more", ()))])
    lines = [
        f"format {formats}, tokenizer {s['tokenizer']}, val {msgspec.convert(s['val'], Val)}, "
        f"eot {s['eot']}" + (f", {s['shard_tokens']:,} tokens a shard" if s["shard_tokens"] else "")
    ]
    usual = {"text_column": "text", "seed": 0, "min_tokens": 0, "max_tokens": 0, "limit_docs": 0}
    usual |= {"limit_tokens": 0, "text_template": "", "where": "", "drop_empty": False}
    usual |= {"text_separator": None, "shuffle": False}
    special = [
        f"{name.replace('_', ' ')} {s[name]!r}"
        for name, value in usual.items()
        if s.get(name, value) != value
    ]
    lines += [", ".join(special)] if special else []
    return lines + [f"{root} at commit {commit}" for root, commit in found.revisions.items()]


def _going_on(found: Status, here: str) -> list[str]:
    if found.state == "finished":
        return [f"  next      tokenmill verify {shlex.quote(found.directory)}, or inspect"]
    if found.process:
        return ["  next      wait for it, or stop it with Ctrl-C: what is durable stays"]
    if found.state == "unfinished":
        if found.parts:
            if found.leases_done == found.leases:
                return [f"  go on     tokenmill finish {shlex.quote(found.directory)}"]
            left = [part.part for part in found.parts if part.leases_done < part.leases]
            return [f"  go on     with these parts: {', '.join(left)}; then `finish`"]
        if not found.command:
            return [f"  go on     with the same call or command of `{found.made_by}`"]
        there = "" if found.folder in ("", here) else f"cd {shlex.quote(found.folder)} && "
        how = "as the hint says; the command was:" if found.stopped.get("hint") else ""
        return [f"  go on     {how or 'with the same command:'}", f"    {there}{found.command}"]
    if found.state == "removing":
        return ["  go on     with the same command, with or without --overwrite"]
    if found.state == "foreign":
        return [
            "  next      if these are token files: tokenmill import "
            f"{shlex.quote(found.directory)} --format NAME"
        ]
    return [f"  next      tokenmill prepare INPUTS -o {shlex.quote(found.directory)}"]
