"""Fit selections to estimates alone, for kernels and GPUs without a measurement.

Launches are sampled over the arguments that determine the number of programs and their length. The
cost model ranks the configs of each, and trees are fitted as to measured times.

Invariant: equal kernels give equal selections, and the number of samples is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from aotc.ir import expression
from aotc.ir.expression import Expression, Extent, Name
from aotc.package.archive import index
from aotc.package.archive.selection import ANY_GPU, Selection
from aotc.package.tuning.between import LaunchEstimates
from aotc.package.tuning.device import DEVICES
from aotc.package.tuning.estimate import estimate
from aotc.package.tuning.fit import fit
from aotc.package.tuning.launch_arrays import Integers, Launches, parsed
from aotc.package.tuning.table import KernelTuning, Measurement
from aotc.target import TARGETS
from aotc.work import Work

if TYPE_CHECKING:
    from aotc.package.manifest.toml_table import Constant

MAX_LAUNCHES = 640
_ROUND_BITS = 1
"""Bits after the first in a sampled number: sizes of layers are round numbers, too."""

_LAUNCHES_OF_ONE_ARGUMENT = 64
_ESTIMATE_TOLERANCE = 0.02
_LARGEST = 1 << 18
_LARGEST_ALONE = 1 << 30
"""Limit of the only sampled argument, which may count all elements of a tensor."""

_OTHER_ARGUMENT = 1 << 16
"""Value of arguments used only for addresses, such as strides: rows of different programs do not
overlap."""


def selections(kernel: index.Kernel, works: Sequence[Work]) -> tuple[Selection, ...]:
    """Return a selection for any GPU for each target and combination with several configs.

    `works` has the work of each of the kernel's variants. A kernel with a grid from the caller has
    no estimates.
    """
    return tuple(
        selection
        for target in kernel.targets
        for selection in fit(
            TargetEstimates(kernel, works, target).sampled(), kernel, tolerance=_ESTIMATE_TOLERANCE
        )
    )


class TargetEstimates:
    """The estimates of a kernel's variants on the GPU representing a target.

    Fits to measured times use them, too: they fill the gaps between measured launches.
    """

    def __init__(self, kernel: index.Kernel, works: Sequence[Work], target: str) -> None:
        self._kernel = kernel
        self._target = target
        self._chosen: dict[int, dict[int, tuple[index.Variant, Work]]] = {}
        for variant, work in zip(kernel.variants, works, strict=True):
            is_counted = bool(variant.grid) and bool(work.segments) and target in DEVICES
            if variant.target == target and is_counted:
                number = index.combination(kernel, variant.types, variant.choices)
                of_config = self._chosen.setdefault(number, {})
                earlier = of_config.get(variant.config)
                # Most launches take the variant with the most assumptions.
                if earlier is None or _assumptions(variant) > _assumptions(earlier[0]):
                    of_config[variant.config] = variant, work

    def __call__(self, combination: int, configs: Sequence[int]) -> LaunchEstimates | None:
        """Return the estimates of a combination's configs, None if one cannot be estimated."""
        chosen = self._chosen.get(combination, {})
        if any(config not in chosen for config in configs):
            return None
        return _VariantEstimates(self._kernel, [chosen[config] for config in configs])

    def sampled(self) -> KernelTuning:
        """Return the estimates of sampled launches as if they were measured."""
        kernel = self._kernel
        measurements: list[Measurement] = []
        for number, chosen in sorted(self._chosen.items()):
            if len(chosen) > 1:
                measurements += self._estimated(number, chosen)
        configs = tuple(_constants(config) for config in kernel.configs)
        return KernelTuning(kernel.name, self._target, ANY_GPU, configs, tuple(measurements), {})

    def _estimated(
        self, number: int, chosen: Mapping[int, tuple[index.Variant, Work]]
    ) -> list[Measurement]:
        kernel = self._kernel
        estimates = _VariantEstimates(kernel, [chosen[config] for config in sorted(chosen)])
        times = dict(zip(sorted(chosen), estimates.seconds(estimates.columns), strict=True))
        types, choices = index.split_combination(kernel.type_variables, kernel.choices, number)
        named_types = dict(zip((v.name for v in kernel.type_variables), types, strict=True))
        pairs = zip((choice.name for choice in kernel.choices), choices, strict=True)
        named_choices = {name: value for name, value in pairs if value is not None}
        all_configs = range(len(kernel.configs))
        return [
            Measurement(
                key,
                named_types,
                named_choices,
                tuple(times[config][row] if config in times else None for config in all_configs),
            )
            for row, key in enumerate(estimates.samples)
        ]


class _VariantEstimates:
    """The estimates of one variant of each config, and their sampled launches."""

    def __init__(self, kernel: index.Kernel, counted: Sequence[tuple[index.Variant, Work]]) -> None:
        self._counted = counted
        self.columns = sample_launches(kernel, counted)

    @property
    def samples(self) -> list[dict[str, int]]:
        """The sampled launches, without arguments equal in all."""
        varied = [name for name, values in self.columns.items() if len(set(values.tolist())) > 1]
        count = max((len(values) for values in self.columns.values()), default=1)
        return [{name: int(self.columns[name][row]) for name in varied} for row in range(count)]

    def logarithms(self, keys: Sequence[Mapping[str, int]]) -> list[list[float]]:
        """Return the logarithms of the times of all variants, a list for each launch."""
        import numpy as np  # noqa: PLC0415 - start-up time

        columns = {name: np.array([key[name] for key in keys], np.int64) for name in keys[0]}
        times = self.seconds(columns)
        return [[math.log(column[row]) for column in times] for row in range(len(keys))]

    def seconds(self, columns: Mapping[str, Integers]) -> list[list[float]]:
        """Return the seconds of each launch, a list for each variant."""
        launches = Launches(columns)
        return [
            estimate(
                variant, work, TARGETS[variant.target], DEVICES[variant.target], launches
            ).tolist()
            for variant, work in self._counted
        ]


def _constants(config: index.NamedValues) -> Mapping[str, Constant]:
    return {name: value for name, value in config if value is not None}


def _assumptions(variant: index.Variant) -> tuple[int, bool]:
    return len(variant.guards), variant.condition is not None


def sample_launches(
    kernel: index.Kernel, counted: Sequence[tuple[index.Variant, Work]]
) -> dict[str, Integers]:
    """Return values of the integer arguments and extents, a column each.

    Arguments that determine programs and iterations are spread evenly over the logarithms, up to
    `_LARGEST` or `_LARGEST_ALONE`.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    deciding = _names(kernel, dict.fromkeys(root for pair in counted for root in _deciding(*pair)))
    addressing = dict.fromkeys(root for _, work in counted for root in _addressing(work))
    fixed = _names(kernel, addressing)
    count = MAX_LAUNCHES if len(deciding) > 1 else _LAUNCHES_OF_ONE_ARGUMENT if deciding else 1
    largest = _LARGEST if len(deciding) > 1 else _LARGEST_ALONE
    row = np.arange(count)
    columns = {name: np.full(count, _OTHER_ARGUMENT, np.int64) for name in fixed}
    ratio = _spread_ratio(len(deciding))
    for number, (name, divisor) in enumerate(deciding.items()):
        part = (row + 0.5) / count if number == 0 else np.fmod(row * ratio**number, 1.0)
        span = math.log2(largest / divisor)
        values = np.exp2(part * span)
        step = np.exp2(np.maximum(np.floor(np.log2(values)) - _ROUND_BITS, 0))
        columns[name] = (np.round(values / step) * step).astype(np.int64) * divisor
    distinct = np.unique(np.stack(list(columns.values())), axis=1) if columns else None
    return columns if distinct is None else dict(zip(columns, distinct, strict=True))


def _spread_ratio(count: int) -> float:
    """Return the ratio for evenly filling `count` dimensions by the fractions of its multiples.

    Source: M. Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018.
    """
    root = 2.0
    for _ in range(40):
        root = (1 + root) ** (1 / max(2, count))
    return 1 / root


def _deciding(variant: index.Variant, work: Work) -> list[Expression]:
    return [*variant.grid, *_with_named(work, (segment.times for segment in work.segments))]


def _addressing(work: Work) -> list[Expression]:
    texts: list[str] = []
    for segment in work.segments:
        for transfer in segment.transfers:
            texts += [*transfer.origins, *(part.inside for part in transfer.parts)]
    return _with_named(work, texts)


def _with_named(work: Work, texts: Iterable[str]) -> list[Expression]:
    """Return expressions, including the ones they refer to by name."""
    named = dict(work.values)
    reached = dict.fromkeys(texts)
    waiting = list(reached)
    while waiting:
        for name in expression.free_names(parsed(waiting.pop())):
            text = named.get(name)
            if text is not None and text not in reached:
                reached[text] = None
                waiting.append(text)
    return [parsed(text) for text in reached]


def _names(kernel: index.Kernel, roots: Iterable[Expression]) -> dict[str, int]:
    """Return the launch's arguments and extents in expressions, each with its divisor."""
    divisors = {param.name: param.divisibility for param in kernel.params}
    names: dict[str, int] = {}
    for root in roots:
        for node in expression.walk(root):
            if isinstance(node, Name | Extent) and node.name in divisors:
                divisor = divisors[node.name] if isinstance(node, Name) else 1
                names.setdefault(expression.to_text(node), divisor)
    return dict(sorted(names.items()))
