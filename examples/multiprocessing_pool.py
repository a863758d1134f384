"""Tokenize with a plain `multiprocessing.Pool`, under any start method.

python examples/multiprocessing_pool.py 'sample/*.parquet' spawn
"""

import glob
import multiprocessing
import sys

import pyarrow.parquet

import tokenmill


def batches(files: str):
    for path in sorted(glob.glob(files)):
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(100, columns=["text"]):
            yield {"text": batch.column("text").to_pylist()}


def main(files: str, method: str) -> None:
    tok = tokenmill.Tokenizer("gpt2")
    documents = tokens = 0
    with multiprocessing.get_context(method).Pool(2) as pool:
        for found in pool.imap(tok.map, batches(files)):
            documents += len(found["ids"])
            tokens += found["len"].sum()
    print(f"{documents} documents, {tokens} tokens")


if __name__ == "__main__":
    files = sys.argv[1] if len(sys.argv) > 1 else "sample/*.parquet"
    main(files, sys.argv[2] if len(sys.argv) > 2 else "spawn")
