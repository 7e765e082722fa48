"""Cost of `aotc record` to a program, and a build of its manifest.

    python -m benchmarks.record [--python PYTHON]

Runs `record_program.py` without and with the recorder in turn, and prints the time of a launch
of each kernel and their ratio. Then it builds an archive of the manifest. PYTHON has torch and
Triton; it need not have aotc. Needs an otherwise idle GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(__file__).with_name("record_program.py")
NUM_RUNS = 3


def main() -> int:
    """Measure, print, build; return the exit code of the build."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="that has torch and Triton")
    python = parser.parse_args().python
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "record"
        aotc = [sys.executable, "-m", "aotc"]
        recorded = [*aotc, "record", "-o", str(folder), "--"]
        command = [python, str(PROGRAM)]
        plain, seen = {}, {}
        for _ in range(NUM_RUNS):
            keep_least(plain, command)
            keep_least(seen, [*recorded, *command])
        for name, without in plain.items():
            print(f"{name:>8}: {without:8.2f} {seen[name]:8.2f}  {seen[name] / without:.3f}")
        print((folder / "kernels.toml").read_text())
        built = [*aotc, "build", str(folder / "kernels.toml"), "-o", str(Path(temporary) / "dist")]
        return subprocess.run(built, check=False).returncode


def keep_least(least: dict[str, float], command: list[str]) -> None:
    """Run a program, and keep its least printed value of each time."""
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name, value in json.loads(text.splitlines()[-1]).items():
        least[name] = min(value, least.get(name, value))


if __name__ == "__main__":
    sys.exit(main())
