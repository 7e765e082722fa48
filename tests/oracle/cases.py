"""Cases for both oracles: pieces of kernels with their inputs.

A case is the body of a kernel. Its inputs are `a`, `b`, …, tiles or, with shape (), scalars; its
results are `r`, `s`, …. The tables of `cases_*.py` list the cases; this file defines `Case` and writes
its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.oracle.values import Array

NAMES = "abcd"
RESULTS = "rstuvw"


@dataclass(frozen=True)
class Input:
    """An input: the language's name of its type, its elements in order, its shape."""

    dtype: str
    values: Array
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A body of a kernel; its float results may be off by `steps` ulps."""

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
    """A result: the language's name of its type, its shape, its elements."""

    dtype: str
    shape: tuple[int, ...]
    values: Array


@dataclass(frozen=True)
class Refused:
    """A compile error as the outcome of a case."""

    message: str


Outcome = tuple[Result, ...] | Refused


def tile(dtype: str, values: Array, *shape: int) -> Input:
    """Return an input; without a shape, of one axis."""
    return Input(dtype, values, shape or (len(values),))


def scalar(dtype: str, value: Array) -> Input:
    """Return a run-time scalar."""
    return Input(dtype, value.reshape(-1)[:1], ())


def source(case: Case, ending: Iterable[str]) -> str:
    """Return the source of kernel `k`, with the lines `ending` at its end."""
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
