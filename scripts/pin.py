"""Print the versions of all packages that a Python has, as a constraints file for pip.

python scripts/pin.py .venv/bin/python > constraints/dev.txt
"""

from __future__ import annotations

import json
import subprocess
import sys

NOT_PINNED = ("pip", "setuptools", "wheel", "tokenmill", "tokenmill-test-plugin")


def main(python: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "list", "--format=json"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    print("# The versions with which the tests last passed. `make constraints` writes this file.")
    for package in sorted(packages, key=lambda package: package["name"].lower()):
        if package["name"].lower() not in NOT_PINNED:
            version = package["version"].partition("+")[0]  # "+cpu" is only where it came from
            print(f"{package['name']}=={version}")


if __name__ == "__main__":
    main(sys.argv[1])
