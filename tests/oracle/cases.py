"""Pieces of kernels, each with its inputs: what both oracles are asked.

A case is the body of a kernel. Its inputs are `a`, `b`, …, tiles or, with shape (), scalars; what
it assigns to `r`, `s`, … are its results. The tables of `cases_*.py` make the cases; this file
says what one is and how it becomes source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.oracle.values import Array

NAMES = "abcd"
RESULTS = "rstuvw"


@dataclass(frozen=True)
class Input:
    """Hold an input: its type as the language names it, its elements in order, its shape."""

    dtype: str
    values: Array
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """Ask for the results of `body`; floats may be off by `steps` of their type."""

    name: str
    body: str
    inputs: tuple[Input, ...] = ()
    num_results: int = 1
    prelude: str = ""
    steps: float = 0.0

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Result:
    """Hold what a case gave: the type as the language names it, the shape, the elements."""

    dtype: str
    shape: tuple[int, ...]
    values: Array


@dataclass(frozen=True)
class Refused:
    """Say that a case is an error while compiling."""

    message: str


Outcome = tuple[Result, ...] | Refused


def tile(dtype: str, values: Array, *shape: int) -> Input:
    """Return an input; without a shape, of one axis."""
    return Input(dtype, values, shape or (len(values),))


def scalar(dtype: str, value: Array) -> Input:
    """Return a run-time scalar."""
    return Input(dtype, value.reshape(-1)[:1], ())


def source(case: Case, ending: Iterable[str]) -> str:
    """Return the source of kernel `k`, which ends with the lines `ending`."""
    names = [f"{name}_ptr" for name, _ in zip(NAMES, case.inputs, strict=False)]
    names += [f"{name}_ptr" for name in RESULTS[: case.num_results]]
    lines = [
        _loaded(name, operand.shape, len(operand.values))
        for name, operand in zip(NAMES, case.inputs, strict=False)
    ]
    lines += [*case.body.strip("\n").split("\n"), *ending]
    body = "\n".join(f"    {line}" for line in lines)
    head = "import triton\nimport triton.language as tl\n\n\n"
    return f"{head}{case.prelude}@triton.jit\ndef k({', '.join(names)}):\n{body}\n"


def _loaded(name: str, shape: tuple[int, ...], count: int) -> str:
    if not shape:
        return f"{name} = tl.load({name}_ptr)"
    text = f"tl.load({name}_ptr + tl.arange(0, {count}))"
    return f"{name} = {text}" if len(shape) == 1 else f"{name} = tl.reshape({text}, {list(shape)})"
