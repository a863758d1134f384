"""What identifies a tokenizer in any process: a few strings, whatever it was made from.

A bundled encoding is its name, a file its path and SHA-256. An object of another library
(`tiktoken.Encoding`, `tokenizers.Tokenizer`, a `transformers` tokenizer, a SentencePiece
processor) is written once to the user's cache under its SHA-256 and is that from then on; or its
bytes go along (`embed`), for machines that do not share the cache.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from tokenmill.errors import EncoderError, StorageError, UsageError
from tokenmill.system.cache import cache_folder, find_kept, keep_anywhere
from tokenmill.tokenizer.bundled import ENCODINGS, Encoding, read_vocabulary, write_ranks
from tokenmill.tokenizer.families import family_of
from tokenmill.tokenizer.families.tiktoken import encoding_of_ranks
from tokenmill.tokenizer.files import find_encoding, special_id


class Recipe(NamedTuple):
    """All that is pickled of a tokenizer: plain values, the same on every day and machine."""

    how: Literal["bundled", "file", "kept", "ranks"]
    where: str  # the name, the path, or the folder in which it is kept; '': its bytes go along
    sha256: str
    pattern: str = ""  # of a .tiktoken file
    eot: int = -1  # the separator's id; -1: neither the file nor the caller says


class RanksDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks alone do not say; kept beside them, since 1,000 special tokens take 30 KB."""

    version: int = 1
    name: str
    ranks_sha256: str
    pattern: str
    special_tokens: dict[str, int]


class IdentifiedTokenizer(NamedTuple):
    """A tokenizer as this process knows it."""

    recipe: Recipe
    encoding: Encoding
    contents: tuple[bytes, ...] = ()  # what another process needs, where it must be carried


def recipe_for(
    source: Any,
    pattern: str,
    special_tokens: dict[str, int] | None,
    eot: str | int | None,
    embed: bool,
) -> IdentifiedTokenizer:
    """From whatever names a tokenizer, or is one."""
    if isinstance(source, str | os.PathLike):
        found = _from_name(os.fspath(source), pattern, special_tokens, embed)
    elif pattern or special_tokens is not None:
        raise UsageError(
            "pattern and special_tokens are for .tiktoken files: an object has its own"
        )
    else:
        found = _from_object(source)
    recipe = found.recipe._replace(eot=_separator(found.encoding, eot))
    if recipe.how in ("kept", "ranks") and not embed:
        # A worker's own idea of where the cache is may be another: a fork server is older than us.
        recipe = recipe._replace(where=os.path.dirname(found.encoding.path))
    return found._replace(recipe=recipe)


def find_again(recipe: Recipe, contents: tuple[bytes, ...]) -> Encoding:
    """The encoding of a recipe that came from another process; never another vocabulary."""
    if recipe.how == "bundled":
        encoding = ENCODINGS.get(recipe.where)
        if encoding is None or encoding.sha256 != recipe.sha256:
            raise EncoderError(
                f"the bundled tokenizer {recipe.where} differs from the one in the process "
                "that sent it",
                hint="use the same version of tokenmill on all machines",
            )
        return encoding
    for content in contents:
        _keep(content)
    if recipe.how == "ranks":
        description = _kept_file(recipe.sha256, recipe.where).read_bytes()
        return _described(description, recipe.where)
    path = Path(recipe.where) if recipe.how == "file" else _kept_file(recipe.sha256, recipe.where)
    if recipe.how == "file" and not path.is_file():
        raise EncoderError(
            f"{path}: is not on this machine, or is gone",
            hint="give Tokenizer(..., embed=True): then the file's bytes go along",
        )
    encoding = find_encoding(str(path), recipe.pattern)
    if encoding.sha256 != recipe.sha256:
        raise EncoderError(
            f"{path}: has changed since the Tokenizer was made (its SHA-256 differs)",
            hint="make the Tokenizer again, from the file that you mean",
        )
    return encoding


def _separator(encoding: Encoding, eot: str | int | None) -> int:
    if eot is None:
        return encoding.eot_id
    if not isinstance(eot, str):
        try:
            number = operator.index(eot)  # numpy's integers too
        except TypeError:
            number = -1
        if isinstance(eot, bool) or not 0 <= number < 1 << 32:
            raise UsageError(f"eot {eot}: not a token id")
        return number
    return special_id(encoding, eot, "eot")


# --- names and files -------------------------------------------------------------------------


def _from_name(
    name: str, pattern: str, special_tokens: dict[str, int] | None, embed: bool
) -> IdentifiedTokenizer:
    encoding = find_encoding(name, pattern)
    if special_tokens is not None:
        if not family_of(encoding).ranks_only:
            raise UsageError(f"special_tokens: {encoding.name} names its own")
        ranks = read_vocabulary(encoding)
        return _from_ranks(encoding.name, ranks, encoding.pattern, special_tokens)
    if not encoding.path:
        return IdentifiedTokenizer(Recipe("bundled", name, encoding.sha256), encoding)
    recipe = Recipe("file", encoding.path, encoding.sha256, pattern)
    if not embed:
        return IdentifiedTokenizer(recipe, encoding)
    content = read_vocabulary(encoding)
    _keep(content)
    return IdentifiedTokenizer(recipe._replace(how="kept", where=""), encoding, (content,))


# --- objects of other libraries --------------------------------------------------------------


def _from_object(source: Any) -> IdentifiedTokenizer:
    """Told by what it has, not by its class: no library is imported for that."""
    if hasattr(source, "_mergeable_ranks") and hasattr(source, "_pat_str"):
        ranks = write_ranks(source._mergeable_ranks)
        return _from_ranks(source.name, ranks, source._pat_str, dict(source._special_tokens))
    backend = getattr(source, "backend_tokenizer", source)
    if hasattr(backend, "to_str") and hasattr(backend, "token_to_id"):
        return _from_tokenizers(backend, getattr(source, "eos_token", None))
    if hasattr(source, "serialized_model_proto"):
        return _from_content(source.serialized_model_proto())
    what = f"{type(source).__module__}.{type(source).__qualname__}"
    hint = (
        "give a name, a file, a tiktoken.Encoding, a tokenizers.Tokenizer, a transformers "
        "tokenizer (a fast one)"
    )
    if type(source).__module__.startswith("gigatoken"):
        hint = "give the name or file that it was made from"
    raise UsageError(f"a Tokenizer cannot be made from an object of {what}", hint=hint)


def _from_tokenizers(backend: Any, end: object) -> IdentifiedTokenizer:
    # Padding and truncation change with every call of a transformers tokenizer, and are not ours.
    parsed = json.loads(backend.to_str())
    parsed["padding"] = parsed["truncation"] = None
    found = _from_content(json.dumps(parsed, ensure_ascii=False).encode())
    if (
        isinstance(end, str) and end in found.encoding.special_tokens
    ):  # the tokenizer says it, whatever names it has
        encoding = msgspec.structs.replace(found.encoding, eot_candidates=(end,))
        return found._replace(encoding=encoding)
    return found


def _from_content(content: bytes) -> IdentifiedTokenizer:
    path = _keep(content)
    encoding = find_encoding(str(path))
    return IdentifiedTokenizer(Recipe("kept", "", encoding.sha256), encoding, (content,))


def _from_ranks(
    name: str, ranks: bytes, pattern: str, special_tokens: dict[str, int]
) -> IdentifiedTokenizer:
    if "" in special_tokens:  # it would be found at every place of a text, without end
        raise UsageError(f"{name}: a special token is the empty string")
    sha256 = hashlib.sha256(ranks).hexdigest()
    for bundled in ENCODINGS.values():
        same = (bundled.sha256, bundled.pattern, bundled.special_tokens)
        if same == (sha256, pattern, special_tokens):
            return IdentifiedTokenizer(Recipe("bundled", bundled.name, sha256), bundled)
    description = msgspec.json.encode(
        RanksDescription(
            name=name, ranks_sha256=sha256, pattern=pattern, special_tokens=special_tokens
        ),
        order="deterministic",
    )
    _keep(ranks)
    _keep(description)
    recipe = Recipe("ranks", "", hashlib.sha256(description).hexdigest())
    return IdentifiedTokenizer(recipe, _described(description, ""), (ranks, description))


def _described(description: bytes, folder: str) -> Encoding:
    what = msgspec.json.decode(description, type=RanksDescription)
    path = _kept_file(what.ranks_sha256, folder)
    ranks = path.read_bytes()
    return encoding_of_ranks(what.name, path, ranks, what.pattern, what.special_tokens)


# --- the user's cache ------------------------------------------------------------------------


def _file_name(sha256: str) -> str:
    return f"tokenizer-{sha256}"


def _keep(content: bytes) -> Path:
    """Write it once; what is there under its name already is it."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = find_kept(_file_name(sha256))
    if path is not None and _sha256_of(path) == sha256:
        return path
    try:
        return keep_anywhere(_file_name(sha256), content)
    except StorageError as error:
        raise EncoderError(
            f"the tokenizer cannot be saved in the cache for other processes: {error.message}",
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from None


def _kept_file(sha256: str, folder: str) -> Path:
    path = find_kept(_file_name(sha256), folder)
    if path is None:
        raise EncoderError(
            f"the tokenizer {sha256[:16]}... is not in this machine's cache ({cache_folder()})",
            hint="give Tokenizer(..., embed=True): then its bytes go along",
        )
    if _sha256_of(path) != sha256:
        raise EncoderError(f"{path}: is damaged (its SHA-256 differs)", hint="remove that file")
    return path


def _sha256_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
