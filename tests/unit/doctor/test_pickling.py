"""`explain_pickle` names the very object, and the patch repairs the script."""

from __future__ import annotations

import functools
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import dill
import gigatoken
import pytest
from support import reference
from support.commands import in_process
from support.inputs import ROOT

import tokenmill
from tokenmill import explain_pickle
from tokenmill.doctor.patching import patch_script
from tokenmill.doctor.pickling import PickleReport, PickleVerdict


def fast() -> Any:
    """gigatoken's tokenizer: with no pickler."""
    from tokenmill.tokenizer.bundled import bundled_ranks_file, get_encoding
    from tokenmill.tokenizer.families import family_of

    encoding = get_encoding("gpt2")
    backend = family_of(encoding).open_fast(encoding, bundled_ranks_file("gpt2"))
    return gigatoken.Tokenizer(backend)


def verdicts(report: PickleReport) -> dict[str, PickleVerdict]:
    return {verdict.pickler: verdict for verdict in report.verdicts}


def test_a_closure_over_a_core_bpe_is_named_with_its_path() -> None:
    class Holder:
        def __init__(self) -> None:
            self.name = "fine"
            self._core_bpe = reference.encoding("gpt2")._core_bpe

    enc = Holder()

    def tokenize(row: Any) -> Any:
        return enc._core_bpe.encode_ordinary(row["text"])

    found = verdicts(explain_pickle(tokenize))
    for pickler in ("dill", "dill, recursive", "cloudpickle"):
        assert found[pickler].path == ("closure variable `enc`", "`_core_bpe`"), pickler
        assert found[pickler].culprit == "CoreBPE"
        assert "CoreBPE" in found[pickler].error
        assert "tokenmill.Tokenizer" in found[pickler].advice
    assert "closure variable `enc` -> `_core_bpe` (CoreBPE)" in str(explain_pickle(tokenize))
    # plain pickle does not get that far: it takes no local function at all
    assert (found["pickle"].path, found["pickle"].culprit) == ((), "local function")


def test_defaults_attributes_items_partials_and_methods_are_walked() -> None:
    lock = threading.Lock()

    def by_default(row: Any, *, options: Any = {"deep": [1, lock]}) -> None:  # noqa: B006
        pass

    def plain_default(row: Any, held: Any = lock) -> None:
        pass

    def by_attribute(row: Any) -> None:
        pass

    by_attribute.held = lock  # type: ignore[attr-defined]

    class Worker:
        def __init__(self) -> None:
            self.inner = {"lock": lock}

        def tokenize(self, row: Any) -> None:
            pass

    for function, path in (
        (by_default, ("default of `options`", "['deep']", "[1]")),
        (plain_default, ("default of `held`",)),
        (by_attribute, ("attribute `held`",)),
        (Worker().tokenize, ("object that the method belongs to", "`inner`", "['lock']")),
        (functools.partial(len, held=lock), ("argument `held` of the partial",)),
        (functools.partial(len, (3, lock)), ("argument 0 of the partial", "[1]")),
    ):
        found = verdicts(explain_pickle(function))["cloudpickle"]
        assert found.path == path, path
        assert found.culprit == "thread.lock"
        assert "lock belongs to one process" in found.advice


def test_an_attribute_that_its_class_leaves_out_is_no_culprit() -> None:
    class Careful:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.file = None

        def __getstate__(self) -> dict[str, Any]:
            return {"file": threading.Lock()}

    careful = Careful()
    found = verdicts(explain_pickle(lambda: careful))["cloudpickle"]
    assert found.path == ("closure variable `careful`", "`file`")


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: open(os.devnull, "w"), "pass the path"),  # noqa: SIM115
        (lambda: (x for x in "ab"), "pass a list"),
        (fast, "tokenmill.Tokenizer"),
        (threading.RLock, "lock belongs"),
    ],
)
def test_the_advice_fits_the_culprit(make: Any, word: str) -> None:
    held = make()
    found = verdicts(explain_pickle(lambda: held))["cloudpickle"]
    assert not found.ok
    assert word in found.advice
    if hasattr(held, "close"):
        held.close()


def test_a_function_that_pickles_says_how_large_it_is() -> None:
    report = explain_pickle(tokenmill.Tokenizer("cl100k_base").map)
    assert report.ok
    assert all(0 < verdict.size < 10_000 for verdict in report.verdicts)
    large = b"x" * 2_000_000
    assert "2.0 MB, which every task carries along" in str(explain_pickle(lambda: large))


def test_what_pickles_but_does_not_come_back_is_found() -> None:
    report = explain_pickle(functools.partial(print, OddError()))
    found = verdicts(report)
    for pickler in ("pickle", "cloudpickle"):
        assert "does not come back: TypeError" in found[pickler].error


def test_an_open_file_in_a_closure_is_not_emptied_by_looking_at_it(tmp_path: Path) -> None:
    """dill opens it anew where it is unpickled, as it was opened: to write, from the start."""
    path = tmp_path / "results.txt"
    with path.open("w") as file:
        file.write("hours of work")
        file.flush()
        explain_pickle(lambda row: file.write(row + row))
        assert path.read_text() == "hours of work"


class OddError(Exception):
    """The kind of exception that makes a pool wait for ever."""

    def __init__(self) -> None:
        super().__init__("one argument")


def test_loops_in_what_is_walked_end() -> None:
    loop: list[Any] = [threading.Lock()]
    loop.insert(0, loop)
    found = verdicts(explain_pickle(lambda: loop))["cloudpickle"]
    assert found.path == ("closure variable `loop`", "[1]")


def test_what_a_reduce_makes_on_the_way_is_not_taken_for_what_was_seen() -> None:
    """Its memory, and so its id, is used again for the next: that must not hide a culprit."""

    class Deep:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getstate__(self) -> dict[str, Any]:
            return {f"fresh {i}": [] for i in range(20)} | {"inner": [self.inner]}

    deep: Any = threading.Lock()
    for _ in range(8):
        deep = Deep(deep)
    found = verdicts(explain_pickle(lambda: deep))["cloudpickle"]
    assert found.culprit == "thread.lock", found.path


def test_globals_that_a_function_makes_itself_are_not_missed() -> None:
    def lazily(row: Any) -> Any:
        global encoder_of_this_process
        try:
            return encoder_of_this_process
        except NameError:
            encoder_of_this_process = row
        return row

    def with_a_class(row: Any) -> Any:
        class Local:
            first = row
            second = first

        return Local.second

    def by_another(row: Any) -> Any:
        return made_by_an_initializer  # type: ignore[name-defined] # noqa: F821

    assert explain_pickle(lazily).undefined == ()
    assert explain_pickle(with_a_class).undefined == ()
    report = explain_pickle(by_another)
    assert report.undefined == ("made_by_an_initializer",)
    assert "unless its pool's initializer makes it" in str(report)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('import tiktoken\nenc = tiktoken.get_encoding("gpt2")\n',
         'import tokenmill\nenc = tokenmill.Tokenizer("gpt2")\n'),
        ('import tiktoken as tk\nenc = tk.encoding_for_model("gpt-4")\n',
         'import tokenmill\nenc = tokenmill.Tokenizer("cl100k_base")\n'),
        ('from tiktoken import get_encoding\nenc = get_encoding("o200k_base")\n',
         'import tokenmill\nenc = tokenmill.Tokenizer("o200k_base")\n'),
        ('import os\nimport tiktoken\nx = tiktoken.get_encoding(os.environ["E"])\n',
         'import os\nimport tiktoken\nimport tokenmill\n'
         'x = tokenmill.Tokenizer(tiktoken.get_encoding(os.environ["E"]))\n'),
        ('"""Doc."""\nfrom __future__ import annotations\nimport tiktoken\nE = tiktoken.Encoding\n'
         'é = "é"; enc = E("x", pat_str=p, mergeable_ranks=r, special_tokens={})\n',
         '"""Doc."""\nfrom __future__ import annotations\nimport tiktoken\nE = tiktoken.Encoding\n'
         'é = "é"; enc = E("x", pat_str=p, mergeable_ranks=r, special_tokens={})\n'),
        ('import tiktoken\né = "é"; enc = tiktoken.Encoding("x", pat_str=p,\n'
         '  mergeable_ranks=r)\n',
         'import tiktoken\nimport tokenmill\né = "é"; enc = tokenmill.Tokenizer(tiktoken.Encoding('
         '"x", pat_str=p,\n  mergeable_ranks=r))\n'),
        ('import gigatoken\nenc = gigatoken.Tokenizer("openai-community/gpt2")\n'
         'def f(row):\n    return enc.encode(row["text"])\n',
         'import tokenmill\nenc = tokenmill.Tokenizer("gpt2")\n'
         'def f(row):\n    return enc.encode_to_numpy(row["text"], disallowed_special=())\n'),
        ('from gigatoken import Tokenizer\n'
         't = Tokenizer.from_tiktoken(p, pretokenizer="llama3", special_tokens=s)\n',
         'import tokenmill\nt = tokenmill.Tokenizer(p, pattern="llama3", special_tokens=s)\n'),
        ('import gigatoken\nt = gigatoken.Tokenizer("gpt2").as_tiktoken()\n',
         'import tokenmill\nt = tokenmill.Tokenizer("gpt2")\n'),
        ('import tiktoken._tiktoken\nb = tiktoken._tiktoken.CoreBPE(r, s, p)\n',
         'import tiktoken._tiktoken\nimport tokenmill\nb = tokenmill.Tokenizer(tiktoken.Encoding('
         '"custom", pat_str=p, mergeable_ranks=r, special_tokens=s))\n'),
        ('def main():\n    import tiktoken\n    e = tiktoken.get_encoding("gpt2")\n',
         'import tokenmill\ndef main():\n    import tiktoken\n'
         '    e = tokenmill.Tokenizer("gpt2")\n'),
        ('import tiktoken; import os  # both\ne = tiktoken.get_encoding("gpt2")\n',
         'import tokenmill; import os  # both\ne = tokenmill.Tokenizer("gpt2")\n'),
        ('import os, tiktoken; e = tiktoken.get_encoding("gpt2")\n',
         'import os, tiktoken; import tokenmill; e = tokenmill.Tokenizer("gpt2")\n'),
        ('#!/usr/bin/python\n# coding: utf-8\n@d\ndef f():\n    import tokenmill, tiktoken\n'
         '    return tiktoken.get_encoding("gpt2")\n',
         '#!/usr/bin/python\n# coding: utf-8\nimport tokenmill\n@d\ndef f():\n'
         '    import tokenmill, tiktoken\n    return tokenmill.Tokenizer("gpt2")\n'),
        ('import tokenmill\nimport tiktoken\ne = tiktoken.get_encoding("gpt2")\n',
         'import tokenmill\nimport tiktoken\ne = tokenmill.Tokenizer("gpt2")\n'),
        ('print("nothing to do")\n', 'print("nothing to do")\n'),
    ],
)  # fmt: skip
def test_every_way_to_make_a_tokenizer_is_repaired(before: str, after: str) -> None:
    assert patch_script(before).text == after


def test_what_cannot_be_repaired_safely_is_left_and_said() -> None:
    text = 'import gigatoken\nt = gigatoken.Tokenizer("Qwen/Qwen3-8B")\nx = t.encode_batch(y)\n'
    patched = patch_script(text)
    assert patched.text == text
    assert "line 2: 'Qwen/Qwen3-8B' is neither bundled nor a file" in patched.notes[0]
    assert "line 3: look at `t.encode_batch(y)` yourself" in patched.notes[1]


def test_what_our_tokenizer_does_not_have_is_said() -> None:
    patched = patch_script(
        'import tiktoken\ne = tiktoken.get_encoding("gpt2")\n'
        'x = e.encode("a"), e._special_tokens, e.encode_with_unstable("b")\n'
    )
    (note,) = patched.notes
    assert note.startswith("line 3: a tokenmill.Tokenizer has no `encode_with_unstable`")


def test_the_picklers_of_the_tests_are_those_of_the_report() -> None:
    assert [verdict.pickler for verdict in explain_pickle(len).verdicts] == [
        "pickle", "dill", "dill, recursive", "cloudpickle",
    ]  # fmt: skip
    assert all(hasattr(module, "dumps") for module in (pickle, dill, cloudpickle))
    assert (ROOT / "src").is_dir()


PATCHABLE = """\
import tiktoken
import gigatoken

name = "gpt2"
enc = tiktoken.get_encoding("gpt2")
core = tiktoken.get_encoding("gpt2")._core_bpe
mine = tiktoken.Encoding("x", pat_str="a", mergeable_ranks={}, special_tokens={})
chosen = tiktoken.get_encoding(name)
core2 = tiktoken._tiktoken.CoreBPE({}, {}, "a")
giga = gigatoken.Tokenizer("openai-community/gpt2")
as_tik = gigatoken.Tokenizer("gpt2").as_tiktoken()

def fn(text):
    return enc.encode(text), giga.encode(text), enc.nothing
"""


def test_a_script_that_was_patched_is_not_patched_again() -> None:
    once = patch_script(PATCHABLE)
    assert once.text != PATCHABLE
    assert not once.ours
    twice = patch_script(once.text)
    assert twice.text == once.text
    assert twice.ours
    assert "Tokenizer(tokenmill.Tokenizer" not in once.text
    (first,) = [note for note in once.notes if "enc.nothing" in note]
    (again,) = [note for note in twice.notes if "enc.nothing" in note]
    assert first.partition(":")[2] == again.partition(":")[2], "what is not repaired is said again"


@pytest.mark.parametrize(
    ("imported", "made"),
    [
        ("from transformers import AutoTokenizer", "AutoTokenizer.from_pretrained('gpt2')"),
        ("import tokenizers", "tokenizers.Tokenizer.from_file('x.json')"),
        ("import sentencepiece as spm", "spm.SentencePieceProcessor(model_file='x.model')"),
    ],
)
def test_patch_says_what_it_leaves_alone(imported: str, made: str) -> None:
    text = f"import tiktoken\n{imported}\nenc = tiktoken.get_encoding('gpt2')\ntok = {made}\n"
    patched = patch_script(text)
    assert made in patched.text
    assert f"line 4: `{made}` is left as it is" in patched.notes[0]


NESTED = """
import threading
import tiktoken

def main():
    enc = tiktoken.get_encoding("gpt2")
    limit: int = 5
    other = 7
    with open("notes.txt") as notes:
        def tokenize(row):
            notes.write("x")
            return enc.encode(row["text"])[:limit]
        print(other)
"""


def test_a_function_inside_a_function_names_what_it_takes_along(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NESTED)
    done = in_process("doctor", f"{script}:tokenize")
    assert done.returncode == 2
    assert "tokenize is made inside main()" in done.stderr
    assert (
        "`enc`, made in line 6: tiktoken.get_encoding('gpt2') (does not pickle; use" in done.stderr
    )
    assert "`notes`, made in line 9: open('notes.txt') (an open file does not" in done.stderr
    assert "`limit`, made in line 7: 5" in done.stderr
    assert "`other`" not in done.stderr
