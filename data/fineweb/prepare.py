"""FineWeb the usual way, as in nanoGPT: load, split, map, write train.bin and val.bin.

    python prepare.py                                   # FineWeb-Edu's 10BT sample, from the Hub
    python prepare.py --input 'my/*.parquet' --num-proc 8
    python prepare.py --input saved_by_datasets/        # or one.arrow
    python prepare.py --input novels.txt --tokenizer cl100k_base

Every --num-proc and every start method works, because the tokenizer always pickles (as its name).
`datasets` still copies all text into its cache. prepare_fineweb.py does not copy it, and takes half
of the time.
"""

import argparse
import glob
import os

import datasets
import multiprocess  # `datasets` starts its processes with this package
import numpy as np

import tokenmill


def load(source: str, name: str, paragraphs: str) -> datasets.Dataset:
    """Load a dataset from the Hub, from parquet or Arrow files, or from text files."""
    if os.path.isdir(source):
        return datasets.load_from_disk(source)
    kind = {".parquet": "parquet", ".arrow": "arrow", ".txt": "text"}.get(
        os.path.splitext(source)[1]
    )
    if kind is None:
        return datasets.load_dataset(source, name=name, split="train")
    files = sorted(glob.glob(source))
    if not files:
        raise SystemExit(f"{source}: no such file")
    options = {"sample_by": paragraphs} if kind == "text" else {}
    return datasets.load_dataset(kind, data_files=files, split="train", **options)


def write(split: datasets.Dataset, path: str, dtype: type) -> None:
    """Write the ids of all documents to one file. A crash leaves no half-written file."""
    tokens = np.memmap(f"{path}.tmp", dtype, mode="w+", shape=(int(np.sum(split["len"])),))
    position = 0
    for batch in split.with_format("arrow").iter(batch_size=1000):
        ids = batch["ids"].combine_chunks().flatten().to_numpy()
        tokens[position : position + len(ids)] = ids
        position += len(ids)
    tokens.flush()
    os.replace(f"{path}.tmp", path)
    print(f"{path}: {len(tokens):,} tokens of {len(split):,} documents")


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", default="HuggingFaceFW/fineweb-edu", help="dataset or files")
    parser.add_argument("--name", default="sample-10BT", help="configuration on the Hub")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2, cl100k_base ...")
    parser.add_argument("--num-proc", type=int, default=os.cpu_count())
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    parser.add_argument("--val", type=float, default=0.0005, help="fraction for validation")
    parser.add_argument(
        "--sample-by",
        default="paragraph",
        choices=["line", "paragraph", "document"],
        help="what a document is in a text file",
    )
    parser.add_argument("-o", "--output", default=here)
    args = parser.parse_args()
    if args.start_method:
        multiprocess.set_start_method(args.start_method)

    tok = tokenmill.Tokenizer(args.tokenizer)
    dataset = load(args.input, args.name, args.sample_by)
    split = dataset.train_test_split(test_size=args.val, seed=2357, shuffle=True)
    split["val"] = split.pop("test")
    split = split.map(
        tok.map,  # {"ids": ..., "len": ...}, the end-of-text token last
        batched=True,
        remove_columns=dataset.column_names,
        num_proc=args.num_proc,
        desc="tokenizing",
    )
    os.makedirs(args.output, exist_ok=True)
    dtype = np.uint16 if tok.n_vocab <= 2**16 else np.uint32
    for name, part in split.items():
        write(part, os.path.join(args.output, f"{name}.bin"), dtype)


if __name__ == "__main__":
    main()
