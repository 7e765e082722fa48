"""Libraries of Triton kernels, unchanged, with a JIT and from archives: coverage and cost.

    python -m benchmarks.replay_libraries FOLDER… [--library NAME] [--only NAMES] [--python PYTHON]
        [--draw N] [--seed S] [--limit-s S] [-j N] [--configs K] [--lock FILE]
        [--without-gpu [--fake LIBCUDA]] [--keep DIR] [--archives DIR]

FOLDER are unpacked sources of libraries. For each, the functions of `library_NAME.py`, or N of its
entry points drawn with seed S (`library_draw.py`), run under `aotc record` with
Triton and an empty cache, in N processes, and an archive is built of the manifest. Then one
process at a time runs: one function with Triton and an empty cache; all of them with the filled
cache, with and without the recorder in turn; and all from the archive, with Triton made
unimportable.

A table gives the number of functions run, whether their outputs equal Triton's, and how many
recorded specialisations launched. It also gives the times to the first and the last result, and
the recorder's cost per launch. Rounds are timed while FILE is locked, so libraries may run side
by side. A failure, or more than S seconds for a library, leaves the cell empty, with the reason
below. Autotuners try the first K configs of each function; several tune at a time, so their
choice means little. PYTHON has torch and Triton (by default it is this one); aotc is this one's.
Needs an otherwise idle GPU. `--without-gpu` records and builds: Triton compiles for sm_90a, and
launches do nothing. With the tests' fake driver as LIBCUDA it replays too, and compares no results.
`--keep` copies the archives to a folder; `--archives` takes them from there, on another machine: then
the functions run with the JIT and from the archives, nothing is recorded, and no rounds are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.triton_blocker import BLOCKER

HERE = Path(__file__).resolve().parent
LIBRARIES = sorted(
    path.stem.removeprefix("library_")
    for path in HERE.glob("library_*.py")
    if re.search("^(PROGRAMS|ENTRY_POINTS): ", path.read_text(), re.MULTILINE)
)
REPEATS = 30  # the recorder samples the first eight launches of each kernel at each place
RECORD_SHARE = 0.55  # share of the time, before unfinished functions are ended
COLUMNS = {
    "ran": "functions that ran with the JIT, of all",
    "replayed": "of these, from the archive",
    "equal": "of these, bit for bit as with the JIT",
    "close": "or within rounding",
    "launched": "recorded specialisations that launched from the archive, of all",
    "record s": "seconds to the first and the last result: JIT, empty cache, recorded in N processes",
    "cold s": "to the first result: JIT, empty cache",
    "warm s": "to the first and the last result: JIT, with its cache",
    "archive s": "from the archive",
    "build s": "seconds to build it",
    "first": "of the functions' first calls, seconds in all: JIT, empty cache; with its cache; from the archive",
    "launch": "the host's time of a launch from the archive, over the JIT's: median, worst",
    "record": "time of a round under the recorder, over one without",
    "round": "time of a round from the archive, over the JIT's",
}


class StepError(Exception):
    """A step failed or took too long."""


@dataclass
class Replay:
    """One library: its runs' files, and its line of the table."""

    name: str
    options: argparse.Namespace
    folder: Path
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
        recorded = self._record()
        if self.options.archives:
            words = ["--only", ",".join(recorded["ran"]), "--launches"]
            words += ["--lock", self.options.lock] if self.options.lock else []
            warm = self._program("warm", *words, *self._configs())
            words += ["--expected", ",".join(recorded["files"])]
            self._compare(recorded, warm, self._replay(recorded, {}, words))
            return
        self._build()
        if self.options.without_gpu:
            if self.options.fake:
                self._replay(recorded, {}, ("--only", ",".join(recorded["ran"])))
            return
        # the quickest first: its result is the first one of all runs
        names = sorted(recorded["ran"], key=recorded["seconds"].__getitem__)
        again = ["--only", ",".join(names), "--repeats", str(REPEATS)]
        again += ["--lock", self.options.lock] if self.options.lock else []
        try:
            cold = self._program("alone", "--only", names[0], *self._configs(), cache="empty")
            self.line["cold s"] = f"{cold['first_s']:.1f}"
            words = ("--record", str(self.folder / "again"), *self._configs())
            warm = self._program("warm", *again, *words)
            self.line["warm s"] = _seconds(warm)
            self.line["record"] = f"{warm['recorded_s'] / warm['round_s']:.2f}"
            files = [str(self.folder / "warm.pt")]
        except StepError as error:
            self.notes.append(str(error))
            warm, files = {}, recorded["files"]
        self._replay(recorded, warm, (*again, "--expected", ",".join(files)))

    def _record(self) -> dict[str, Any]:
        """Run the functions with the JIT, and record them."""
        outputs, seconds = self.folder / "cold.pt", self.options.limit_s * RECORD_SHARE
        record = ["-m", "aotc", "record", "-o", str(self.folder / self.name), "--"]
        parts = [str(HERE / "library_parts.py"), self.name, str(outputs), "--seconds", str(seconds)]
        parts += ["--only", self.options.only] if self.options.only else []
        parts += ["--without-gpu"] if self.options.without_gpu else []
        parts += ["-j", str(self.options.j), *self._configs(), *self._drawn()]
        recorder = () if self.options.archives else (sys.executable, *record)
        self._command([*recorder, self.options.python, *parts], may_fail=True)
        program_record = json.loads(Path(f"{outputs}.json").read_text())
        self.line["ran"] = (
            f"{len(program_record['ran'])}/{len(program_record['ran']) + len(program_record['failed'])}"
        )
        self.line["record s"] = _seconds(program_record)
        self._note("with the JIT", program_record["failed"])
        longest = sorted(program_record["seconds"].items(), key=lambda timing: -timing[1])
        took = ", ".join(f"{name} {seconds:.1f}" for name, seconds in longest)
        self.notes.append(f"seconds with the JIT, compiles among them: {took}")
        if not program_record["ran"]:
            raise StepError("no function ran")
        return program_record

    def _configs(self) -> tuple[str, ...]:
        return ("--configs", str(self.options.configs))

    def _drawn(self) -> tuple[str, ...]:
        return ("--draw", str(self.options.draw), "--seed", str(self.options.seed))

    def _build(self) -> None:
        manifest, start = self.folder / self.name / "kernels.toml", time.perf_counter()
        command = [sys.executable, "-m", "aotc", "build", str(manifest), "--keep-going"]
        command += ["-o", str(self.folder / "dist"), "-j", str(self.options.j)]
        output = self._command(command, may_fail=True)
        self.line["build s"] = f"{time.perf_counter() - start:.1f}"
        self.notes += output.splitlines()[-1:]
        if self.options.keep:
            Path(self.options.keep).mkdir(parents=True, exist_ok=True)
            for suffix in ("aotc", "sources.json"):
                shutil.copy(self.folder / "dist" / f"{self.name}.{suffix}", self.options.keep)

    def _compare(self, *runs: dict[str, Any]) -> None:
        """Compare first calls and launches: cold, warm, from the archive."""
        _, warm, replayed = runs
        seconds = [sum(run["seconds"][name] for name in replayed["ran"]) for run in runs]
        self.line["first"] = " ".join(f"{total:.1f}" for total in seconds)
        ratios = {
            launch: replayed["launch_us"][launch] / microseconds
            for launch, microseconds in warm["launch_us"].items()
            if launch in replayed["launch_us"]
        }
        if ratios:
            worst = max(ratios, key=ratios.__getitem__)
            self.line["launch"] = f"{statistics.median(ratios.values()):.2f} {ratios[worst]:.2f}"
            times = warm["launch_us"][worst], replayed["launch_us"][worst]
            self.notes.append(f"slowest launch: {worst}: {times[0]:.1f} and {times[1]:.1f} µs")

    def _replay(
        self, recorded: dict[str, Any], warm: dict[str, Any], words: Sequence[str]
    ) -> dict[str, Any]:
        """Run the functions from the archive, and compare."""
        folder = Path(self.options.archives) if self.options.archives else self.folder / "dist"
        archive = folder / f"{self.name}.aotc"
        installed = ["-m", "aotc.triton", "--stand-in", "--archive", str(archive)]
        if self.options.fake:
            installed += ["--driver", self.options.fake]
        installed.append("--")
        replayed = self._program("replayed", *words, options=installed)
        self._note("from the archive", replayed["failed"])
        self.line["replayed"] = f"{len(replayed['ran'])}/{len(recorded['ran'])}"
        launched = {*recorded["launched"]} & {*replayed["launched"]}
        self.line["launched"] = f"{len(launched)}/{len(recorded['launched'])}"
        self.line["archive s"] = _seconds(replayed)
        if warm and len(replayed["ran"]) == len(recorded["ran"]):
            self.line["round"] = f"{replayed['round_s'] / warm['round_s']:.2f}"
        errors: dict[str, float] = replayed["errors"]
        self.line["equal"] = str(sum(error == 0 for error in errors.values()))
        self.line["close"] = str(sum(0 < error <= 1 for error in errors.values()))
        self.notes += [
            f"outputs: {name}: {error:.3g} times what may be"
            for name, error in errors.items()
            if not error <= 1
        ]
        worst = max(
            (relative_error for relative_error in errors.values() if relative_error <= 1),
            default=0.0,
        )
        self.notes.append(f"outputs that are close differ by at most {worst:.2g} of what may be")
        missing = [
            specialisation
            for specialisation in recorded["launched"]
            if specialisation not in launched
        ]
        self.notes += [
            f"not launched from the archive: {specialisation}" for specialisation in missing
        ]
        return replayed

    def _note(self, title: str, failed: dict[str, str]) -> None:
        """Note why functions failed, each reason once."""
        for why in dict.fromkeys(failed.values()):
            names = ", ".join(name for name, reason in failed.items() if reason == why)
            self.notes.append(f"{title}: {names}: {why}")

    def _program(
        self, title: str, *words: str, options: Sequence[str] = (), cache: str = "cache"
    ) -> dict[str, Any]:
        outputs = self.folder / f"{title}.pt"
        program = [str(HERE / "library_program.py"), self.name, str(outputs), *words]
        program += self._drawn()
        program += ["--without-gpu"] if self.options.without_gpu else []
        program += ["--fake", self.options.fake] if options and self.options.fake else []
        command = [self.options.python, *options, *program]
        self._command(command, blocked=bool(options), cache=cache)
        return json.loads(Path(f"{outputs}.json").read_text())

    def _command(
        self, command: list[str], *, blocked: bool = False, may_fail: bool = False,
        cache: str = "cache",
    ) -> str:  # fmt: skip
        """Run a command and its children within the remaining time; return its output."""
        blocker = [str(self.folder / "blocker")] if blocked else []
        path = [*blocker, str(HERE), str(HERE.parent), *self.options.sources]
        path += filter(None, [os.environ.get("PYTHONPATH")])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "LIBRARY_STARTED": str(time.time()),
            "TRITON_CACHE_DIR": str(self.folder / cache),
            "TRITON_CACHE_AUTOTUNING": "1",
        }
        if self.options.without_gpu:  # nothing is timed
            environment.pop("TRITON_CACHE_DIR")
            environment |= {k: v for k, v in os.environ.items() if k == "TRITON_CACHE_DIR"}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                left = self.options.limit_s - (time.perf_counter() - self.start)
                out, _ = process.communicate(timeout=max(left, 1.0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise StepError(f"no time was left for: {' '.join(command[:8])} …") from None
        if process.returncode != 0:
            last_lines = "\n  ".join(out.splitlines()[-12:])
            message = f"exit {process.returncode}: {' '.join(command[:8])} …\n  {last_lines}"
            if not may_fail:
                raise StepError(message)
            self.notes.append(message)
        return out


def _seconds(record: dict[str, Any]) -> str:
    return f"{record['first_s']:.1f}-{record['all_s']:.1f}"


def main() -> int:
    """Replay each library; return 1 if a place of the table is empty."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", nargs="+", help="folders of unpacked sources")
    parser.add_argument("--library", action="append", choices=LIBRARIES)
    parser.add_argument("--only", help="functions, separated by commas")
    parser.add_argument("--python", default=sys.executable, help="that has torch and Triton")
    parser.add_argument("--draw", type=int, default=10, help="entry points to draw of each library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=120.0, help="for each library")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--configs", type=int, default=2, help="that an autotuner tries; 0: all")
    parser.add_argument("--lock", help="file that is locked while rounds are timed")
    parser.add_argument("--without-gpu", action="store_true", help="record and build")
    parser.add_argument("--keep", help="folder for the archives")
    parser.add_argument("--archives", help="folder of archives that were kept")
    parser.add_argument("--fake", help="the tests' fake driver: replay without a GPU")
    options = parser.parse_args()
    options.sources = [str(Path(source).resolve()) for source in options.sources]
    replays: list[Replay] = []
    for name in options.library or LIBRARIES:
        with tempfile.TemporaryDirectory() as temporary:
            replay = Replay(name, options, Path(temporary) / name)
            replay.run()
            print(f"== {name}, {time.perf_counter() - replay.start:.0f} s", flush=True)
            print(*replay.notes, sep="\n", flush=True)
        replays.append(replay)
    widths = {
        name: max(len(name), *(len(replay.line.get(name, "")) for replay in replays))
        for name in COLUMNS
    }
    print(f"{'':14}", *(f"{name:>{width}}" for name, width in widths.items()))
    for replay in replays:
        print(
            f"{replay.name:14}",
            *(f"{replay.line.get(name, ''):>{w}}" for name, w in widths.items()),
        )
    print(*(f"{name}: {text}" for name, text in COLUMNS.items()), sep="\n")
    return int(
        not (options.without_gpu or options.archives)
        and any(len(replay.line) < len(COLUMNS) for replay in replays)
    )


if __name__ == "__main__":
    sys.exit(main())
