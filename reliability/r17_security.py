"""R17: a folder from somebody else harms nobody, and no secret gets into what we write or print.

What is tried: the source text itself, hostile names wherever a name is read, links and pipes in
place of our files, secrets in the environment and in arguments, names that steer a terminal.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

import tokenmill
from reliability.command import ROOT, in_process, succeed
from reliability.command import tokenmill as command
from reliability.corpus import documents, write_jsonl
from reliability.hostile_names import OUTSIDE, VICTIM, hostile_names, untouched
from reliability.r14_changed_job import stopped
from reliability.scorecard import Check
from tokenmill.errors import TokenmillError
from tokenmill.output import commit as committing
from tokenmill.output.durability import UnitLog
from tokenmill.output.journal import PieceRecord, frame_record, read_journal
from tokenmill.output.manifest import Manifest
from tokenmill.planning.plan import fingerprint_of
from tokenmill.system.store import FolderStore, PlacedFolder

ID = "R17"
PROMISE = "security"
MARK = (
    "no pickle.load, eval, exec, yaml.load, np.load(allow_pickle) in src/; 200 traversal names "
    "refused; secrets never in logs, plan, manifest, report; names escaped"
)

# --- the source text -------------------------------------------------------------------------

FORBIDDEN_MODULES = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "xml",
    "socket", "http", "urllib", "requests", "ftplib", "telnetlib", "subprocess",
}  # fmt: skip
# Who needs which of them, and for what: to fetch, to see whether the Hub or a cluster answers, to
# try whether a user's own function pickles, to run the command he names; to ask a bucket for
# uploads that are pending, which it lists as XML (expat refuses entities that grow without end).
ALLOWED_MODULES = {
    "buckets/access.py": {"socket"},
    "buckets/uploads.py": {"urllib", "http", "xml"},
    "ray/cluster.py": {"socket"},
    "remote": {"urllib", "http"},
    "doctor/machine.py": {"urllib"},
    "doctor/pickling.py": {"pickle"},
    "doctor/watching.py": {"subprocess"},
}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
FORBIDDEN_CALLS = {
    "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "tempfile.mktemp", "np.load",
    "numpy.load", "np.save", "torch.load", "shutil.unpack_archive",
}  # fmt: skip
FORBIDDEN_METHODS = {"extractall", "recv"}  # recv of a multiprocessing pipe unpickles
FORBIDDEN_KEYWORDS = {"allow_pickle", "shell", "trust_remote_code"}


def dangers(source: str, allowed: Collection[str] = ()) -> list[str]:
    """What a module of ours must not do, line by line; `allowed`: what it may import."""
    found = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            roots = {str(name).partition(".")[0] for name in names if name != "urllib.parse"}
            forbidden = roots & FORBIDDEN_MODULES - set(allowed)
            found += [f"{line}: imports {name}" for name in forbidden]
        elif isinstance(node, ast.Call):
            found += [f"{line}: {what}" for what in _call_dangers(node)]
        elif isinstance(node, ast.Assert) and not _narrows(node.test):
            found.append(f"{line}: an assert that -O takes away: {ast.unparse(node.test)}")
    return found


def _call_dangers(node: ast.Call) -> list[str]:
    what = ast.unparse(node.func)
    bad = what in FORBIDDEN_NAMES | FORBIDDEN_CALLS or (
        isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN_METHODS
    )
    keywords = [k.arg for k in node.keywords if k.arg in FORBIDDEN_KEYWORDS]
    return ([f"calls {what}"] if bad else []) + [f"{what}({name}=...)" for name in keywords]


def _narrows(test: ast.expr) -> bool:
    """`x is not None`, for the type checker: whatever must hold at run time raises instead."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot)
        and ast.unparse(test.comparators[0]) == "None"
    )


def allowed_in(module: Path) -> set[str]:
    inner = f"{module.parent.name}/{module.name}"
    return ALLOWED_MODULES.get(inner) or ALLOWED_MODULES.get(module.parent.name) or set()


def source_text(_: Path) -> None:
    modules = sorted((ROOT / "src").rglob("*.py"))
    assert len(modules) > 40, "the source is not where it should be"
    found = [
        f"{m.relative_to(ROOT)}:{d}" for m in modules for d in dangers(m.read_text(), allowed_in(m))
    ]
    assert not found, "; ".join(found[:10])
    # And that this would be seen.
    for line in ("import pickle", "from yaml import load", "eval(x)", "np.load(f)",
                 "f(shell=True)", "os.system(x)", "tempfile.mktemp()", "pipe.recv()",
                 "assert size > 0"):  # fmt: skip
        assert dangers(line), f"not seen: {line}"


# --- hostile names ---------------------------------------------------------------------------


class Scene:
    """An output folder `o`, inputs, and beside them a folder that nobody may touch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output, self.outside = folder, folder / "o", folder / OUTSIDE
        self.outside.mkdir()
        (self.outside / VICTIM).write_bytes(b"precious" * 100)
        (self.outside / "files").mkdir()
        (self.outside / "files" / VICTIM).write_bytes(b"precious")
        self.input = write_jsonl(folder / "a.jsonl", documents(20, "r17"))
        self.second = write_jsonl(folder / "b.jsonl", documents(20, "r17 b"))
        self.inputs = [self.input, self.second]

    def begin(self, state: str) -> None:
        """An output in some state: made here, or copied where it was made before."""
        template = self.folder.parent / f"template-{state}"
        if not (template / "o").exists():
            {"finished": self.prepare, "unfinished": self.unfinished, "decided": self.decided}[
                state
            ]()
            return
        for path in self.inputs:  # with their times, which are part of a job
            shutil.copy2(template / path.name, path)
        shutil.copytree(template / "o", self.output, symlinks=True)

    def prepare(self, **options: Any) -> Any:
        return tokenmill.prepare(
            self.inputs, self.output, quiet=True, workers=0, val="none", **options
        )

    def attempt(self, *actions: Callable[[], object]) -> int:
        """Each may do its work or refuse with an error of ours; nothing outside is touched."""
        refused = 0
        with untouched(self.outside):
            for action in actions:
                try:
                    action()
                except TokenmillError:
                    refused += 1
        return refused

    def readers(self) -> list[Callable[[], object]]:
        return [
            lambda: tokenmill.verify(self.output),
            lambda: tokenmill.inspect(self.output),
            lambda: tokenmill.inspect_document(self.output, document=0),
            lambda: tokenmill.open_dataset(self.output)["train"].documents[0],
            lambda: tokenmill.verify_deep(self.output, sample="all"),
        ]

    def writers(self) -> list[Callable[[], object]]:
        return [self.prepare, lambda: self.prepare(overwrite=True)]

    def unfinished(self) -> None:
        with stopped(UnitLog, "written", lambda books, _: books.encoded_units == 1):
            self.prepare()

    def decided(self) -> None:
        with stopped(PlacedFolder, "publish", lambda *_: True):
            self.prepare()

    def plant_links(self) -> None:
        """Ways out for those names that go through `link/`."""
        for folder in (self.output, self.output / "index"):
            if folder.is_dir():
                (folder / "link").symlink_to(self.outside)


def json_can(name: str) -> bool:
    try:
        msgspec.json.encode(name)
    except (UnicodeEncodeError, msgspec.EncodeError):
        return False
    return True


def sealed_with(manifest: Manifest, name: str, where: str) -> bytes:
    """A manifest whose own checksum is right and that names what it should not."""
    if where == "stream":
        splits = [msgspec.structs.replace(s, stream=name) for s in manifest.splits]
        return msgspec.structs.replace(manifest, splits=splits).sealed().encode()
    files = list(manifest.files)
    at = {"token file": 0, "index file": -1}[where]
    files[at] = msgspec.structs.replace(files[at], path=name)
    return msgspec.structs.replace(manifest, files=files).sealed().encode()


def name_option(scene: Scene, name: str) -> None:
    """--name: refused, or the shards lie in the folder under that very name."""
    before = {p for p in scene.folder.rglob("*") if scene.output not in (p, *p.parents)}
    refused = scene.attempt(lambda: scene.prepare(format="llmc", name=name))
    after = {p for p in scene.folder.rglob("*") if scene.output not in (p, *p.parents)}
    assert after == before, f"written beside the output: {sorted(map(str, after - before))}"
    if not refused and name:
        shards = [p.name for p in scene.output.iterdir() if p.suffix == ".bin"]
        assert shards, "no shard in the folder"
        assert all(shard.startswith(name) for shard in shards), f"{name!r} gave {shards}"


def in_manifest(where: str) -> Callable[[Scene, str], None]:
    def attack(scene: Scene, name: str) -> None:
        if not json_can(name):
            return
        scene.begin("finished")
        manifest = Manifest.load(scene.output)
        (scene.output / "manifest.json").write_bytes(sealed_with(manifest, name, where))
        scene.plant_links()
        scene.attempt(*scene.readers(), *scene.writers())

    return attack


def in_removing(scene: Scene, name: str) -> None:
    """removing.json: a removal that was begun, of files that are not ours."""
    if not json_can(name):
        return
    scene.begin("finished")
    manifest = Manifest.load(scene.output)
    work = scene.output / ".tokenmill"
    work.mkdir()
    (scene.output / "manifest.json").unlink()
    (work / "removing.json").write_bytes(sealed_with(manifest, name, "token file"))
    scene.plant_links()
    scene.attempt(*scene.writers())


def in_commit(where: str) -> Callable[[Scene, str], None]:
    """commit.json: what to rename, or what to call it."""

    def attack(scene: Scene, name: str) -> None:
        if not json_can(name):
            return
        scene.begin("decided")
        path = scene.output / ".tokenmill" / "commit.json"
        decision = msgspec.json.decode(path.read_bytes(), type=committing.Commit)
        first = next(iter(decision.names))
        names, manifest = dict(decision.names), decision.manifest
        if where == "source":
            names[first] = name
        else:
            names = {name if key == first else key: value for key, value in names.items()}
            manifest = msgspec.json.decode(sealed_with(manifest, name, "token file"), type=Manifest)
        path.write_bytes(msgspec.json.encode(committing.Commit(names, manifest)))
        scene.plant_links()
        scene.attempt(*scene.writers())

    return attack


def in_journal(scene: Scene, name: str) -> None:
    """The journal: a durable unit whose bytes are said to lie elsewhere."""
    if not json_can(name):
        return
    scene.begin("unfinished")
    work = scene.output / ".tokenmill"
    plan = msgspec.json.decode((work / "plan.json").read_bytes())["plan"]
    records, _ = read_journal(FolderStore(work), "journal", fingerprint_of(plan))
    journal = (work / "journal").read_bytes()
    pieces = [PieceRecord(name, p.offset, p.length, p.digest) for p in records[0].pieces]
    forged = msgspec.structs.replace(records[0], pieces=tuple(pieces))
    (work / "journal").write_bytes(journal + frame_record(forged))
    assert scene.attempt(scene.prepare) == 0, "what a forged record names was to be done again"
    assert tokenmill.verify(scene.output).ok


def tokenizer_path(scene: Scene, name: str) -> None:
    """--tokenizer, and run.json's word on where it lay: read only what has the right hash."""
    scene.begin("finished")
    if json_can(name):
        manifest = Manifest.load(scene.output)
        plan = {**manifest.plan, "settings": {**manifest.plan["settings"], "tokenizer": "own"}}
        forged = msgspec.structs.replace(manifest, plan=plan).sealed()
        (scene.output / "manifest.json").write_bytes(forged.encode())
        record = msgspec.json.decode((scene.output / "run.json").read_bytes())
        (scene.output / "run.json").write_bytes(msgspec.json.encode({**record, "tokenizer": name}))
        with contextlib.chdir(scene.output), contextlib.suppress(TokenmillError):
            tokenmill.inspect_document(scene.output, document=0)
            raise AssertionError("a tokenizer that is not there was taken")
    with contextlib.chdir(scene.output), contextlib.suppress(TokenmillError):
        tokenmill.prepare(scene.inputs, scene.folder / "p", quiet=True, workers=0, tokenizer=name)
    assert (scene.outside / VICTIM).read_bytes() == b"precious" * 100


def source_name(scene: Scene, name: str) -> None:
    """Names of inputs in a manifest, looked for under --source-root."""
    if not json_can(name):
        return
    scene.begin("finished")
    path = scene.output / "manifest.json"
    manifest = Manifest.load(path.parent)
    sources = [{**entry, "name": name} for entry in manifest.sources]
    path.write_bytes(msgspec.structs.replace(manifest, sources=sources).sealed().encode())
    root = scene.folder / "root"
    root.mkdir()
    scene.attempt(lambda: tokenmill.verify_deep(scene.output, source_root=root, sample="all"))


PLACES: dict[str, Callable[[Scene, str], None]] = {
    "--name": name_option,
    "manifest token": in_manifest("token file"),
    "manifest index": in_manifest("index file"),
    "manifest stream": in_manifest("stream"),
    "manifest source": source_name,
    "removing.json": in_removing,
    "commit.json source": in_commit("source"),
    "commit.json target": in_commit("target"),
    "journal": in_journal,
    "tokenizer": tokenizer_path,
}

# --- links and pipes in place of our files -----------------------------------------------------

LINKS = (
    ".tokenmill", ".tokenmill/files", ".tokenmill/spill", ".tokenmill/lock", ".tokenmill/plan.json",
    ".tokenmill/journal", ".tokenmill/commit.json", ".tokenmill/removing.json",
    ".tokenmill/.plan.json.tmp", ".tokenmill/files/tokens-train-000000",
    ".tokenmill/files/train.ends", "index", ".manifest.json.tmp", ".run.json.tmp",
)  # fmt: skip
PIPES = (
    "train.bin",
    "index/pieces",
    "index/units",
    "index/train.ends",
    "run.json",
    "manifest.json",
)


def planted_link(scene: Scene, where: str) -> None:
    """A link to what is precious, in place of what prepare writes to or removes."""
    for begin in (scene.unfinished, scene.prepare):
        begin()
        path = scene.output / where
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        whole = where in (".tokenmill", "index", ".tokenmill/files", ".tokenmill/spill")
        path.symlink_to(scene.outside if whole else scene.outside / VICTIM)
        scene.attempt(*scene.writers())
        shutil.rmtree(scene.output)


def linked_file(scene: Scene) -> None:
    """A dataset's own file moved away and linked: `verify` says so, readers read it, and of it
    only the link is ever removed. Where all files are links, as in the Hub's cache, it is fine."""
    scene.prepare()
    away = scene.outside / "train.bin"
    (scene.output / "train.bin").rename(away)
    (scene.output / "train.bin").symlink_to(away)
    (problem,) = tokenmill.verify(scene.output).problems
    assert problem.startswith("train.bin: is a link to a file outside of the folder"), problem
    assert len(tokenmill.open_dataset(scene.output)["train"].tokens[:5]) == 5, "it is read"
    view = scene.outside / "view"
    shutil.copytree(scene.output, view, copy_function=os.symlink)
    assert tokenmill.verify(view).ok, "a view of links is a dataset"
    assert scene.prepare().already_done
    content = away.read_bytes()
    scene.prepare(overwrite=True)
    assert away.read_bytes() == content, "what a link points to was removed"
    assert not (scene.output / "train.bin").is_symlink()


def planted_pipe(scene: Scene, where: str) -> None:
    """A pipe that nobody writes to: readers must say so, and not wait for ever."""
    scene.prepare()
    path = scene.output / where
    path.unlink()
    os.mkfifo(path)
    refused = scene.attempt(*scene.readers())
    if where == "run.json":
        assert tokenmill.verify(scene.output).ok, "run.json is no part of the data"
    elif refused < len(scene.readers()):
        report = tokenmill.verify(scene.output)
        assert not report.ok, "verify took a pipe for a file"


# --- secrets ---------------------------------------------------------------------------------

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAsecret0000001", "AWS_SECRET_ACCESS_KEY": "secret0000002/x+y",
    "AWS_SESSION_TOKEN": "secret0000003", "HF_TOKEN": "hf_secret0000004",
    "HUGGING_FACE_HUB_TOKEN": "hf_secret0000005", "OPENAI_API_KEY": "sk-secret0000006",
    "GITHUB_TOKEN": "ghp_secret0000007", "HTTPS_PROXY": "http://me:secret0000008@proxy:1",
    "DATABASE_URL": "postgres://me:secret0000009@db/x",
}  # fmt: skip
NEEDLE = "secret00000"


def secrets(folder: Path, new_process: bool) -> None:
    """Every way to end, with secrets all around: none in what is written or printed."""
    scene = Scene(folder)
    bad = folder / "bad.jsonl"
    bad.write_bytes(b'{"text": "fine"}\n{"text": 7}\nnot json\n')
    url = "https://me:secret0000010@host/a.parquet?X-Amz-Signature=secret0000011&b=c"
    out = folder / "out"
    runs: list[tuple[list[object], int]] = [
        (["prepare", scene.input, "-o", out / "a", "--allow-empty-split"], 0),
        (["prepare", scene.input, "-o", out / "a", "--seed", "3"], 2),
        (["prepare", scene.input, "-o", out / "b", "--val", "none", "--json", "--workers", "0"], 0),
        (["plan", scene.input, "-o", out / "c", "--json"], 0),
        (["prepare", bad, "-o", out / "d", "--workers", "1"], 1),
        (["prepare", bad, "-o", out / "e", "--on-bad-row", "quarantine", "--val", "none"], 4),
        (["prepare", url, "-o", out / "f"], 2),
        (["prepare", url.partition("?")[0], "-o", out / "f"], 2),
        (["prepare", scene.input, "-o", url], 2),
        (["prepare", scene.input, "-o", out / "f", "--tokenizer", url], 2),
        (["prepare", scene.input, "-o", out / "f", "--workers", url], 2),
        (["prepare", scene.input, "-o", out / "f", "--val", url], 2),
        (["verify", url], 2),
        (["inspect", url], 2),
        (["verify", out / "a", "--deep"], 0),
        (["inspect", out / "a", "--document", "0", "--json"], 0),
    ]
    home = folder / "home"
    home.mkdir()
    env = {**SECRETS, "XDG_CACHE_HOME": str(home), "HOME": str(home)}
    for arguments, code in runs:
        if new_process:
            done = command(*arguments, env=env, cwd=folder)
            succeed(done, code)
            printed = done.stdout + done.stderr
        else:
            with mock.patch.dict(os.environ, env), contextlib.chdir(folder):
                ended, printed = in_process(*arguments)
            assert ended == code, f"{arguments[0]}: exit {ended}, should be {code}: {printed}"
        assert NEEDLE not in printed, f"printed by {arguments[0]}: {printed}"
    assert (out / "d" / ".tokenmill" / "plan.json").exists(), "an unfinished job is looked at too"
    for path in folder.rglob("*"):
        assert NEEDLE not in path.name, f"in a name: {path.name}"
        if path.is_file():
            assert NEEDLE.encode() not in path.read_bytes(), f"written to {path.name}"


# --- what is printed -------------------------------------------------------------------------

STEERING = [
    "a\x1b[31mred",
    "b\x1b]0;title\x07",
    "c\nerror: forged",
    "d\x9b2J",
    "e\u202etxt",
    "f\rg",
]


def terminal(folder: Path) -> None:
    """Names of inputs, outputs and foreign files that would steer a terminal come out escaped."""
    inputs = folder / "in"
    inputs.mkdir()
    for name in STEERING:
        write_jsonl(inputs / f"{name}.jsonl", documents(5, name))
    (inputs / f"_skipped{STEERING[0]}.jsonl").write_text("x")
    broken = write_jsonl(folder / f"broken{STEERING[0]}.jsonl", ["x"])
    broken.write_bytes(broken.read_bytes() + b"not json\n")
    foreign = folder / "foreign"
    foreign.mkdir()
    (foreign / STEERING[1]).write_text("not ours")
    out = folder / f"o{STEERING[0]}"
    steps: list[tuple[list[object], int]] = [
        (["plan", inputs, "-o", out], 0),
        (["prepare", inputs, "-o", out, "--workers", "0", "--val", "none"], 0),
        (["prepare", inputs, "-o", out, "--workers", "0", "--val", "none"], 0),
        (["prepare", broken, "-o", out, "--workers", "0", "--val", "none"], 2),
        (["prepare", broken, "-o", folder / "p", "--workers", "0"], 1),
        (["prepare", broken, "-o", foreign, "--workers", "0"], 2),
        (["prepare", folder / STEERING[1], "-o", folder / "q"], 2),
        (["inspect", out], 0),
        (["inspect", out, "--document", "0"], 0),
        (["verify", out], 0),
        (["verify", out, "--deep", "--sample", "all"], 0),
        (["verify", folder / STEERING[2]], 2),
        (["prepare", broken, "-o", out, "--tokenizer", STEERING[0]], 2),
        (["prepare", broken, "-o", out, "--workers", STEERING[0]], 2),
        (["prepare", broken, "-o", out, "--format", "llmc", "--name", STEERING[0]], 2),
    ]
    for arguments, code in steps:
        ended, printed = in_process(*arguments)
        assert ended == code, f"{arguments[0]}: exit {ended}, should be {code}: {printed[-500:]}"
        loose = {c for c in printed if not c.isprintable()} - {"\n", "\t"}
        assert not loose, f"{arguments[:2]} printed {loose}: {printed[-500:]!r}"
        assert "\nerror: forged" not in printed, "a name made a line of its own"


def _numbered(check: Check) -> Iterator[str]:
    count = len(hostile_names(Path("/x")))
    for place in PLACES:
        for number in range(0, count, check.scale(1, 41)):
            yield f"{place} | {number}"


def run(check: Check) -> str:
    whole: dict[str, Callable[[Path], None]] = {
        "source text": source_text, "terminal": terminal,
        "secrets": lambda folder: secrets(folder, new_process=not check.fast),
    }  # fmt: skip
    names = [f"{what} | 0" for what in whole]
    names += [f"link | {where}" for where in LINKS] + [f"pipe | {where}" for where in PIPES]
    names += ["linked file | 0", *_numbered(check)]

    def one(case: str, folder: Path) -> None:
        what, which = case.split(" | ")
        if what in whole:
            whole[what](folder)
            return
        scene = Scene(folder)
        if what == "link":
            planted_link(scene, which)
        elif what == "pipe":
            planted_pipe(scene, which)
        elif what == "linked file":
            linked_file(scene)
        else:
            PLACES[what](scene, hostile_names(scene.outside)[int(which)])

    for state in ("finished", "unfinished", "decided"):
        template = check.scratch / f"template-{state}"
        template.mkdir()
        Scene(template).begin(state)
    check.each(names, one)
    modules = len(list((ROOT / "src").rglob("*.py")))
    return (
        f"{modules} modules without a danger; {len(hostile_names(Path('/x')))} hostile names in "
        f"{len(PLACES)} places, {len(LINKS)} links, {len(PIPES)} pipes, "
        f"{len(SECRETS) + 2} secrets: {check.cases - len(check.failures)} of {check.cases} cases "
        "harmless"
    )
