"""datatrove's Ray executor: parquet to token files, a task for each file. Run by cluster.py.

python datatrove_ray.py FILES --out DIR --workers 2 --tokenizer tokenizer.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from datatrove.executor.ray import RayPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", required=True)
    given = parser.parse_args()
    import ray

    ray.init(num_cpus=given.workers, include_dashboard=False)
    names = given.out / "names.txt"
    given.out.mkdir(parents=True, exist_ok=True)
    names.write_text("".join(f"{path.name}\n" for path in given.files))
    RayPipelineExecutor(
        pipeline=[
            ParquetReader(str(given.files[0].parent), paths_file=str(names), text_key="text"),
            DocumentTokenizer(
                output_folder=str(given.out / "tokens"),
                local_working_dir=str(given.out / "local"),
                tokenizer_name_or_path=given.tokenizer,
                eos_token=None,
                shuffle_documents=False,
            ),
        ],
        tasks=len(given.files),
        workers=given.workers,
        logging_dir=str(given.out / "logs"),
    ).run()
    ray.shutdown()


if __name__ == "__main__":
    main()
