"""Tokenize with Ray Data: `map_batches` on Arrow tables.

pip install 'tokenmill[ray]'
python examples/ray_data.py sample/
"""

import sys

import ray

import tokenmill


def main(folder: str) -> None:
    # Start a new cluster: without an address, Ray may wait for minutes for one that has ended.
    ray.init(address="local")
    tok = tokenmill.Tokenizer("gpt2")
    ds = ray.data.read_parquet(folder, columns=["text"])
    ds = ds.map_batches(tok.map, batch_format="pyarrow", batch_size=100)
    print(f"{ds.count()} documents, {ds.sum('len')} tokens")
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sample/")
