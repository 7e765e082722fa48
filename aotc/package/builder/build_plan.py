"""Plan a build before it starts: its variants and their factors, cached ones, and its time.

The variants of a kernel are a product, and the plan shows its factors. Compile times come from
earlier builds (`compile_times`). The build time on a number of workers follows from them: each next
compile goes to the first free worker.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from aotc.compiler import autotune_configs
from aotc.ir.diagnostics import one_line
from aotc.package.builder.run import BuildOptions, expand_all
from aotc.package.cache.compile_times import Basis, CompileTimes
from aotc.package.cache.shared_compiles import has_shared
from aotc.package.cache.store import Cache
from aotc.package.manifest.configs import AutotuneReader
from aotc.package.manifest.spec import Manifest
from aotc.package.manifest.variant_grid import Expansion, num_forms

WORKERS = (1, 2, 4, 16, 64, 256)


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """The variants of a kernel: the factors of their number, and the compiles it needs.

    `factors` are counts and their axes, such as (2, "targets"). Their product is the number of
    variants, including `num_dropped` misfits of their target.
    """

    name: str
    factors: tuple[tuple[int, str], ...]
    num_variants: int
    num_dropped: int
    num_cached: int
    seconds: tuple[float, ...]

    @property
    def num_compiles(self) -> int:
        """Number of variants missing from the cache."""
        return len(self.seconds)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a build; `bases` counts its compiles by the basis of their times.

    Variants of two kernels with equal compile requests are compiled once, for the first of the two.
    """

    kernels: tuple[KernelPlan, ...]
    workers: tuple[int, ...]
    bases: Counter[Basis] = field(default_factory=Counter["Basis"])

    @property
    def seconds(self) -> dict[int, float]:
        """Time of all compiles for each number of workers."""
        seconds = [compile_seconds for kernel in self.kernels for compile_seconds in kernel.seconds]
        return {count: makespan(seconds, count) for count in self.workers}


def plan(
    manifest: Manifest,
    options: BuildOptions,
    *,
    cache: Cache | None,
    times: CompileTimes,
    autotune: AutotuneReader = autotune_configs,
) -> Plan:
    """Return the plan of a build.

    Raises:
        ManifestError: `options` names an unknown kernel or target, or a kernel's grid is wrong.
    """
    expanded = expand_all(manifest, options, autotune)
    if cache is not None:
        cache.prepare_sets(
            [task.request for expanded_kernel in expanded for task in expanded_kernel.tasks]
        )
    times.load(task.request for expanded_kernel in expanded for task in expanded_kernel.tasks[:1])
    seen: set[object] = set()
    kernels: list[KernelPlan] = []
    bases: Counter[Basis] = Counter()
    for expanded_kernel in expanded:
        seconds: list[float] = []
        num_cached = 0
        for task in expanded_kernel.tasks:
            if task.request in seen:
                continue
            seen.add(task.request)
            if cache is not None and has_shared(cache, task.request):
                num_cached += 1
                continue
            expected, basis = times.seconds(task.request)
            bases[basis] += 1
            seconds.append(expected)
        factors = _factors(expanded_kernel.expansion)
        num_variants = len(expanded_kernel.tasks)
        num_dropped = math.prod(count for count, _ in factors) - num_variants
        kernel = expanded_kernel.expansion.kernel.name
        kernels.append(
            KernelPlan(kernel, factors, num_variants, num_dropped, num_cached, tuple(seconds))
        )
    workers = tuple(sorted({*WORKERS, options.jobs}))
    return Plan(tuple(kernels), workers, bases)


def _factors(expansion: Expansion) -> tuple[tuple[int, str], ...]:
    """Return the factors of the number of a kernel's variants, without ones."""
    kernel = expansion.kernel
    targets = {variant.target for variant in expansion.variants}
    factors = [
        (len(targets), "targets"),
        *((len(dtypes), name) for name, dtypes in kernel.types.items()),
        *((len(values), name) for name, values in kernel.choices.items()),
        (num_forms(kernel), "guards"),
        (len(expansion.configs), "configs"),
    ]
    return tuple((count, name) for count, name in factors if count != 1)


def makespan(seconds: Sequence[float], num_workers: int) -> float:
    """Return the total time of jobs, longest first, each on the first free worker."""
    free = [0.0] * num_workers
    for duration in sorted(seconds, reverse=True):
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def text(build_plan: Plan) -> str:
    """Return a plan as a table for people."""
    rows: list[tuple[str, ...]] = [
        ("kernel", "variants", "cached", "compile", "seconds", "factors")
    ]
    for kernel in build_plan.kernels:
        factors = " x ".join(f"{count} {name}" for count, name in kernel.factors)
        if kernel.num_dropped:
            factors += f", less {kernel.num_dropped} dropped"
        counts = (kernel.num_variants, kernel.num_cached, kernel.num_compiles)
        cells = (kernel.name, *map(str, counts), f"{sum(kernel.seconds):.1f}", factors)
        rows.append(tuple(map(one_line, cells)))
    total = [sum(column) for column in zip(*_counts(build_plan), strict=True)] or [0, 0, 0]
    work = sum(sum(kernel.seconds) for kernel in build_plan.kernels)
    rows.append(("total", *map(str, total), f"{work:.1f}", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, 5) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", *_time_lines(build_plan)])


def _counts(build_plan: Plan) -> list[tuple[int, int, int]]:
    return [(k.num_variants, k.num_cached, k.num_compiles) for k in build_plan.kernels]


def _time_lines(build_plan: Plan) -> list[str]:
    if not sum(build_plan.bases.values()):
        return ["nothing to compile"]
    lines = [
        f"{count:5} {'worker ' if count == 1 else 'workers'} {_duration(seconds)}"
        for count, seconds in build_plan.seconds.items()
    ]
    words: dict[Basis, str] = {
        "measured": "as measured by earlier builds",
        "estimated": "estimated from other variants",
        "guessed": "guessed, since nothing was measured yet",
    }
    from_what = ", ".join(
        f"{build_plan.bases[b]} {w}" for b, w in words.items() if build_plan.bases[b]
    )
    return [*lines, f"times of compiles: {from_what}"]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:8.1f} s"
    return f"{seconds / 60:8.1f} min" if seconds < 7200 else f"{seconds / 3600:8.1f} h"


def describe(build_plan: Plan) -> dict[str, object]:
    """Return a plan as JSON-ready data; keys are added, never renamed."""
    return {
        "kernels": [
            {
                "name": kernel.name,
                "factors": [{"name": name, "count": count} for count, name in kernel.factors],
                "variants": kernel.num_variants,
                "dropped": kernel.num_dropped,
                "cached": kernel.num_cached,
                "compiles": kernel.num_compiles,
                "seconds": round(sum(kernel.seconds), 3),
            }
            for kernel in build_plan.kernels
        ],
        "variants": sum(kernel.num_variants for kernel in build_plan.kernels),
        "cached": sum(kernel.num_cached for kernel in build_plan.kernels),
        "compiles": sum(kernel.num_compiles for kernel in build_plan.kernels),
        "times": {basis: build_plan.bases[basis] for basis in ("measured", "estimated", "guessed")},
        "seconds": {
            str(count): round(duration, 3) for count, duration in build_plan.seconds.items()
        },
    }
