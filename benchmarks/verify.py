"""Cost of verifying a variant: CPU seconds to compile, interpret and emulate, and launches.

One process runs one variant after the other; every `--every`-th of a kernel's. Most of the rest
is comparing. As in a worker of `aotc verify`, interpreted results are kept for the next variant.
Seconds are of this machine: compare versions on one, in turn.

    python benchmarks/verify.py kernels/attention.toml attention_forward --every 24
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

# As in the workers of `aotc verify`: threads waiting for each other would count as work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from aotc.compiler import compile_ptx
from aotc.package.verify.reference_cache import ReferenceCache
from aotc.package.verify.subjects import VerifyOptions, load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.verify.checks import check, emulated

_P = ParamSpec("_P")
_R = TypeVar("_R")
PARTS = ("compile", "interpret", "emulate")

seconds: dict[str, float] = defaultdict(float)


def timed(part: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return `function`, with its CPU seconds added to a part's."""

    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[part] += time.process_time() - start

    return run


def main() -> None:
    """Print a line for each variant, and the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="a manifest or an archive")
    parser.add_argument("kernel")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    check.interpret = timed("interpret", check.interpret)
    emulated.emulate = timed("emulate", emulated.emulate)
    compiler = timed("compile", compile_ptx)
    subjects = load_subjects(options.path, [options.kernel], [])[:: options.every]
    print(f"{'all':>7} {' '.join(f'{part:>9}' for part in PARTS)}  launches")
    totals: list[float] = []
    cache = ReferenceCache()
    for subject in subjects:
        seconds.clear()
        start = time.process_time()
        result = verify_variant(subject, VerifyOptions(), compiler, cache=cache)
        totals.append(time.process_time() - start)
        parts = " ".join(f"{seconds[part]:>9.2f}" for part in PARTS)
        print(f"{totals[-1]:>7.2f} {parts}  {len(result.launches):>8}  {subject.label}")
    print(f"{sum(totals) / len(totals):>7.2f} on average, {max(totals):.2f} at most")


if __name__ == "__main__":
    main()
