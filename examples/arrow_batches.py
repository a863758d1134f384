"""Tokenize a stream of Arrow record batches, as in Spark's `mapInArrow`.

    python examples/arrow_batches.py sample/001_00000.parquet

Spark has no unsigned integers, so the ids are int32. With Spark, the same function is:

    to_ids = tok.mapper(dtype="int32").in_arrow
    df.select("text").mapInArrow(to_ids, "ids array<int>, len bigint")
"""

import sys

import pyarrow.parquet

import tokenmill


def main(path: str) -> None:
    tok = tokenmill.Tokenizer("gpt2")
    to_ids = tok.mapper(dtype="int32").in_arrow
    documents = tokens = 0
    for batch in to_ids(pyarrow.parquet.ParquetFile(path).iter_batches(100, columns=["text"])):
        documents += batch.num_rows
        tokens += batch.column("len").to_numpy().sum()
    print(f"{documents} documents, {tokens} tokens, ids are {batch.schema.field('ids').type}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sample/001_00000.parquet")
