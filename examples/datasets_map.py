"""Tokenize with `datasets.map` in two processes. A second run reads the result from the cache.

python examples/datasets_map.py 'sample/*.parquet'
"""

import sys

import datasets

import tokenmill


def main(files: str) -> None:
    tok = tokenmill.Tokenizer("gpt2")
    ds = datasets.load_dataset("parquet", data_files=files, split="train")
    ds = ds.map(tok.map, batched=True, num_proc=2, remove_columns=ds.column_names)
    print(f"{len(ds)} documents, {sum(ds['len'])} tokens, the first ends with {ds[0]['ids'][-1]}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sample/*.parquet")
