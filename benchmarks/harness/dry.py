"""Run a small workload without a GPU: every kernel of a plan in the interpreter of tile IR.

The manifest's own variants are taken, so their configs, choices, guards and grids are tried with
the workload's arguments, and its reference with the interpreted results.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aotc.compiler import translate_request
from aotc.ir.expression import Expression, ExpressionError, evaluate
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import Subject, subjects_of_manifest
from aotc.verify.interpreter.run import run
from benchmarks.harness.manifest import ROOT
from benchmarks.harness.operands import Arguments, HostArrays
from benchmarks.harness.workload import (
    Config,
    Configs,
    Plan,
    Step,
    Workload,
    alternatives,
    error_of,
    label_of,
)


@functools.cache
def _subjects(manifest: str, kernel: str) -> list[Subject]:
    """Return the variants of a kernel."""
    return subjects_of_manifest(load(str(ROOT / manifest)), [kernel], ["sm_90a"])


def _config(subject: Subject) -> dict[str, Any]:
    assert subject.expanded is not None
    return dict(subject.expanded[1].config)


def _choices(subject: Subject) -> dict[str, Any]:
    assert subject.expanded is not None
    spec = subject.expanded[1]
    return dict(zip(spec.kernel.choices, spec.choices, strict=True))


def configs_of(manifest: str) -> Configs:
    """Return the function from a kernel to the configs of its variants."""
    names = {kernel.name for kernel in load(str(ROOT / manifest)).kernels}

    def configs(kernel: str, choices: Mapping[str, Any] | None = None) -> Sequence[Config]:
        if kernel not in names:
            return ()
        listed: list[dict[str, Any]] = []
        for subject in _subjects(manifest, kernel):
            if _fits(subject, choices or {}) and _config(subject) not in listed:
                listed.append(_config(subject))
        return listed

    return configs


def dry_run(workload: Workload, limit: int = 1) -> Iterator[tuple[str, float]]:
    """Yield the first candidates of each sequence of kernels, with their errors."""
    arrays = HostArrays()
    args = workload.operands(arrays)
    expected = [*workload.reference(arrays, args)]
    seen: dict[tuple[str, ...], int] = {}
    for name, rival in {"aotc": None, **workload.rivals}.items():
        configs = configs_of(workload.manifest)
        for plans in workload.candidates(arrays, args, configs, rival):
            plan = tuple(steps[0] for steps in alternatives(plans))
            key = (name, *(step.kernel for step in plan))
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= limit:
                launch = functools.partial(_interpret, workload, plan, args)
                if callable(rival):
                    launch()  # its results are others
                else:
                    error = error_of(workload, arrays, args, expected, launch, plan)
                    yield label_of(plan), error


def _interpret(workload: Workload, plan: Plan, args: Arguments) -> None:
    for step in plan:
        _launch(workload.manifest, step, step.arguments(args))


def _launch(manifest: str, step: Step, values: Mapping[str, Any]) -> None:
    """Interpret one launch by the first variant that takes it."""
    subject = next(
        (
            subject
            for subject in _subjects(manifest, step.kernel)
            if _serves(subject, step) and _holds(subject, values)
        ),
        None,
    )
    if subject is None or subject.request is None:
        raise ValueError(f"no variant of {step.kernel} takes {step.label}")
    kernel = translate_request(subject.request).kernel
    numbers = _numbers(subject, values)
    grid = step.grid or tuple(evaluate(axis, numbers) for axis in subject.grid)
    names = dict.fromkeys(info.argument for info in kernel.params)
    run(kernel, grid, [values[name] for name in names])


def _serves(subject: Subject, step: Step) -> bool:
    return _fits(subject, step.choices) and step.config in (None, _config(subject))


def _fits(subject: Subject, choices: Mapping[str, Any]) -> bool:
    """Return whether a variant has those of the choices that its kernel has."""
    return all(choices.get(name, value) == value for name, value in _choices(subject).items())


def _numbers(subject: Subject, values: Mapping[str, Any]) -> dict[str, int]:
    """Return the integers that expressions name: arguments, extents, constants."""
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    for name, value in values.items():
        for axis, extent in enumerate(getattr(value, "shape", ())):
            numbers[f"{name}.shape[{axis}]"] = extent
    return numbers | dict(subject.values)


def _holds(subject: Subject, values: Mapping[str, Any]) -> bool:
    """Return whether the variant's types and guards suit the arguments; addresses are aligned."""
    assert subject.request is not None
    assert subject.expanded is not None
    numbers, absent = _numbers(subject, values), subject.expanded[1].absent
    for name, kind in subject.request.signature:
        element = kind.removeprefix("*").removeprefix("tensordesc<").partition("[")[0]
        value = values.get(name)
        if kind == "none":
            if name in absent and value is not None:
                return False
            continue
        if value is None:
            return False
        if hasattr(value, "dtype") and not _is_of(value, element.partition(":")[0]):
            return False
    return all(_is_true(guard, numbers) for guard in subject.guards)


def _is_true(guard: Expression, numbers: Mapping[str, int]) -> bool:
    """Return whether a guard holds; those of addresses do."""
    with contextlib.suppress(ExpressionError):
        return bool(evaluate(guard, numbers))
    return True


def _is_of(value: Any, element: str) -> bool:
    from aotc.ir.types import SCALARS
    from aotc.verify.interpreter.numerics import dtype_of

    return element not in SCALARS or dtype_of(SCALARS[element]) == value.dtype
