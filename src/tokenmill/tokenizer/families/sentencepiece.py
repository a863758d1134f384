"""SentencePiece models (`.model`)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from tokenmill.errors import UsageError, faults_become, first_line
from tokenmill.tokenizer.bundled import Encoding, read_vocabulary
from tokenmill.tokenizer.families.base import Decode, Encode, Family, open_bpe, piece_bytes
from tokenmill.tokenizer.proof.piece_model import BYTE, PieceModel
from tokenmill.tokenizer.proof.proven import Verdict, judge_model, splits
from tokenmill.tokenizer.proof.rules import RULE_SETS


class SentencePieceFamily(Family):
    kind = "sentencepiece"
    library = "sentencepiece"
    speed = 4
    reference_factor = 70
    unbroken_factor = 50

    def recognises(self, head: bytes) -> bool:
        """Protobuf has no mark at its beginning, so any file may be one: the library tells."""
        return True

    def identify(self, path: Path, content: bytes, pattern: str) -> Encoding:
        model = load_sentencepiece(content, str(path))
        size = model.vocab_size()
        with faults_become(
            lambda e: UsageError(
                f"--tokenizer {path}: a control symbol is damaged: {first_line(e)}"
            )
        ):
            special = {model.id_to_piece(i): i for i in range(size) if model.is_control(i)}
        try:
            pieces = PieceModel(content)
            verdict, symbols = judge_model(pieces), pieces.user_defined
        except ValueError as error:  # the library can read it, in whatever way
            verdict, symbols = Verdict("", f"its file is not written as usual: {error}"), []
        return Encoding(
            name=path.name,
            kind=self.kind,
            sha256=hashlib.sha256(content).hexdigest(),
            path=os.path.abspath(path),
            special_tokens=special,
            vocab_size=size,
            rules=verdict.rules,
            why_slow=verdict.why_slow,
            screened=tuple(symbols),
            eot_candidates=_piece(model, model.eos_id()),
            bos_candidates=_piece(model, model.bos_id()),
            cuttable=False,
        )

    def open_reference(self, encoding: Encoding) -> Encode:
        opened = open_model(encoding)
        return lambda text: opened.encode(text, out_type=int)

    def open_fast(self, encoding: Encoding, content: bytes) -> Any:
        """SentencePiece merges whatever pair makes the piece of the highest score."""
        model = PieceModel(content)
        scores = model.normal
        vocab = {
            piece: number
            for number, (piece, kind) in enumerate(model.kinds.items())
            if piece in scores or kind == BYTE
        }
        ranked = sorted(
            (-score, -len(left), -len(right), left, right)
            for piece, score in scores.items()
            for left, right in splits(piece, scores)
        )
        merges = [(left, right) for *_, left, right in ranked]
        plain = {"vocab": vocab, "merges": merges, "byte_fallback": True}
        return open_bpe(plain, [], RULE_SETS[encoding.rules])

    def token_bytes(self, encoding: Encoding) -> dict[int, bytes]:
        model = open_model(encoding)
        return {i: piece_bytes(model.id_to_piece(i)) for i in range(model.vocab_size())}

    def open_text_decoder(self, encoding: Encoding) -> Decode:
        opened = open_model(encoding)
        return lambda ids: str(opened.decode(ids))


def open_model(encoding: Encoding) -> Any:
    return load_sentencepiece(read_vocabulary(encoding), encoding.path)


def _piece(model: Any, index: int) -> tuple[str, ...]:
    return (model.id_to_piece(index),) if index >= 0 else ()


def load_sentencepiece(content: bytes, where: str) -> Any:
    import sentencepiece

    with faults_become(
        lambda e: UsageError(
            f"--tokenizer {where}: neither a tokenizer.json, nor .tiktoken ranks, nor a "
            f"SentencePiece model: {first_line(e)}"
        )
    ):
        if not content:
            raise ValueError("the file is empty")
        return sentencepiece.SentencePieceProcessor(model_proto=content)
