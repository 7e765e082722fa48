"""Find reasons for a slow variant: narrow accesses, no tensor maps, no tuning.

The gain of a promise is found by compiling with it, so every proposed row helps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aotc.compiler import CompileRequest
from aotc.ir import expression
from aotc.ir.diagnostics import ResourceError
from aotc.package.archive.index import Kernel, Variant
from aotc.package.builder.assemble import misfit
from aotc.package.cover.choose import holds, launch_values, promised_argument
from aotc.package.cover.rows import Row, signature_row
from aotc.package.inspect.explain import Explanation, explain
from aotc.package.manifest.argument_type import PROMISED_DIVISOR
from aotc.package.manifest.variant_grid import VariantSpec
from aotc.package.tuning.shapes import Launch
from aotc.package.tuning.table import Measurement, TuningTable
from aotc.schedule.remarks import Remark

_WIDE_BYTES = 16
_NEAR = 2  # ratio: tuning for a value of an argument also holds for values this close
_MAX_PROMISES = 6  # removed one by one, to find those that help
_ACCESSES = ("load", "store", "asynchronous copy")
_FIELD = re.compile(r"\\\{\w+\\\}")
_NO_MAPS = tuple(
    re.compile(_FIELD.sub(".*", re.escape(remark.value)))
    for remark in (Remark.NO_TENSOR_COPY, Remark.NO_TENSOR_MAP, Remark.NO_DEVICE_MAP)
)


@dataclass(frozen=True, slots=True)
class Slow:
    """A reason that a variant is slow, and rows for a faster one."""

    kind: Literal["narrow", "maps", "tuning"]
    text: str
    rows: tuple[Row, ...] = ()


Explain = Callable[[CompileRequest], Explanation]


def fitting(
    serving: Sequence[Variant], specs: Mapping[Variant, VariantSpec], explained: Explain = explain
) -> tuple[Variant, ...]:
    """Return the variants for a launch from the first one that a build keeps.

    Raises: as `explain`, but no ResourceError.
    """
    spilling: Variant | None = None
    for position, variant in enumerate(serving):
        spec = specs[variant]
        try:
            metadata = explained(spec.request).metadata
        except ResourceError:
            continue
        if misfit(metadata, spec):
            continue
        if not metadata.spill_problem(spec.kernel.spill_bytes):
            return tuple(serving[position:])
        spilling = spilling or variant  # used if no other serves
    return () if spilling is None else (spilling,)


def compiled_reasons(
    kernel: Kernel, spec: VariantSpec, launch: Launch, explained: Explain = explain
) -> Iterator[Slow]:
    """Yield the compiler's reasons that a manifest's variant is slow. Raises: as `explain`."""
    values = launch_values(kernel, launch)
    request = spec.request
    explanation = _serving(request, values, explained)
    reasons = [*_narrow(explanation), *_mapless(explanation, request, values, explained)]
    if not reasons:
        return
    rows = _helping_rows(spec, launch, values, explained, len(reasons))
    broken = [
        f"{name} = {launch.key[name]} is no multiple of {PROMISED_DIVISOR}"
        for name in spec.waived
        if name in launch.key
    ]
    for reason in reasons:
        why = f" ({'; '.join(broken)})" if broken and reason.kind == "narrow" else ""
        yield replace(reason, text=reason.text + why, rows=rows)


def archived_reasons(kernel: Kernel, variant: Variant, launch: Launch) -> Iterator[Slow]:
    """Yield an archive's reasons that a variant is slow: missing promises, and its remarks."""
    values = launch_values(kernel, launch)
    for guard in kernel.guards:
        name = promised_argument(guard)
        if name and not guard.is_promise and not holds(guard.expression, values):
            yield Slow("narrow", f"expected that {guard.text}, for wide accesses")
    for other in kernel.variants:
        of_config = (variant.target, variant.types, variant.choices, variant.config)
        is_mapped = (other.target, other.types, other.choices, other.config) == of_config
        if is_mapped and other.condition is not None and not holds(other.condition, values):
            where = expression.to_text(other.condition)
            yield Slow("maps", f"no tensor maps: they need {where}")
            break
    yield from _of_remarks(variant.remarks)


def tuning_reason(
    table: TuningTable, kernel: Kernel, target: str, launch: Launch, serving: Sequence[Variant]
) -> Slow | None:
    """Return a reason if several configs serve a launch, and no measurement is near it."""
    if len({variant.config for variant in serving}) < 2:
        return None
    measured = [
        measurement
        for tuning in table.kernels
        if (tuning.kernel, tuning.target) == (kernel.name, target)
        for measurement in tuning.measurements
        if measurement.types == launch.types and measurement.choices == launch.choices
    ]
    if any(_is_near(measurement, launch) for measurement in measured):
        return None
    count = f", {len(measured)} launches were measured" if measured else ""
    return Slow("tuning", f"no tuning within a factor of {_NEAR}{count}")


def _is_near(measurement: Measurement, launch: Launch) -> bool:
    """Return whether each argument of a measurement is near; an imported one names few."""
    return bool(measurement.key) and all(
        name in launch.key
        and (
            value == launch.key[name]
            or (0 < value <= _NEAR * launch.key[name] and launch.key[name] <= _NEAR * value)
        )
        for name, value in measurement.key.items()
    )


def _serving(request: CompileRequest, values: Mapping[str, int], explained: Explain) -> Explanation:
    """Explain the kernel used by a launch, of a config's two with and without tensor maps."""
    explanation = explained(request)
    if explanation.condition and not holds(expression.parse(explanation.condition), values):
        return explained(replace(request, map_pointers=False))
    return explanation


def _narrow(explanation: Explanation) -> Iterator[Slow]:
    for access in explanation.accesses or ():
        widest = min(_WIDE_BYTES, access.bytes_per_thread * access.count)
        if access.verb in _ACCESSES and access.bytes_per_thread < widest:
            yield Slow("narrow", f"narrow: {access}")


def _mapless(
    explanation: Explanation, request: CompileRequest, values: Mapping[str, int], explained: Explain
) -> Iterator[Slow]:
    mapped = explained(request)
    if mapped.condition and not holds(expression.parse(mapped.condition), values):
        yield Slow("maps", f"no tensor maps: they need {mapped.condition}")
    yield from _of_remarks(explanation.metadata.remarks)


def _of_remarks(remarks: Sequence[str]) -> Iterator[Slow]:
    for remark in remarks:
        if any(pattern.search(remark) for pattern in _NO_MAPS):
            yield Slow("maps", remark)


def _helping_rows(
    spec: VariantSpec,
    launch: Launch,
    values: Mapping[str, int],
    explained: Explain,
    num_reasons: int,
) -> tuple[Row, ...]:
    """Return rows for promises the launch keeps, if they leave fewer reasons."""
    names = [
        name
        for name, argument in spec.kernel.signature.items()
        if argument.divisor == 1
        and (argument.kind == "pointer" or name in launch.key)
        and argument.value is None
        and values.get(name, 1) % PROMISED_DIVISOR == 0
        and name not in launch.null_pointers
    ]

    def count(promised: Sequence[str]) -> int:
        request = _promising(spec, promised)
        explanation = _serving(request, values, explained)
        return len([*_narrow(explanation), *_mapless(explanation, request, values, explained)])

    if not names or count(names) >= num_reasons:
        return ()
    least = count(names)
    if len(names) <= _MAX_PROMISES:
        for name in tuple(names):
            rest = [other for other in names if other != name]
            if count(rest) <= least:
                names = rest
    rows = (signature_row(spec.kernel, name, launch) for name in names)
    return tuple(row for row in rows if row is not None)


def _promising(spec: VariantSpec, names: Sequence[str]) -> CompileRequest:
    kernel = spec.kernel
    signature = {
        name: replace(argument, divisor=PROMISED_DIVISOR) if name in names else argument
        for name, argument in kernel.signature.items()
    }
    return replace(spec, kernel=replace(kernel, signature=signature)).request
