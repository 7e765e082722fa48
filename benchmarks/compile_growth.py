"""Growth of compile time with the number of operations.

    python benchmarks/compile_growth.py [--sizes 300 1000 3000] [--kernel NAME]… [--passes 4]

Every kernel repeats one thing N times. The figure is CPU time of each stage, on one core, with ptxas
as a stage of its own. `growth` is the exponent of N between two sizes, of all but LLVM and ptxas: 1 is
linear. No GPU is used.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Sequence

from aotc.compiler import compile_kernel
from aotc.ir.diagnostics import DiagnosticError
from aotc.ir.passes import Observer
from aotc.timings import Timings
from tests.support.repeated_kernels import KERNELS, repeated

THEIRS = ("llvm", "ptxas")


def cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(name: str, size: int, target: str) -> tuple[dict[str, float], dict[str, float], str]:
    """Return CPU seconds of stages and of passes, and why it is refused, if it is."""
    stages, observer = Timings(clock=cpu_seconds), Observer(clock=time.process_time)
    request = repeated(name, size, target)
    problem = ""
    try:
        compile_kernel(request, timings=stages, observer=observer)
    except DiagnosticError as error:
        problem = str(error.message).splitlines()[0][:90]
    except RecursionError as error:
        problem = f"RecursionError: {error}"
    stages.lap("unfinished" if problem else "rest")
    return stages.seconds, observer.seconds, problem


def report(name: str, sizes: Sequence[int], target: str, num_passes: int) -> None:
    """Print a row for each size of a kernel."""
    last: tuple[int, float] | None = None
    for size in sizes:
        stages, passes, problem = measure(name, size, target)
        ours = sum(s for stage, s in stages.items() if stage not in THEIRS)
        growth = ""
        if last is not None:
            growth = f"{math.log(ours / last[1]) / math.log(size / last[0]):.2f}"
        last = size, ours
        parts = "".join(
            f"{stages.get(stage, 0.0):9.2f}" for stage in ("frontend", "schedule", "lower", *THEIRS)
        )
        print(
            f"{name:14}{size:6}{sum(stages.values()):9.2f}{growth:>8}{parts}  {problem}", flush=True
        )
        slowest = sorted(passes, key=lambda pass_name: -passes[pass_name])[:num_passes]
        if slowest:
            print(
                f"{'':20}"
                + "  ".join(f"{pass_name} {passes[pass_name]:.2f}" for pass_name in slowest)
            )


def main() -> int:
    """Measure the requested kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--kernel", action="append", choices=list(KERNELS))
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--passes", type=int, default=0, help="the slowest passes of each")
    options = parser.parse_args()
    heads = ("total", "growth", "frontend", "schedule", "lower", *THEIRS)
    print(f"{'CPU s':14}{'N':>6}" + "".join(f"{h:>{8 if h == 'growth' else 9}}" for h in heads))
    measure("elementwise", 1, options.target)
    for name in options.kernel or KERNELS:
        report(name, options.sizes, options.target, options.passes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
