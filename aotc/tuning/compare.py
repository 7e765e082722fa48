"""Compare the results of a launch's configs with each other: the majority is right.

Configs round and sum in different orders. So floats may differ by a few units in the last place of
the coarsest type involved. The unit is relative to the larger of the two and to the buffer's usual
magnitude. Integers may differ by one if the kernel computes with floats.

Results may depend on a constant of the configs: see `Verdict`.

Invariant: the rejected configs do not depend on the order of the launches, unless no result has a
majority.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aotc.config import CONFIG_KEYS
from aotc.ir.types import SCALARS, ScalarType
from aotc.tuning.messages import Output
from aotc.verify.arrays import Array, view
from aotc.verify.checks.contents import loaded_dtype

_ULPS = 4
_COARSE_BITS = 7  # of bf16's mantissa: a kernel with narrow floats may round intermediates to it
_SINGLE_BITS = 10  # of tf32's, likewise
_MIN_TOLERANCE = 1e-12
_MAX_TOGETHER = 2  # constants that results may depend on; otherwise on all
_MAX_SHARE = 1 / 3  # of the values of constants with one result: more, and they do not decide it
_MAX_TAIL = 1e-3  # of the elements: rounding may move these further, as in sums that cancel
_TAIL_FACTOR, _MAX_TAIL_RELATIVE = 4, 1 / 8
_FEW = 2  # configs: too few to conclude anything from different results


@dataclass(frozen=True, slots=True)
class Verdict:
    """The difference of deviating results, by config.

    With a `constant`, or several, each of its values has its own result, and only configs with the
    same value are compared.
    """

    outliers: dict[int, str]
    constant: str = ""


@dataclass(slots=True)
class Comparison:
    """Results by config; equal ones are stored once.

    `elements` are the types of all buffers of the launch, `tolerance` is the manifest's.
    """

    elements: Sequence[str]
    tolerance: float = 0.0
    _groups: list[tuple[Sequence[Output], list[int]]] = field(
        default_factory=list[tuple[Sequence[Output], list[int]]]
    )

    def add(self, config: int, outputs: Sequence[Output]) -> None:
        """Add a config's results."""
        for group_outputs, members in self._groups:
            if not self._difference(group_outputs, outputs):
                members.append(config)
                return
        self._groups.append((outputs, [config]))

    def verdict(self, configs: Sequence[Mapping[str, object]]) -> Verdict:
        """Return the `configs`, by index, with deviating results.

        Without a majority all deviate: any may be wrong.
        """
        if len(self._groups) < 2:
            return Verdict({})
        names = dict.fromkeys(name for config in configs for name in config)
        constants = [name for name in names if name not in CONFIG_KEYS]
        sizes = dict.fromkeys((*range(1, min(_MAX_TOGETHER, len(constants)) + 1), len(constants)))
        for together in itertools.chain(*(itertools.combinations(constants, n) for n in sizes)):
            verdict = self._by_constants(together, configs)
            if verdict is not None:
                return verdict
        if len(self._groups) == sum(len(members) for _, members in self._groups) > _FEW:
            return Verdict(
                {}, "all constants"
            )  # all results differ: probably not since all are wrong
        ranked = sorted(self._groups, key=lambda group: (-len(group[1]), group[1]))
        right = ranked[0]
        if len(ranked[1][1]) == len(right[1]):
            apart = self._difference(right[0], ranked[1][0])
            reason = f"no result has a majority; {apart}"
            return Verdict({config: reason for _, members in ranked for config in members})
        return Verdict(self._differences(right, [m for _, ms in ranked[1:] for m in ms]))

    def _by_constants(
        self, names: Sequence[str], configs: Sequence[Mapping[str, object]]
    ) -> Verdict | None:
        """Return the verdict if each value of the constants has its own result; else None.

        An example is the number of parts of a split sum, if each part is an output.
        """
        numbers = {
            config: number for number, (_, members) in enumerate(self._groups) for config in members
        }
        classes: dict[str, list[int]] = {}
        for config in sorted(numbers):
            value = repr([configs[config].get(name) for name in names])
            classes.setdefault(value, []).append(config)
        usual: list[int] = []
        for members in classes.values():
            counts = Counter(numbers[config] for config in members)
            (group, count), *_ = counts.most_common(1)
            if 2 * count <= len(members):
                return None
            usual.append(group)
        if len(classes) < 2 or len(numbers) == len(classes):
            return None
        (_, most_alike), *_ = Counter(usual).most_common(1)
        if most_alike > max(1, _MAX_SHARE * len(classes)):
            return None
        outliers: dict[int, str] = {}
        for group, members in zip(usual, classes.values(), strict=True):
            deviating = [config for config in members if numbers[config] != group]
            outliers |= self._differences(self._groups[group], deviating)
        return Verdict(dict(sorted(outliers.items())), " and ".join(names))

    def _differences(
        self, right: tuple[Sequence[Output], list[int]], configs: Sequence[int]
    ) -> dict[int, str]:
        """Return the difference of each config's results from the right ones."""
        results = {config: outputs for outputs, members in self._groups for config in members}
        return {config: self._difference(right[0], results[config]) for config in configs}

    def _difference(self, expected: Sequence[Output], outputs: Sequence[Output]) -> str:
        """Describe the difference of two results, empty if equal."""
        for right, other in zip(expected, outputs, strict=True):
            if np.array_equal(right.content, other.content):
                continue
            element = SCALARS[right.element]
            first, second = (
                view(output.content, loaded_dtype(element)) for output in (right, other)
            )
            wrong = np.flatnonzero(self._differs(first, second, element))
            if wrong.size:
                position = int(wrong[0])
                count = f"{wrong.size} of {first.size} elements looked at in {right.name}"
                return f"{count}, such as {second[position]} where others have {first[position]}"
        return ""

    def _differs(self, first: Array, second: Array, element: ScalarType) -> Array:
        has_floats = any(SCALARS[name].is_float for name in self.elements)
        if not element.is_float:
            if not has_floats or element.is_bool:
                return first != second
            return np.abs(first.astype(np.float64) - second.astype(np.float64)) > 1
        a, b = first.astype(np.float64), second.astype(np.float64)
        with np.errstate(all="ignore"):
            finite = np.isfinite(a) & np.isfinite(b)
            usual = float(np.sqrt(np.mean(np.square(a[finite])))) if finite.any() else 0.0
            scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), usual)
            relative = self._relative(element)
            apart = finite & (np.abs(a - b) > relative * scale + _MIN_TOLERANCE)
            if np.count_nonzero(apart) <= _MAX_TAIL * apart.size:
                relative = max(relative, min(_TAIL_FACTOR * relative, _MAX_TAIL_RELATIVE))
                apart = finite & (np.abs(a - b) > relative * scale + _MIN_TOLERANCE)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        return np.where(finite, apart, ~same)

    def _relative(self, element: ScalarType) -> float:
        """Return the relative tolerance of elements of a type."""
        floats = [
            SCALARS[element_type]
            for element_type in self.elements
            if SCALARS[element_type].is_float
        ]
        is_coarse = any(element_type.bits < 32 for element_type in floats)
        is_single = any(element_type.bits == 32 for element_type in floats)
        bits = element.mantissa_bits
        if is_coarse or is_single:
            bits = min(bits, _COARSE_BITS if is_coarse else _SINGLE_BITS)
        # With eight bits half a unit is large; another order of a sum may cost one more unit.
        ulps = 2 if element.bits <= 8 else _ULPS
        return max(ulps * 2.0**-bits, self.tolerance)


def elements_of(outputs: Sequence[Output], types: Mapping[str, str]) -> list[str]:
    """Return the element types of a launch's buffers and type variables."""
    return list(dict.fromkeys([*(output.element for output in outputs), *types.values()]))
