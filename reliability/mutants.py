"""The promises with one line of the source taken out: tests that do not notice are no tests.

A mutant is a file of the package, a text that stands in it exactly once, and what stands there
instead. It is put in place when the package is imported, in a process of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import CodeType
from typing import Any

MUTANTS: dict[str, tuple[str, str, str]] = {
    # --- a sync left out ---
    "tokens not synced before the journal names them": (
        "output/durability.py", "self._files.sync(file)", "pass",
    ),
    "new token files' names not synced": (
        "output/durability.py", "self._files.sync_names(\"\")", "pass",
    ),
    "the journal not synced": (
        "system/store.py", "write_all(fd, content, length)\n                steps.disk.fsync(fd)",
        "write_all(fd, content, length)",
    ),
    "the journal's name not synced": (
        "output/files.py", 'self.append(header)\n            self._store.sync_names("")',
        "self.append(header)",
    ),
    "files not synced before the commit": ("output/commit.py", "maker.files.sync(made.working)", "pass"),
    "published names not synced before the manifest": (
        "output/workspace.py", "            self.store.sync_names(folder)\n        self.store.write_whole(",
        "            pass\n        self.store.write_whole(",
    ),
    "made files not synced": ("output/file_maker.py", "self.files.sync(made.working)", "pass"),
    "files that workers made not synced": (
        "output/file_tasks.py", "self.files.sync(task.working)", "pass",
    ),
    "names in folders of formats not synced": (
        "output/workspace.py", "found |= set(PurePath(name).parents)", "pass",
    ),
    "small files renamed before they are synced": (
        "system/disk.py", "            write_all(fd, content, 0)\n            disk.fsync(fd)\n",
        "            write_all(fd, content, 0)\n",
    ),
    "small files' names not synced": (
        "system/disk.py", "disk.replace(temporary, path)\n        sync_directory(path.parent)",
        "disk.replace(temporary, path)",
    ),
    "the output folder's own name not synced": (
        "system/store.py", "(self.path, *(new.parent for new in lock.made))", "(self.path,)",
    ),
    "a removed dataset's names not synced": (
        "output/workspace.py",
        '        self.store.sync_names("")\n        self.store.remove(self.removing)',
        "        self.store.remove(self.removing)",
    ),
    # --- a rename or an order ---
    "small files written in place": (
        "system/disk.py", 'temporary = temporary or path.with_name(f".{path.name}.tmp")',
        "temporary = path",
    ),
    "the journal names tokens before they are synced": (
        "output/durability.py",
        "        self._file_sync.sync(files)\n        self._journal.append(b\"\".join(map(frame_record, records)))\n",
        "        self._journal.append(b\"\".join(map(frame_record, records)))\n        self._file_sync.sync(files)\n",
    ),
    "a worker reports a sync before it is made": (
        "output/durability.py", "                self._file_sync.sync(files)\n                self._report(units)\n",
        # The pause: where a sync takes no time, it would often come before the journal's all the same.
        "                self._report(units)\n                time.sleep(0.3)\n                self._file_sync.sync(files)\n",
    ),
    "the journal names units that their worker has not synced": (
        "output/durability.py", "        self._waiting[record.unit] = record\n",
        "        self._waiting[record.unit] = record\n        self._synced.add(record.unit)\n",
    ),
    "the manifest before the files": (
        "output/workspace.py", "        for path, working in names.items():\n",
        "        self.store.write_whole(self.manifest, manifest)\n        for path, working in names.items():\n",
    ),
    "the work folder goes before the manifest comes": (
        "output/workspace.py", "        self.store.write_whole(self.manifest, manifest)\n",
        "        self.remove_work()\n        self.create()\n        self.store.write_whole(self.manifest, manifest)\n",
    ),
    "moved to another folder, not linked": (
        "system/disk.py", "        disk.link(source, target)\n    except FileExistsError:",
        "        disk.replace(source, target)\n    except FileExistsError:",
    ),
    "a dataset's files removed before its manifest is": (
        "output/workspace.py",
        '        self.store.remove(self.manifest)\n        self.store.sync_names("")\n',
        "        self.store.remove(self.manifest)\n",
    ),
    "no decision before the names": (
        "output/workspace.py", "        self.store.write_whole(self.commit, decision)\n", "",
    ),
    # --- a hash, a size, a record ---
    "journal records not checked": (
        "output/journal.py", "len(body) < length or xxhash.xxh3_64_intdigest(body) != digest",
        "len(body) < length",
    ),
    "durable pieces not checked on resuming": (
        "output/files.py", " and xxhash.xxh3_64_intdigest(content) == digest", "",
    ),
    "sizes not checked on committing": ("output/commit.py", " or actual_size != self.size", ""),
    "a short write taken for a whole one": (
        "system/disk.py", "        done += written\n", "        done += len(view)\n",
    ),
    "the journal not read": (
        "output/recovery.py", "    latest = {record.unit: record for record in records}", "    latest = {}",
    ),
    # --- cleaning up ---
    "the work folder stays": (
        "output/workspace.py", "        self.store.remove(f\"{WORK}/{LOCK}\")\n", "",
    ),
    "temporary files beside the dataset": (
        "output/workspace.py", "PlacedFolder(output, scratch=self.work)", "PlacedFolder(output)",
    ),
    "a removal that was begun is not finished": (
        "output/recovery.py", "if run.overwrite or begun:", "if run.overwrite:",
    ),
    # --- the order of documents ---
    "sorted documents not synced before they are recorded": (
        "output/durability.py", "files = {piece.file for record in by_us for piece in record.pieces}",
        "files = {piece.file for record in by_us for piece in record.pieces if 'sorted' not in piece.file}",
    ),
    "sorted documents not compared when a job is resumed": (
        "output/workspace.py", "            for p in record.pieces\n        )\n\n    def put_cut",
        "            for p in record.pieces\n            if not p.file.startswith('sorted')\n        )\n\n    def put_cut",
    ),
    "a changed bit of sorted documents not noticed between the halves": (
        "output/order/sorted_run.py", "if _digests_of(content) != np.frombuffer(digests, \"<u8\").tolist():",
        "if False:",
    ),
    "ranges done again": (
        "engines/order/order_run.py", "[record for record in self.ordered if record.unit.source == source]",
        "[]",
    ),
}  # fmt: skip

# Of the engine: R22 notices these.
SCHEDULER_MUTANTS: dict[str, tuple[str, str, str]] = {
    "a report counts as often as it arrives": (
        "engines/dispatch.py", "if state is None or report.number <= state.reports:", "if state is None:",
    ),
    "units of a dead worker are still taken for encoded": (
        "engines/dispatch.py", "            self.frontier.lost(unit)\n", "",
    ),
    "units that a dead worker held are not done again": (
        "engines/dispatch.py", "again = {(unit.source, unit.segment) for unit in state.held}", "again = set()",
    ),
    "the task of a dead worker is not done again": (
        "engines/dispatch.py", "        elif segment is not None:\n            self._died_at_work",
        "        elif segment is not None:\n            again.discard(segment.key)\n            self._died_at_work",
    ),
    "a segment is given to two workers": (
        "engines/dispatch.py", "        heapq.heappush(self._again, key)\n",
        "        heapq.heappush(self._again, key)\n        heapq.heappush(self._again, key)\n",
    ),
    "a unit that had its place does not get it again": (
        "engines/dispatch.py", "        if placed is not None:\n            self._place(*placed)\n", "",
    ),
    "workers that hold units get no task": (
        "engines/dispatch.py", "next(iter(self._free or self._free_holding), None)", "next(iter(self._free), None)",
    ),
    "an error beyond the limit ends the run": (
        "engines/dispatch.py", "if not self.settings.limited or not encoding or message.step != \"task\":", "if True:",
    ),
    "an error within the limit is forgotten": (
        "engines/dispatch.py", "            raise self.frontier.failure\n", "            pass\n",
    ),
    "finished while units are missing": (
        "engines/dispatch.py", "(self._exhausted and not self._begun and frontier.idle)", "self._exhausted",
    ),
    "finished at a limit while units are missing": (
        "engines/frontier.py", "return self.limit_reached and not self._placed", "return self.limit_reached",
    ),
    "places are not sent when earlier ones are written": (
        "engines/dispatch.py", "MAX_PLACING = 16", "MAX_PLACING = 0",
    ),
    "the fatal rows that were found are forgotten": (
        "engines/dispatch.py", "            segment.aside.update(search.found)\n", "",
    ),
    "a row that was tried is tried for ever": (
        "engines/hunt.py", "self.first, self.suspect, self._hits = row + 1, None, 0",
        "self.first, self.suspect, self._hits = row, None, 0",
    ),
    "a unit takes its place though it changed": (
        "engines/dispatch.py", "if search.found and self.frontier.has_place(UnitId(*segment.key, search.part)):",
        "if False:",
    ),
    "the file of a dead worker is not made again": (
        "engines/dispatch.py", "            self._files.again(file)\n", "            pass\n",
    ),
    "a file that was made is made again": (
        "engines/dispatch.py", "        self._files.made()\n", "        self._files.made()\n        self._files.again(file)\n",
    ),
    "finished while files are missing": (
        "engines/dispatch.py", "return encoded and self._files.finished", "return encoded",
    ),
    "files wait for the last segment": (
        "engines/dispatch.py", "file = self._files.next() if segment is None else None",
        "file = self._files.next() if segment is None and not self._begun else None",
    ),
    "a worker that ends at every try of a file is replaced for ever": (
        "engines/dispatch.py", "            self._files.died(file, end)\n", "            pass\n",
    ),
    "what a lost host had not synced is not done again": (
        "engines/dispatch.py", "again |= self._leave_unsynced(state)", "self._leave_unsynced(state)",
    ),
    "what a lost host had not synced is taken for written": (
        "engines/dispatch.py", "            segment.written.discard(unit.part)\n", "",
    ),
    "a unit that was lost with its host does not keep its place": (
        "engines/frontier.py", "self._placed[unit] = self._at_risk.pop(unit)", "self._at_risk.pop(unit)",
    ),
    "what is synced on another host is done again": (
        "engines/dispatch.py", "if state.unsynced.pop(unit, None) is not None", "if unit in state.unsynced",
    ),
    "finished before other hosts have synced": (
        "engines/dispatch.py", "        if self._at_risk:\n            return False\n", "",
    ),
    "every worker is looked at for each place": (
        "engines/dispatch.py", "        worker = self._holders[unit]\n",
        "        worker = next(w for w, state in self.workers.items() if unit in state.held)\n",
    ),
}  # fmt: skip

# Of a store without places: R23 notices these, or tests/unit/output/test_objects.py.
STORE_MUTANTS: dict[str, tuple[str, str, str]] = {
    "a file that exists already is taken for ours": (
        "output/objects/creating.py", "            if found == content:\n", "            if True:\n",
    ),
    "a create whose answer was lost is taken for another's": (
        "output/objects/creating.py", "            if found == content:\n                return\n", "",
    ),
    "a conflict is taken for success": (
        "output/objects/creating.py", "                continue  # two", "                return  # two",
    ),
    "the plan is written over another": (
        "output/objects/workspace.py", "create_once(self.store, self.plan, plan)", "self.store.write_whole(self.plan, plan)",
    ),
    "the manifest is written over another": (
        "output/objects/workspace.py", "create_once(self.store, self.manifest, manifest)",
        "self.store.write_whole(self.manifest, manifest)",
    ),
    "a lease is written over another": (
        "output/objects/lease.py", "create_once(store, lease_name(folder, number), lease._content)",
        "store.write_whole(lease_name(folder, number), lease._content)",
    ),
    "records are written over others": (
        "output/objects/log.py", "        create_once(self._store, f\"{self._folder}/{self._number:08d}\", self._header + content)\n",
        "        self._store.write_whole(f\"{self._folder}/{self._number:08d}\", self._header + content)\n",
    ),
    "a coordinator that was taken over goes on": (
        "output/objects/lease.py", "        if found != self._content:\n", "        if False:\n",
    ),
    "leases are told apart by their number alone": (
        "output/objects/lease.py", "        if found != self._content:\n",
        "        if number != self.number:\n",
    ),
    "what is recorded is recorded by anyone": (
        "output/objects/log.py", "        self._check()\n", "",
    ),
    "units are not compared on resuming": (
        "output/objects/workspace.py", "return is_unit_whole(self.store, UNITS, record)", "return True",
    ),
    "units are not compared when files are made of them": (
        "output/objects/units.py",
        "    return content if whole else None\n", "    return content\n",
    ),
    "a unit's name does not hold its hash": (
        "output/objects/units.py", "{unit}-{xxhash.xxh3_128_hexdigest(table.tobytes())}", "{unit}",
    ),
    "units are recorded before they are put": (
        "output/objects/units.py", "            self._store.write_parts(unit_name(self._folder, unit, pieces), mine)\n",
        "            for name, late in self.__dict__.setdefault('late', []):\n"
        "                self._store.write_parts(name, late)\n"
        "            self.late = [(unit_name(self._folder, unit, pieces), mine)]\n",
    ),
    "resumed runs are looked for under another name": (
        "output/durability.py", "            self.ledger.add(record, workspace.object_of(record))\n", "            self.ledger.add(record)\n",
    ),
    "merged runs are not found": (
        "output/durability.py", "            self.ledger.add(record, self.workspace.object_of(record))\n", "            self.ledger.add(record)\n",
    ),
    "records of a mixture are looked for with its amounts": (
        "output/commit.py", "workspace.grown_files(files, plan.work_fingerprint)", "workspace.grown_files(files, plan.fingerprint)",
    ),
    "where rows went is made in the wrong place": (
        "output/commit.py", "        name = workspace.name_of(working, path)\n        by_row = ",
        "        name = working\n        by_row = ",
    ),
    "a merged run is not put": (
        "engines/order/order_worker.py", "        self.writer.files.unit_written(unit, pieces)\n", "",
    ),
    "the manifest before the files": (
        "output/commit.py", "    with contextlib.closing(FileMaker(workspace, evidence, check_interrupt)) as maker:\n",
        "    if not workspace.has_places:\n        workspace.store.write_whole(workspace.manifest, b'{}')\n"
        "    with contextlib.closing(FileMaker(workspace, evidence, check_interrupt)) as maker:\n",
    ),
    "files are made without a word before": (
        "output/objects/workspace.py", "        if new:\n", "        if False:\n",
    ),
    "a manifest may name what is gone": (
        "output/objects/workspace.py", "            if self.store.size(name) is None:\n", "            if False:\n",
    ),
    "work goes before the manifest comes": (
        "output/objects/workspace.py", "        create_once(self.store, self.manifest, manifest)\n",
        "        self.remove_work()\n        create_once(self.store, self.manifest, manifest)\n",
    ),
    "units stay": (
        "output/objects/workspace.py", " if not name.startswith(keep))",
        " if not name.startswith((keep, UNITS)))",
    ),
    "leases stay": (
        "output/objects/workspace.py", "        for name in list(self.store.names(f\"{DRIVER}/\")):\n", "        for name in []:\n",
    ),
    "the newest lease goes first": (
        "output/objects/workspace.py", "in list(self.store.names(f\"{DRIVER}/\"))", "in list(self.store.names(f\"{DRIVER}/\"))[::-1]",
    ),
    "a dataset's files are removed before its manifest is kept": (
        "output/objects/workspace.py", "        self.store.write_whole(self.removing, read_small(self.store, self.manifest))\n", "",
    ),
    "made files are not compared on resuming": (
        "output/file_maker.py", "            if not is_intact(self.files, working, at, length, digest):\n", "            if False:\n",
    ),
}  # fmt: skip


def install(name: str) -> None:
    """From now on tokenmill is imported with this mutant in place."""
    install_change(*MUTANTS[name])


def install_change(file: str, old: str, new: str) -> None:
    """From now on tokenmill is imported with another text in one of its files."""
    import tokenmill

    path = Path(tokenmill.__file__).parent / file
    count = path.read_text().count(old)
    if count != 1:
        raise ValueError(f"{file} holds {count} times what the mutant replaces: {old!r}")
    for module in [m for m in sys.modules if m.partition(".")[0] == "tokenmill"]:
        del sys.modules[module]
    sys.meta_path.insert(0, _Finder(str(path), old, new))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, path: str, old: str, new: str) -> None:
        self.path, self.old, self.new = path, old, new

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin != self.path:
            return None
        spec.loader = _Loader(name, self.path, self.old, self.new)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self.old, self.new = old, new

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text().replace(self.old, self.new)
        return self.source_to_code(source, self.path)  # never from a cache
