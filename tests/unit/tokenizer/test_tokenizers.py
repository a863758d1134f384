"""Tokenizers that users bring: exact against the library each belongs to, and nothing guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inputs import write_parquet
from support.tokenizer_files import ADDED, SIZE, added, rules, train_sentencepiece, write_json
from support.tokenizers import (
    KNOWN,
    folder,  # noqa: F401
    json_file,  # noqa: F401
    library_ids,
)

import tokenmill as mill
from tokenmill.errors import EncoderError, UsageError
from tokenmill.texts import count_strings, from_bytes
from tokenmill.tokenizer.bundled import bundled_ranks_file
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.files import find_encoding

STRINGS = [str(token["content"]) for token in ADDED]


@pytest.fixture(scope="module")
def spm_file(folder: Path, texts: list[str]) -> Path:
    return train_sentencepiece(folder / "tokenizer.model", texts[:200])


def with_added_tokens(texts: list[str]) -> list[str]:
    """The texts with strings of special and other added tokens in odd places."""
    mixed = []
    for index, text in enumerate(texts):
        token = STRINGS[index % len(STRINGS)]
        middle = len(text) // 2
        mixed.append(text[:middle] + token + text[middle:])
        mixed.append(token + token + text[:50] + " " + token)
    return mixed


def split_ids(encoder: ExactEncoder, texts: list[str]) -> list[list[int]]:
    ids, offsets = encoder.encode(from_bytes([text.encode() for text in texts]))
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


def opened(path: Path) -> ExactEncoder:
    return ExactEncoder(find_encoding(str(path)), "auto")


def test_a_tokenizer_json_gives_the_ids_of_its_library(json_file: Path, texts: list[str]) -> None:
    mixed = with_added_tokens(texts[::2])
    encoder = opened(json_file)
    assert encoder._fast is not None, "gigatoken serves"
    for text, ids in zip(mixed, split_ids(encoder, mixed), strict=True):
        assert ids == library_ids(json_file, text), text[:100]


MARKS = "".join(map(chr, range(0x300, 0x370))) + "ٌࢱ゙်᪱ᷭ각̈가𝅥"


@given(
    text=st.text(
        st.one_of(
            st.characters(exclude_categories=["Cs"]),
            st.sampled_from(MARKS + "abcXYZ 012\n\r\t'"),
        ),
        max_size=60,
    ),
    name=st.sampled_from(KNOWN),
    token=st.sampled_from(STRINGS),
)
def test_any_text_gives_the_ids_of_the_library(
    folder: Path, text: str, name: str, token: str
) -> None:
    path = folder / name / "tokenizer.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_json(path, name)
    if path not in _open:
        _open[path] = opened(path)
    documents = [text, text + token + text, token + text]
    expected = [library_ids(path, document) for document in documents]
    assert split_ids(_open[path], documents) == expected


_open: dict[Path, ExactEncoder] = {}


def test_the_rules_of_the_models_files_are_proven(tmp_path: Path) -> None:
    expected = {"gpt2": "gpt2", "llama3": "llama3", "qwen2": "qwen2 NFC", "deepseek": "deepseek"}
    for name in KNOWN:
        encoding = find_encoding(str(write_json(tmp_path / "t.json", name)))
        assert (encoding.rules, encoding.why_slow) == (expected[name], "")
        assert encoding.cuttable


def test_what_does_not_change_ids_does_not_change_the_rules(tmp_path: Path) -> None:
    same = rules("qwen2")
    level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
    }  # fmt: skip
    same["pre_tokenizer"]["pretokenizers"][1] = level
    assert find_encoding(str(write_json(tmp_path / "t.json", **same))).rules == "qwen2 NFC"
    level["add_prefix_space"] = True
    encoding = find_encoding(str(write_json(tmp_path / "t.json", **same)))
    assert not encoding.rules
    assert encoding.why_slow == (
        "pre-tokenizer Split before ByteLevel is not proven for the fast encoder"
    )


def test_a_wordpiece_tokenizer_goes_to_the_reference(
    folder: Path, tmp_path: Path, texts: list[str]
) -> None:
    vocab = {"[UNK]": 0, **{chr(97 + i): i + 1 for i in range(26)}}
    vocab |= {f"##{chr(97 + i)}": i + 27 for i in range(26)}
    model = {
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": vocab,
    }  # fmt: skip
    path = write_json(
        tmp_path / "wp.json",
        tokens=[added("[SEP]", 60, special=True)],
        model=model,
        normalizer={"type": "Lowercase"},
        pre_tokenizer={"type": "Whitespace"},
    )
    source = write_parquet(tmp_path / "a.parquet", texts[:20])
    with pytest.raises(UsageError, match="eot_token"):
        mill.prepare(source, tmp_path / "o", tokenizer=str(path), workers=0)
    mill.prepare(
        source, tmp_path / "o", tokenizer=str(path), eot_token="[SEP]", val="none", workers=0
    )
    expected = [i for text in texts[:20] for i in [*library_ids(path, text), 60]]
    assert np.fromfile(tmp_path / "o" / "train.bin", np.uint16).tolist() == expected


def test_the_separator_is_the_files_or_named_and_never_guessed(folder: Path) -> None:
    def eot(tokens: object, **options: object) -> int:
        from tokenmill.pipeline import make_options, plan_settings

        path = write_json(folder / "eot.json", tokens=tokens)
        return plan_settings(make_options({"tokenizer": str(path), **options}), "out").eot_id

    two = [*ADDED, added("</s>", SIZE + 5, special=True)]
    none = [added("<x>", SIZE, special=True), added("<y>", SIZE + 1, special=True)]
    assert eot(ADDED) == SIZE
    with pytest.raises(UsageError, match="has several candidates") as caught:
        eot(two)
    assert "'</s>' (8005)" in caught.value.hint
    assert eot(two, eot_token="</s>") == SIZE + 5
    with pytest.raises(UsageError, match="does not define an end-of-text token") as caught:
        eot(none)
    assert "'<x>' (8000), '<y>' (8001)" in caught.value.hint
    assert eot(none, eot="none") == -1
    assert eot(none, eot_token=8001) == 8001
    assert eot(none, eot_token="17") == 17
    assert eot(ADDED, eot_token="<tool_call>") == SIZE + 2, "any added token may separate"
    with pytest.raises(UsageError, match="no such token"):
        eot(none, eot_token="<|nope|>")
    with pytest.raises(UsageError, match="has 8002 ids"):
        eot(none, eot_token=8002)


def test_the_files_beside_a_tokenizer_json_have_a_say(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    assert find_encoding(str(tmp_path)).eot_id == SIZE
    config.write_text(json.dumps({"eos_token": "<|im_start|>", "bos_token": "[pad]"}))
    encoding = find_encoding(str(tmp_path))
    assert encoding.eot_id == -1, "the file says one thing, its neighbour another"
    assert encoding.eot_candidates == ("<|im_start|>", "<|endoftext|>")
    assert encoding.bos_candidates == ("[pad]",)


def test_bos_begins_every_document(json_file: Path, texts: list[str], tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", texts[:30])
    for eot in ("append", "prepend", "none"):
        mill.prepare(
            source,
            tmp_path / eot,
            tokenizer=str(json_file),
            bos_token="<|im_start|>",
            eot=eot,
            val="none",
            workers=0,
        )
        expected: list[int] = []
        for text in texts[:30]:
            ids = [SIZE + 1, *library_ids(json_file, text)]
            ids = [*ids, SIZE] if eot == "append" else ids
            expected += [SIZE, *ids] if eot == "prepend" else ids
        assert np.fromfile(tmp_path / eot / "train.bin", np.uint16).tolist() == expected
    with pytest.raises(UsageError, match="a begin-of-text token"):
        mill.prepare(source, tmp_path / "x", tokenizer=str(json_file), bos_token="auto", workers=0)


def test_ids_that_the_library_renumbers_are_found(tmp_path: Path) -> None:
    tokens = [*ADDED, added("<|gap|>", SIZE + 90, special=True)]
    encoding = find_encoding(str(write_json(tmp_path / "t.json", tokens=tokens)))
    assert encoding.special_tokens["<|gap|>"] == SIZE + 90, "the file's id, not the library's"
    assert encoding.vocab_size == SIZE + 91
    tokens = [*ADDED, added("<gap>", SIZE + 90, special=False)]
    with pytest.raises(UsageError, match="8090 in the file, but the tokenizers library gives it"):
        find_encoding(str(write_json(tmp_path / "t.json", tokens=tokens)))


def test_strings_of_special_tokens_in_the_text_are_counted(folder: Path) -> None:
    specials = [b"<|endoftext|>", b"[pad]", "<｜begin▁of▁sentence｜>".encode(), b"<s>", b"|x|"]
    texts = [
        "a[pad]b <s>",
        "<｜begin▁of▁sentence｜> <|endoftext|><|endoftext|",
        "<",
        "s>|x|[pa",
        "d]",
    ]
    assert count_strings(from_bytes([t.encode() for t in texts]), specials) == 5


def test_a_tiktoken_file_needs_its_pattern_and_its_separator(tmp_path: Path) -> None:
    ranks = bundled_ranks_file("gpt2").splitlines(keepends=True)[:SIZE]
    path = tmp_path / "own.tiktoken"
    path.write_bytes(b"".join(ranks))
    with pytest.raises(UsageError, match="does not say how text is split") as caught:
        find_encoding(str(path))
    assert "gpt2, cl100k, o200k, llama3, qwen2" in caught.value.hint
    with pytest.raises(UsageError, match="unknown"):
        find_encoding(str(path), "klingon")
    source = write_parquet(tmp_path / "a.parquet", ["hello 12345 <|endoftext|>  world's"])
    with pytest.raises(UsageError, match="eot_token") as caught:
        mill.prepare(source, tmp_path / "o", tokenizer=str(path), pattern="llama3", workers=0)
    assert "give an id, such as 8000" in caught.value.hint
    options = {"tokenizer": str(path), "eot_token": 8000, "val": "none", "workers": 0}
    own_pattern = r"\S+|\s+"
    for pattern in ("llama3", "qwen2", "gpt2", own_pattern):
        import tiktoken

        from tokenmill.tokenizer.bundled import PATTERNS
        from tokenmill.tokenizer.families.tiktoken import parse_ranks

        output = tmp_path / f"o{len(pattern)}"
        mill.prepare(source, output, pattern=pattern, **options)
        reference = tiktoken.Encoding(
            "own",
            pat_str=PATTERNS.get(pattern, pattern),
            mergeable_ranks=parse_ranks(path.read_bytes(), path),
            special_tokens={},
        )
        ids = [*reference.encode_ordinary("hello 12345 <|endoftext|>  world's"), 8000]
        assert np.fromfile(output / "train.bin", np.uint16).tolist() == ids, pattern


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:-3]], "not a token|cut short"),
        (lambda lines: [*lines, lines[5]], "repeats a token"),
        (lambda lines: lines[:40] + lines[41:], "no rank for byte"),
        (lambda lines: [*lines[:300], b"###\n", *lines[300:]], "line 301"),
        (lambda lines: [*lines, b"AAAAAAAA 5\n"], "two tokens have one rank"),
    ],
)
def test_a_damaged_tiktoken_file_is_refused(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "own.tiktoken"
    lines = bundled_ranks_file("gpt2").splitlines(keepends=True)[:SIZE]
    path.write_bytes(b"".join(damage(lines)))  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        find_encoding(str(path), "gpt2")


def test_what_a_tokenizer_file_is_its_content_tells(tmp_path: Path, spm_file: Path) -> None:
    cases = {
        "empty": b"",
        "noise.model": b"\x00\x01\x02" * 100,
        "other.json": b'{"hello": 1}',
        "cut.json": write_json(tmp_path / "t.json").read_bytes()[:5000],
        "cut.model": spm_file.read_bytes()[:200],
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="--tokenizer"):
            find_encoding(str(tmp_path / name))
    (tmp_path / "model").mkdir()
    with pytest.raises(UsageError, match=r"no tokenizer\.json or tokenizer\.model"):
        find_encoding(str(tmp_path / "model"))
    with pytest.raises(UsageError, match="unknown tokenizer 'nowhere'"):
        find_encoding("nowhere")
    with pytest.raises(UsageError, match="has its own"):
        find_encoding("gpt2", "cl100k")
    with pytest.raises(UsageError, match="says itself"):
        find_encoding(str(spm_file), "cl100k")


def test_the_files_hash_is_in_the_plan_and_compared(tmp_path: Path, texts: list[str]) -> None:
    path = write_json(tmp_path / "tokenizer.json")
    source = write_parquet(tmp_path / "a.parquet", texts[:10])
    result = mill.prepare(source, tmp_path / "o", tokenizer=str(tmp_path), workers=0)
    settings_ = result.manifest.plan["settings"]
    encoding = find_encoding(str(path))
    assert settings_["tokenizer_sha256"] == encoding.sha256
    assert settings_["tokenizer"] == "tokenizer.json", "no path of this machine"
    write_json(tmp_path / "tokenizer.json", tokens=ADDED[:3])
    with pytest.raises(EncoderError, match="not the file that this job was planned with"):
        ExactEncoder(encoding, "auto")
    with pytest.raises(mill.TokenmillError, match="tokenizer_sha256"):
        mill.prepare(source, tmp_path / "o", tokenizer=str(tmp_path), workers=0)


def test_dtype_is_a_choice_where_the_ids_fit(tmp_path: Path, texts: list[str]) -> None:
    source = write_parquet(tmp_path / "a.parquet", texts[:10])
    for dtype in ("uint16", "uint32"):
        mill.prepare(source, tmp_path / dtype, val="none", dtype=dtype, workers=0)
    narrow = np.fromfile(tmp_path / "uint16" / "train.bin", np.uint16)
    assert np.array_equal(narrow, np.fromfile(tmp_path / "uint32" / "train.bin", np.uint32))
    with pytest.raises(UsageError, match="ids up to 100276"):
        mill.prepare(source, tmp_path / "x", tokenizer="cl100k_base", dtype="uint16", workers=0)
    with pytest.raises(UsageError, match="must be one of"):
        mill.prepare(source, tmp_path / "x", dtype="float16", workers=0)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [*ADDED, added("zap", SIZE + 5, special=False, single_word=True)]},
        {
            "tokens": [
                *ADDED,
                added("<|zap|>", SIZE + 5, special=True),
                added("zap", SIZE + 6, special=False),
            ]
        },
        {
            "tokens": [
                *ADDED,
                added("zapx", SIZE + 5, special=True),
                added("xzip", SIZE + 6, special=False),
            ]
        },
    ],
)
def test_what_gigatoken_reads_differently_goes_to_the_reference(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = write_json(tmp_path / "t.json", **change)
    texts = ["zap zapper xzap", "a<|zap|>b", "zapxzip", "zapx xzip", "plain"]
    encoder = ExactEncoder(find_encoding(str(path)), "auto")
    assert split_ids(encoder, texts) == [library_ids(path, text) for text in texts]
    assert encoder.is_fast
    assert 2 <= encoder.stats.reference_documents <= 4, "not the one without such a token"


@pytest.mark.parametrize("token", ["的，", "。的", "a b", " x"])
def test_no_cut_reaches_into_an_added_token(tmp_path: Path, token: str) -> None:
    tokens = [*ADDED, added(token, SIZE + 5, special=False)]
    assert not find_encoding(str(write_json(tmp_path / "t.json", tokens=tokens))).cuttable
    assert find_encoding(str(write_json(tmp_path / "t.json"))).cuttable


def test_models_that_cannot_be_exact_are_refused_or_left_to_the_reference(tmp_path: Path) -> None:
    model = json.loads(write_json(tmp_path / "t.json").read_text())["model"]
    with pytest.raises(UsageError, match="dropout"):
        find_encoding(str(write_json(tmp_path / "t.json", model={**model, "dropout": 0.1})))
    suffix = write_json(tmp_path / "t.json", model={**model, "end_of_word_suffix": "</w>"})
    encoding = find_encoding(str(suffix))
    assert encoding.why_slow == "end_of_word_suffix is not proven for the fast encoder"
    assert not encoding.rules
    assert not encoding.cuttable
    empty = {**model, "vocab": {}, "merges": []}
    with pytest.raises(UsageError, match="empty"):
        find_encoding(str(write_json(tmp_path / "t.json", model=empty)))


def test_user_defined_symbols_of_sentencepiece(tmp_path: Path, texts: list[str]) -> None:
    path = train_sentencepiece(tmp_path / "t.model", texts[:200], symbols=["ctl"])
    encoder = ExactEncoder(find_encoding(str(path)), "auto")
    documents = ["a ctl b ctl c", "ctl", "xctly", " ctl ", "other"]
    assert split_ids(encoder, documents) == [library_ids(path, text) for text in documents]
    assert encoder.is_fast
    assert encoder.stats.reference_documents == 4


def test_a_pattern_of_ones_own_is_tried_before_anything_is_bound(tmp_path: Path) -> None:
    path = tmp_path / "own.tiktoken"
    path.write_bytes(b"".join(bundled_ranks_file("gpt2").splitlines(keepends=True)[:SIZE]))
    for pattern, message in (
        ("(", "cannot use this expression"),
        ("[a-z]*", "cannot use this expression|does not cover"),
        ("[a-z]+", "does not cover every letter"),
    ):
        with pytest.raises(UsageError, match=message):
            find_encoding(str(path), pattern)


def test_a_tokenizer_file_that_moved(tmp_path: Path, texts: list[str]) -> None:
    path = write_json(tmp_path / "t.json")
    source = write_parquet(tmp_path / "a.parquet", texts[:10])
    mill.prepare(source, tmp_path / "o", tokenizer=str(path), workers=0, val="none")
    moved = path.rename(tmp_path / "moved.json")
    with pytest.raises(UsageError, match="no such file") as caught:
        mill.verify_deep(tmp_path / "o")
    assert "tokenizer=FILE" in caught.value.hint
    assert mill.verify_deep(tmp_path / "o", tokenizer=str(moved)).ok
    view = mill.inspect_document(tmp_path / "o", document=1, tokenizer=str(moved))
    assert view.source == "a.parquet"


def test_a_tokenizer_json_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_json(tmp_path / "t.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert split_ids(opened(path), ["hello"]) == [
        library_ids(write_json(tmp_path / "u.json"), "hello")
    ]


def test_the_config_beside_a_file_settles_which_usual_name_is_meant() -> None:
    from tokenmill.tokenizer.families.tokenizer_json import END_NAMES, _candidates

    special = {"<|endoftext|>": 1, "<|end_of_text|>": 2, "<|eot_id|>": 3}
    assert set(_candidates(special, END_NAMES, "")) == {"<|endoftext|>", "<|end_of_text|>"}
    assert _candidates(special, END_NAMES, "<|end_of_text|>") == ("<|end_of_text|>",)
    assert _candidates(special, END_NAMES, "<|eot_id|>")[0] == "<|eot_id|>"
    assert len(_candidates(special, END_NAMES, "<|eot_id|>")) == 3


@pytest.mark.parametrize("name", ["./lama", "lama/tokenizer.json", "/nowhere/x.model"])
def test_a_path_that_is_not_there_is_called_that(name: str) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        find_encoding(name)
