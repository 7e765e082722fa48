"""Run many random programs and report those that fail, made small.

    python tests/fuzz/run.py --programs 20000 --seed 1 --jobs 2
    python tests/fuzz/run.py --only 1234
    python tests/fuzz/run.py --file tests/fuzz/regressions/one.txt

Program `i` of a run has seed `SEED + i`. Every 50th is a long one of 300 to 3,000 operations, with
1,000,000,000 added to its seed; `--seed 1000000000` makes all of them long. `--only` runs one again,
`--file` a printed one. Workers are processes, so a program that kills one is reported like any other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.check import Failure, Refused, check, is_defined
from tests.fuzz.long_programs import FIRST_LONG_SEED, of_seed, with_long
from tests.fuzz.programs import Program, parse_program
from tests.fuzz.reduce import reduced

# Every so many programs are interpreted after each pass, and assembled; all long ones are assembled.
_EACH_PASS = 4
_ASSEMBLED = 16
_EMULATOR_SEEDS = 3
_MAX_REDUCED = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one seed; `report` is empty if all is right."""

    seed: int
    status: str
    report: str = ""


def run_seed(seed: int, *, reduces: bool = True, thoroughly: bool = False) -> Outcome:
    """Check the program of a seed; make a failing one small."""
    program = of_seed(seed)
    emulator_seeds = (0, 1 + seed % 7, 100 + seed) if thoroughly else (0, 1 + seed)
    each_pass = thoroughly or seed % _EACH_PASS == 0
    # ptxas fails mostly on large programs with too few registers.
    assembles = thoroughly or seed % _ASSEMBLED == 0 or seed >= FIRST_LONG_SEED
    try:
        check(program, seeds=emulator_seeds, each_pass=each_pass, assembles=assembles)
    except Refused:
        return Outcome(seed, "refused")
    except Failure as failure:
        report = f"seed {seed}: {failure}"
        if reduces:
            small = _reduced(program, failure, emulator_seeds, assembles=assembles)
            report += f"\n{small}"
        return Outcome(seed, f"failed {failure.stage.split(',')[0]}: {failure.kind}", report)
    return Outcome(seed, "right")


def _reduced(
    program: Program, failure: Failure, seeds: Sequence[int], *, assembles: bool
) -> Program:
    def fails(candidate: Program) -> bool:
        try:
            check(candidate, seeds=seeds, assembles=assembles)
        except Refused:
            return False
        except Failure as other:
            alike = other.stage.split(",")[0] == failure.stage.split(",")[0]
            # Undefined behaviour proves nothing, nor do results that depend on poison.
            return alike and other.kind == failure.kind and is_defined(candidate)
        return False

    return reduced(program, fails)


# ---- workers ----------------------------------------------------------------------------------


def _work(pipe: Connection) -> None:
    """Check one seed after the other, as they are sent."""
    # A stopped run leaves no reader of the report.
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            seed, reduces = pipe.recv()
            if seed is None:
                return
            pipe.send(run_seed(seed, reduces=reduces))


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.seed: int | None = None

    def give(self, seed: int | None, *, reduces: bool) -> None:
        self.seed = seed
        self.pipe.send((seed, reduces))

    def take(self) -> Outcome:
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            assert self.seed is not None
            return Outcome(
                self.seed, "failed: process ended", f"seed {self.seed}: exit code {code}"
            )


def outcomes(seeds: Sequence[int], jobs: int, max_reduced: int) -> Iterator[Outcome]:
    """Yield outcomes of seeds as they come; the first failing programs are made small."""
    workers = [_Worker() for _ in range(min(jobs, len(seeds)))]
    left, failures = iter(seeds), 0
    busy = {worker.pipe: worker for worker in workers if _next(worker, left, max_reduced)}
    while busy:
        for pipe in wait(list(busy)):
            worker = busy.pop(pipe)  # pyright: ignore[reportArgumentType]
            outcome = worker.take()
            failures += outcome.status.startswith("failed")
            yield outcome
            if not worker.process.is_alive():
                worker = _Worker()
            if _next(worker, left, max_reduced - failures):
                busy[worker.pipe] = worker


def _next(worker: _Worker, left: Iterator[int], to_reduce: int) -> bool:
    seed = next(left, None)
    worker.give(seed, reduces=to_reduce > 0)
    return seed is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--max-reduced", type=int, default=_MAX_REDUCED)
    parser.add_argument("--only", type=int)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    if options.file is not None:
        check(parse_program(options.file.read_text()), seeds=range(_EMULATOR_SEEDS))
        print(f"{options.file}: right")
        return 0
    if options.only is not None:
        print(of_seed(options.only))
        outcome = run_seed(options.only, thoroughly=True)
        print(f"seed {options.only}: {outcome.status}\n{outcome.report}")
        return outcome.status != "right"
    start = time.monotonic()
    counts: Counter[str] = Counter()
    seeds = with_long(range(options.seed, options.seed + options.programs))
    for outcome in outcomes(seeds, options.jobs, options.max_reduced):
        counts[outcome.status] += 1
        if outcome.report:
            print(f"{outcome.report}\n", flush=True)
        num_checked = sum(counts.values())
        if num_checked % 100 == 0:
            print(f"{num_checked} programs, {time.monotonic() - start:.0f} s", flush=True)
    print(
        f"{options.programs} programs from seed {options.seed}, {time.monotonic() - start:.0f} s:"
    )
    for status, count in sorted(counts.items()):
        print(f"  {count:6} {status}")
    return any(status.startswith("failed") for status in counts)


if __name__ == "__main__":
    sys.exit(main())
