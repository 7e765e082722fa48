"""Libraries of Triton kernels, unchanged, with a JIT and from archives: what launches, what it costs.

    python -m benchmarks.replay_libraries FOLDER… [--library NAME] [--python PYTHON] [--limit-s S] [-j N]

FOLDER are unpacked sources of Liger-Kernel (`liger_kernel`), flash-linear-attention (`fla`) and SGLang
(`sglang`). For each, the functions of `library_NAME.py` run with Triton and an empty cache; under
`aotc record` with the cache that this left, and without; an archive is built of the manifest; and they
run from the archive with Triton made unimportable. A table tells how many functions ran, whether their
outputs are those of Triton, how many of the recorded specialisations launched, the times to the first
and the last result, and what recording costs a launch. Whatever fails or takes longer than S seconds
for a library leaves its place empty, with the reason below. PYTHON has torch, Triton and aotc (by
default it is this one). Needs a GPU; with `-j` several libraries run at a time, and times mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.triton_blocker import BLOCKER

HERE = Path(__file__).resolve().parent
LIBRARIES = ("liger_kernel", "fla", "sglang")
REPEATS = 10
# Errors are relative to the norm of what Triton computed.
COMPARE = """
import json, sys, torch
left, right = (torch.load(path) for path in sys.argv[1:3])
limits = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
told = {}
for name, expected in left.items():
    got = right.get(name)
    if got is None:
        continue
    worst = 0.0
    for a, b in zip(expected, got):
        if not torch.equal(a, b):
            x, y = torch.nan_to_num(a.double()), torch.nan_to_num(b.double())
            error = float((x - y).norm() / (x.norm() + 1e-30))
            worst = max(worst, error / limits.get(a.dtype, 5e-2), 1e-9)
    told[name] = worst
print(json.dumps(told))
"""
COLUMNS = {
    "ran": "functions that ran with the JIT, of all",
    "replayed": "of these, from the archive",
    "equal": "of these, bit for bit as with the JIT",
    "close": "or within rounding",
    "launched": "recorded specialisations that launched from the archive, of all",
    "cold s": "seconds to the first and the last result: JIT, empty cache",
    "warm s": "JIT, with its cache",
    "archive s": "from the archive",
    "build s": "seconds to build it",
    "record": "time of a round under the recorder, over one without",
    "round": "time of a round from the archive, over the JIT's",
}


class StepError(Exception):
    """A step failed or took too long."""


@dataclass
class Replay:
    """One library: what its runs leave, and its line of the table."""

    name: str
    python: str
    sources: Sequence[str]
    folder: Path
    limit_s: float
    line: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    start: float = 0.0

    def run(self) -> None:
        """Run all steps, as far as they go."""
        self.start = time.perf_counter()
        (self.folder / "blocker").mkdir(parents=True)
        (self.folder / "blocker" / "sitecustomize.py").write_text(BLOCKER)
        try:
            self._steps()
        except (StepError, OSError, ValueError) as error:
            self.notes.append(str(error))

    def _steps(self) -> None:
        cold = self._program("cold", [], "--seconds", str(self.limit_s / 4))
        self.line["ran"] = f"{len(cold['ran'])}/{len(cold['ran']) + len(cold['failed'])}"
        self.line["cold s"] = _seconds(cold)
        self._note("with the JIT", cold["failed"])
        again = ("--only", ",".join(cold["ran"]), "--repeats", str(REPEATS))
        aotc = [self.python, "-m", "aotc"]
        recorded = self._program(
            "recorded", [*aotc, "record", "-o", str(self.folder / self.name), "--"], *again
        )
        warm = self._program("warm", [], *again)
        self.line["warm s"] = _seconds(warm)
        self.line["record"] = f"{recorded['round_s'] / warm['round_s']:.2f}"
        manifest, start = self.folder / self.name / "kernels.toml", time.perf_counter()
        self._command(
            [*aotc, "build", str(manifest), "-o", str(self.folder / "dist"), "--keep-going"],
            may_fail=True,
        )
        self.line["build s"] = f"{time.perf_counter() - start:.1f}"
        archive = self.folder / "dist" / f"{self.name}.aotc"
        options = ["-m", "aotc.triton", "--stand-in", "--archive", str(archive), "--"]
        replayed = self._program("replayed", [], *again, options=options)
        self._note("from the archive", replayed["failed"])
        self.line["replayed"] = f"{len(replayed['ran'])}/{len(cold['ran'])}"
        launched = {*recorded["launched"]} & {*replayed["launched"]}
        self.line["launched"] = f"{len(launched)}/{len(recorded['launched'])}"
        self.line["archive s"] = _seconds(replayed)
        if len(replayed["ran"]) == len(cold["ran"]):
            self.line["round"] = f"{replayed['round_s'] / warm['round_s']:.2f}"
        outputs = [str(self.folder / f"{one}.pt") for one in ("warm", "replayed")]
        errors = json.loads(self._command([self.python, "-c", COMPARE, *outputs]).splitlines()[-1])
        self.line["equal"] = str(sum(error == 0 for error in errors.values()))
        self.line["close"] = str(sum(0 < error <= 1 for error in errors.values()))
        self.notes += [
            f"outputs: {name}: {error:.3g} times what rounding explains"
            for name, error in errors.items()
            if not error <= 1
        ]

    def _note(self, title: str, failed: dict[str, str]) -> None:
        """Note why functions failed, each reason once."""
        for why in dict.fromkeys(failed.values()):
            names = ", ".join(name for name, one in failed.items() if one == why)
            self.notes.append(f"{title}: {names}: {why}")

    def _program(
        self, title: str, before: list[str], *words: str, options: Sequence[str] = ()
    ) -> dict[str, Any]:
        outputs = self.folder / f"{title}.pt"
        program = [str(HERE / "library_program.py"), self.name, str(outputs), *words]
        self._command([*before, self.python, *options, *program], blocked=bool(options))
        return json.loads(Path(f"{outputs}.json").read_text())

    def _command(self, command: list[str], *, blocked: bool = False, may_fail: bool = False) -> str:
        """Run a command and what it starts, no longer than there is time; return what it printed."""
        blocker = [str(self.folder / "blocker")] if blocked else []
        path = [*blocker, str(HERE), str(HERE.parent), *self.sources]
        path += filter(None, [os.environ.get("PYTHONPATH")])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "TRITON_CACHE_DIR": str(self.folder / "cache"),
            "TRITON_CACHE_AUTOTUNING": "1",
        }
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                left = self.limit_s - (time.perf_counter() - self.start)
                out, err = process.communicate(timeout=max(left, 1.0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise StepError(f"no time was left for: {' '.join(command[:8])} …") from None
        if process.returncode != 0:
            told = "\n  ".join((err or out).splitlines()[-12:])
            message = f"exit {process.returncode}: {' '.join(command[:8])} …\n  {told}"
            if not may_fail:
                raise StepError(message)
            self.notes.append(message)
        return out


def _seconds(told: dict[str, Any]) -> str:
    return f"{told['first_s']:.1f}-{told['all_s']:.1f}"


def main() -> int:
    """Replay each library; return 1 if a place of the table is empty."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", nargs="+", help="folders of unpacked sources")
    parser.add_argument("--library", action="append", choices=LIBRARIES)
    parser.add_argument("--python", default=sys.executable, help="that has torch, Triton and aotc")
    parser.add_argument("--limit-s", type=float, default=75.0, help="for each library")
    parser.add_argument("-j", type=int, default=1, help="libraries at a time")
    options = parser.parse_args()
    sources = [str(Path(one).resolve()) for one in options.sources]
    with tempfile.TemporaryDirectory() as temporary:
        replays = [
            Replay(name, options.python, sources, Path(temporary) / name, options.limit_s)
            for name in options.library or LIBRARIES
        ]
        with ThreadPoolExecutor(options.j) as threads:
            for one in threads.map(_run, replays):
                print(f"== {one.name}, {time.perf_counter() - one.start:.0f} s", flush=True)
                print("\n".join(one.notes), flush=True)
    widths = {
        name: max(len(name), *(len(one.line.get(name, "")) for one in replays)) for name in COLUMNS
    }
    print(f"{'':14}", *(f"{name:>{width}}" for name, width in widths.items()))
    for one in replays:
        print(f"{one.name:14}", *(f"{one.line.get(name, ''):>{w}}" for name, w in widths.items()))
    print(*(f"{name}: {text}" for name, text in COLUMNS.items()), sep="\n")
    return int(any(len(one.line) < len(COLUMNS) for one in replays))


def _run(replay: Replay) -> Replay:
    replay.run()
    return replay


if __name__ == "__main__":
    sys.exit(main())
