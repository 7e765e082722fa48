"""Selections from estimates alone, for kernels and GPUs without a measurement.

Launches are sampled over the arguments that decide how many programs there are and how long they run; the
configs of each are ranked by the cost model, and trees are fitted as to measured times.

Invariant: equal kernels give equal selections, and the number of samples is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from aotc.ir import expression
from aotc.ir.expression import Expression, Extent, Name
from aotc.package import index
from aotc.package.tuning.device import DEVICES
from aotc.package.tuning.estimate import estimate
from aotc.package.tuning.fit import fit
from aotc.package.tuning.launch_arrays import Integers, Launches
from aotc.package.tuning.selection import ANY_GPU, Selection
from aotc.package.tuning.table import KernelTuning, Measurement
from aotc.target import TARGETS
from aotc.work import Work

if TYPE_CHECKING:
    from aotc.package.tables import Constant

MAX_LAUNCHES = 384
_LAUNCHES_OF_ONE_ARGUMENT = 48
_LARGEST = 1 << 18
_OTHER_ARGUMENT = 1 << 16
"""Arguments that only address memory, such as strides: rows of different programs lie apart."""


def selections(kernel: index.Kernel, works: Sequence[Work]) -> tuple[Selection, ...]:
    """Return a selection for each target and combination that has several configs.

    `works` has the work of each of the kernel's variants. Nothing is estimated of a kernel whose grid the
    caller gives.
    """
    tunings: list[KernelTuning] = []
    counted = list(zip(kernel.variants, works, strict=True))
    for target in kernel.targets:
        measurements: list[Measurement] = []
        for number in range(index.num_combinations(kernel.type_variables, kernel.choices)):
            chosen = _by_config(kernel, counted, target, number)
            if len(chosen) > 1:
                measurements += _estimated(kernel, chosen, target, number)
        configs = tuple(_constants(config) for config in kernel.configs)
        tunings.append(KernelTuning(kernel.name, target, ANY_GPU, configs, tuple(measurements), {}))
    return tuple(selection for tuning in tunings for selection in fit(tuning, kernel))


def _constants(config: index.NamedValues) -> Mapping[str, Constant]:
    return {name: value for name, value in config if value is not None}


def _by_config(
    kernel: index.Kernel,
    counted: Sequence[tuple[index.Variant, Work]],
    target: str,
    number: int,
) -> dict[int, tuple[index.Variant, Work]]:
    """Return the variant of each config that assumes the most of a launch, if it can be estimated."""
    chosen: dict[int, tuple[index.Variant, Work]] = {}
    for variant, work in counted:
        is_own = (variant.target, index.combination(kernel, variant.types, variant.choices)) == (
            target,
            number,
        )
        if not is_own or not variant.grid or not work.segments or target not in DEVICES:
            continue
        known = chosen.get(variant.config)
        if known is None or _assumptions(variant) > _assumptions(known[0]):
            chosen[variant.config] = variant, work
    return chosen


def _assumptions(variant: index.Variant) -> tuple[int, bool]:
    return len(variant.guards), variant.condition is not None


def _estimated(
    kernel: index.Kernel,
    chosen: Mapping[int, tuple[index.Variant, Work]],
    target: str,
    number: int,
) -> list[Measurement]:
    """Return the estimates of sampled launches as if they were measured."""
    columns = sample_launches(kernel, list(chosen.values()))
    launches = Launches(columns)
    times = {
        config: estimate(variant, work, TARGETS[target], DEVICES[target], launches)
        for config, (variant, work) in chosen.items()
    }
    types, choices = index.split_combination(kernel.type_variables, kernel.choices, number)
    named_types = dict(zip((v.name for v in kernel.type_variables), types, strict=True))
    pairs = zip((choice.name for choice in kernel.choices), choices, strict=True)
    named_choices = {name: value for name, value in pairs if value is not None}
    keys = [name for name, values in columns.items() if len(set(values.tolist())) > 1]
    count = len(next(iter(times.values())))
    return [
        Measurement(
            {name: int(columns[name][at]) for name in keys},
            named_types,
            named_choices,
            tuple(
                float(times[config][at]) if config in times else None
                for config in range(len(kernel.configs))
            ),
        )
        for at in range(count)
    ]


# -------------------------------------------------------------------------------------- launches


def sample_launches(
    kernel: index.Kernel, counted: Sequence[tuple[index.Variant, Work]]
) -> dict[str, Integers]:
    """Return values of the integer arguments and extents, a column each.

    Those that decide on programs and iterations are spread evenly over the logarithms up to `_LARGEST`.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    deciding = _names(kernel, (root for pair in counted for root in _deciding(*pair)))
    others = _names(kernel, (root for _, work in counted for root in _addressing(work)))
    count = MAX_LAUNCHES if len(deciding) > 1 else _LAUNCHES_OF_ONE_ARGUMENT if deciding else 1
    at = np.arange(count)
    columns = {name: np.full(count, _OTHER_ARGUMENT, np.int64) for name in others}
    ratio = _spread_ratio(len(deciding))
    for number, (name, divisor) in enumerate(deciding.items()):
        part = (at + 0.5) / count if number == 0 else np.fmod(at * ratio**number, 1.0)
        span = math.log2(_LARGEST / divisor)
        values = np.exp2(part * span) * divisor
        columns[name] = np.maximum(np.round(values / divisor), 1).astype(np.int64) * divisor
    return columns


def _spread_ratio(count: int) -> float:
    """Return the ratio whose multiples' fractions fill so many dimensions evenly.

    Source: M. Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018.
    """
    root = 2.0
    for _ in range(40):
        root = (1 + root) ** (1 / max(2, count))
    return 1 / root


def _deciding(variant: index.Variant, work: Work) -> list[Expression]:
    texts = [segment.times for segment in work.segments]
    return [*variant.grid, *map(expression.parse, dict.fromkeys(texts))]


def _addressing(work: Work) -> list[Expression]:
    texts: list[str] = []
    for segment in work.segments:
        for transfer in segment.transfers:
            texts += [*transfer.origins, *(part.inside for part in transfer.parts)]
    return [expression.parse(text) for text in dict.fromkeys(texts)]


def _names(kernel: index.Kernel, roots: Iterable[Expression]) -> dict[str, int]:
    """Return the launch's arguments and extents in expressions, and what they are multiples of."""
    divisors = {param.name: param.divisibility for param in kernel.params}
    names: dict[str, int] = {}
    for root in roots:
        for node in expression.walk(root):
            if isinstance(node, Name | Extent) and node.name in divisors:
                divisor = divisors[node.name] if isinstance(node, Name) else 1
                names.setdefault(expression.to_text(node), divisor)
    return dict(sorted(names.items()))
