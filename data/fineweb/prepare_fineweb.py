"""FineWeb directly from the Hub's parquet files: train.bin and val.bin in one step.

    python prepare_fineweb.py --version 10B
    python prepare_fineweb.py --version 100B --type classic --no-keep-downloads
    python prepare_fineweb.py --input 'my/*.parquet' -o out

This is the same as `tokenmill fineweb --version 10B --format nanogpt`. Each file is tokenized as
soon as it is downloaded. Nothing is copied into another cache. The same command resumes after any
interruption.
"""

import argparse
import os

import tokenmill


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="10B", help="10B, 100B, 350B or the name of a dump")
    parser.add_argument("--type", default="edu", choices=["edu", "classic"])
    parser.add_argument("--input", nargs="+", help="your own parquet files instead of FineWeb")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2, cl100k_base ...")
    parser.add_argument("--workers", type=int, help="processes (default: all cores)")
    parser.add_argument("--val", help="validation split (default: 0.0005 of the documents)")
    parser.add_argument("--no-keep-downloads", action="store_true")
    parser.add_argument("-o", "--output", help="default: a folder beside this script")
    args = parser.parse_args()
    options = {
        "format": "nanogpt",
        "tokenizer": args.tokenizer,
        "workers": args.workers,
        "val": args.val,
        "keep_downloads": not args.no_keep_downloads,
    }
    name = f"fineweb{args.version}" if args.type == "classic" else f"edu_fineweb{args.version}"
    output = args.output or os.path.join(here, name)
    if args.input:
        result = tokenmill.prepare(args.input, output, **options)
    else:
        result = tokenmill.fineweb(args.version, args.type, output, **options)
    for split in result.manifest.splits:
        print(f"{split.name}: {split.tokens:,} tokens of {split.documents:,} documents")
    print(f"in {output}, {result.seconds:.1f} s")


if __name__ == "__main__":
    main()
