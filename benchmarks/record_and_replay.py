"""Programs recorded, built, and rerun from their archive with Triton made unimportable.

    python -m benchmarks.record_and_replay [--python PYTHON] [--library liger_kernel] [--library fla]

For `record_program.py`, and for each library in PYTHON, the program runs four times: with Triton
and an empty cache, with the filled cache, under `aotc record`, and from the archive. Outputs are
compared, and times to the first result printed. Then launches are timed: Triton's, one from the
archive, the loader's own. PYTHON has torch, Triton and aotc (by default it is this one). Needs
an otherwise idle GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.triton_blocker import BLOCKER

HERE = Path(__file__).parent
COMPARE = """
import json, sys, torch
left, right = (torch.load(path) for path in sys.argv[1:3])
pairs = [("result", left, right)] if isinstance(left, list) else [
    (name, left[name], right.get(name)) for name in left]
told = {}
for name, expected, got in pairs:
    if got is None:
        told[name] = "missing"
        continue
    for a, b in zip(expected, got):
        torch.testing.assert_close(a, b, msg=lambda text: f"{name}: {text}")
    told[name] = "equal" if all(map(torch.equal, expected, got)) else "close"
print(json.dumps(told))
"""


def main() -> int:
    """Replay each program; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="that has torch, Triton and aotc")
    parser.add_argument("--library", action="append", default=[], help="liger_kernel or fla")
    options = parser.parse_args()
    programs = {"record_program": [str(HERE / "record_program.py")]}
    for name in options.library:
        programs[name] = [str(HERE / "library_program.py"), name]
    failed = 0
    for name, program in programs.items():
        with tempfile.TemporaryDirectory() as temporary:
            replay = _Replay(options.python, Path(temporary), name, program)
            failed |= replay.run()
    return failed


class _Replay:
    """One program, and the folder for its runs' files."""

    def __init__(self, python: str, folder: Path, name: str, program: list[str]) -> None:
        self.python, self.folder, self.name, self.program = python, folder, name, program
        self.archive = folder / "dist" / f"{name}.aotc"
        (folder / "blocker").mkdir()
        (folder / "blocker" / "sitecustomize.py").write_text(BLOCKER)

    def run(self) -> int:
        """Run the program in all ways and print its output."""
        print(f"== {self.name}")
        cold = self._program("jit", [])
        warm = self._program("jit", [])
        record = [sys.executable, "-m", "aotc", "record", "-o", str(self.folder / self.name), "--"]
        self._program("recorded", record)
        built = [
            sys.executable,
            "-m",
            "aotc",
            "build",
            str(self.folder / self.name / "kernels.toml"),
        ]
        if subprocess.run([*built, "-o", str(self.archive.parent)], check=False).returncode:
            return 1
        run = ["-m", "aotc.triton", "--stand-in", "--archive", str(self.archive), "--"]
        replayed = self._program("replayed", [], run, blocked=True)
        outputs = [str(self.folder / f"{mode}.pt") for mode in ("jit", "replayed")]
        differences = self._json([self.python, "-c", COMPARE, *outputs])
        for title, figures in {
            "Triton, empty cache": cold, "Triton, warm cache": warm, "from the archive": replayed,
        }.items():  # fmt: skip
            print(f"{title:>20}: {json.dumps(figures)}")
        print(f"{'outputs':>20}: {json.dumps(differences)}")
        if self.name == "record_program":
            self._overhead()
        return int(bool(replayed.get("failed")) or "missing" in differences.values())

    def _overhead(self) -> None:
        script = [self.python, str(HERE / "launch_overhead.py")]
        triton = self._json(script)
        ours = self._json([*script, str(self.archive)], blocked=True)
        for name, launch in triton.items():
            loader = ours[f"{name.partition(',')[0]}, loader"]
            times = f"Triton {launch:.2f}, archive {ours[name]:.2f}, loader {loader:.2f}"
            ratios = (
                f"{ours[name] / loader:.2f} of the loader's, {ours[name] / launch:.2f} of Triton's"
            )
            print(f"{name}, us: {times}: {ratios}")

    def _program(
        self,
        title: str,
        before: list[str],
        options: list[str] | None = None,
        *,
        blocked: bool = False,
    ) -> dict[str, Any]:
        outputs = str(self.folder / f"{title}.pt")
        command = [*before, self.python, *(options or []), *self.program, outputs]
        return self._json(command, blocked=blocked)

    def _json(self, command: list[str], *, blocked: bool = False) -> dict[str, Any]:
        """Run a command; return its last line of output."""
        blocker = [str(self.folder / "blocker")] if blocked else []
        path = [*blocker, str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "TRITON_CACHE_DIR": str(self.folder / "cache"),
        }
        ran = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return json.loads(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
