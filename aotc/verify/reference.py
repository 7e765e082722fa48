"""What a launch must give: the kernel's tile IR interpreted, exactly and with noise.

The first interpretation defines the buffers (see `elastic.py`) and the expected results, the noisy
ones how far from them hardware may be (see `noise.py`).

Invariant: a `Reference` depends on the tile IR, the launch and the ranges, and on nothing else.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import tile
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES, DescriptorReduce
from aotc.ir.types import DescriptorType, PointerType, ScalarType
from aotc.verify import contents
from aotc.verify.dataflow import Roles
from aotc.verify.elastic import Contents, ElasticMemory, loaded_dtype
from aotc.verify.interpreter import RULES, Argument, Interpreter
from aotc.verify.launches import Launch, Scalar
from aotc.verify.memory import TensorAddress
from aotc.verify.noise import inexact_ops, noisy_rules
from aotc.verify.numerics import Array
from aotc.verify.program import InterpretError, Program, Rule, Rules

MAX_UPWARD_RUNS = 4
NUM_RANDOM_RUNS = 2
DEFAULT_MAX_BUFFER_BYTES = 1 << 28

Bytes: TypeAlias = npt.NDArray[np.uint8]
Marks: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Range:
    """Bound what a buffer holds: `low` up to but without `high`, functions of the scalars."""

    low: Callable[[Mapping[str, Scalar]], Scalar]
    high: Callable[[Mapping[str, Scalar]], Scalar]


class ConflictError(Exception):
    """Report that a launch's result is open: memory is touched by several programs or threads."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Hold what lies behind a pointer, as bytes from `HEAD_BYTES` before it to the last touched.

    `start_bytes` is where the pointer points. `upward` and `random` are the results with noise, see
    `noise.py`; there are none where the result `is_exact`. A tensor has a `shape`, and `strides` in
    elements.
    """

    name: str
    pointee: ScalarType
    start_bytes: int
    initial: Bytes
    expected: Bytes
    readable: Marks
    writable: Marks
    upward: tuple[Bytes, ...]
    random: tuple[Bytes, ...]
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether there is one right result, to the bit."""
        return not self.upward

    def elements(self, content: Bytes) -> Array:
        """Return bytes of this buffer as its elements."""
        return content.view(loaded_dtype(self.pointee))


@dataclass(frozen=True, slots=True)
class Reference:
    """Hold the buffers of a launch by name, and its arguments in the order of the parameters."""

    launch: Launch
    buffers: dict[str, Buffer]
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Say how buffers are filled: `ranges` by name, and how large one may become."""

    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    max_buffer_bytes: int = DEFAULT_MAX_BUFFER_BYTES


def interpret(
    kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs, *, may_rewrite: bool = True
) -> Reference:
    """Return what `launch` must give.

    Raises:
        InterpretError: the kernel does what it may not.
        ConflictError: two programs touch the same memory, or, unless it `may_rewrite`, a program
            changes what it has written.
    """
    exact = _run(kernel, roles, launch, inputs, RULES, 0, is_traced=True)
    if exact.conflict:
        raise ConflictError(exact.conflict)
    if exact.rewritten and not may_rewrite:
        raise ConflictError(f"a program changes what it has written in {exact.rewritten}")
    upward: list[ElasticMemory] = []
    random: list[ElasticMemory] = []
    if roles.inexact:
        ops = inexact_ops(kernel)
        groups = [ops[at::MAX_UPWARD_RUNS] for at in range(min(len(ops), MAX_UPWARD_RUNS))]
        for seed, group in enumerate([*groups, *[ops] * NUM_RANDOM_RUNS], launch.seed + 1):
            upwards = len(upward) < len(groups)
            rules = noisy_rules(RULES, seed, group, upwards=upwards)
            run = _run(kernel, roles, launch, inputs, rules, seed)
            (upward if upwards else random).append(run)
    buffers = {
        name: _buffer(name, pointee, index, exact, upward, random)
        if name in roles.inexact
        else _buffer(name, pointee, index, exact, [], [])
        for index, (name, pointee) in enumerate(pointers_of(kernel).items())
    }
    for name, (shape, strides) in _tensors(kernel, launch).items():
        buffers[name] = replace(buffers[name], shape=shape, strides=strides)
    return Reference(launch, buffers, tuple(info.name for info in kernel.params))


def depends_on_undefined(kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs) -> str:
    """Return the buffer whose results change with what undefined values happen to be, or ""."""
    try:
        first = _run(kernel, roles, launch, inputs, RULES, 0)
        second = _run(kernel, roles, launch, inputs, RULES, 1)
    except InterpretError:
        return ""
    for index, name in enumerate(pointers_of(kernel)):
        size = max(first.size_bytes(index), second.size_bytes(index))
        if first.result(index, size).tobytes() != second.result(index, size).tobytes():
            return name
    return ""


def pointers_of(kernel: Kernel) -> dict[str, ScalarType]:
    """Return the pointers and descriptors among the parameters, and what they are of, in order."""
    found: dict[str, ScalarType] = {}
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        if isinstance(arg.type, PointerType):
            found[info.name] = arg.type.pointee
        elif isinstance(arg.type, DescriptorType):
            found[info.name] = arg.type.element
    return found


def _tensors(kernel: Kernel, launch: Launch) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the shape and the strides, in elements, of each tensor of a launch.

    Rows are padded to what a tensor copy can address, and further in every other launch.
    """
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        kind = arg.type
        if not isinstance(kind, DescriptorType):
            continue
        axes = range(len(kind.block))
        shape = tuple(int(launch.scalars[f"{info.name}.shape[{axis}]"]) for axis in axes)
        grain = TENSOR_ALIGNMENT_BYTES // kind.element.size_bytes
        strides = (1,)
        for extent in shape[:0:-1]:
            rows = -(-extent * strides[0] // grain) + int(launch.misaligned)
            strides = (rows * grain, *strides)
        found[info.name] = shape, strides
    return found


def _run(
    kernel: Kernel,
    roles: Roles,
    launch: Launch,
    inputs: Inputs,
    rules: Rules,
    poison_seed: int,
    *,
    is_traced: bool = False,
) -> ElasticMemory:
    memory = ElasticMemory(inputs.max_buffer_bytes, is_traced=is_traced)
    tensors = _tensors(kernel, launch)
    args: list[Argument] = []
    for at, (info, arg) in enumerate(zip(kernel.params, kernel.body.args, strict=True)):
        kind = arg.type
        if not isinstance(kind, PointerType | DescriptorType):
            args.append(launch.scalars[info.name])
            continue
        pointee = kind.pointee if isinstance(kind, PointerType) else kind.element
        is_free = launch.misaligned and info.divisibility == 1 and isinstance(kind, PointerType)
        misaligned = pointee.size_bytes if is_free else 0
        filled = _contents(info.name, pointee, roles, launch, inputs, launch.seed + at)
        address = memory.add_buffer(info.name, pointee, filled, misaligned)
        tensor = tensors.get(info.name)
        args.append(address if tensor is None else TensorAddress(address, *tensor))
    interpreter = Interpreter(
        kernel, args, poison_seed=poison_seed, memory=memory, rules=_atomic_rules(rules)
    )
    interpreter.run(launch.grid)
    return memory


def _contents(
    name: str, pointee: ScalarType, roles: Roles, launch: Launch, inputs: Inputs, seed: int
) -> Contents:
    given = inputs.ranges.get(name)
    if given is not None:
        low, high = given.low(launch.scalars), given.high(launch.scalars)
        return contents.between(pointee, low, high, seed)
    if name in roles.indices:
        return contents.between(pointee, 0, launch.index_high, seed)
    if pointee.is_float:
        return contents.floats(pointee, seed)
    return contents.integers(pointee, seed)


def _atomic_rules(rules: Rules) -> Rules:
    """Return `rules` in which the accesses of an atomic are marked as such."""

    def marked(base: Rule) -> Rule:
        def rule(program: Program, op: Op, *operands: Any) -> Any:
            memory = program.memory
            assert isinstance(memory, ElasticMemory)
            with memory.atomic(_order_of(op)):
                return base(program, op, *operands)

        return rule

    return {**rules, **{cls: marked(rules[cls]) for cls in _ATOMICS}}


def _order_of(op: Op) -> tile.AtomicSem:
    """Return how an atomic orders what programs do before and behind it."""
    if isinstance(op, tile.AtomicRmw | tile.AtomicCas) and op.scope != "cta":
        return op.sem
    return "relaxed"


_ATOMICS = (tile.AtomicRmw, tile.AtomicCas, DescriptorReduce)


def _buffer(
    name: str,
    pointee: ScalarType,
    index: int,
    exact: ElasticMemory,
    upward: list[ElasticMemory],
    random: list[ElasticMemory],
) -> Buffer:
    read, written = exact.touched(index)
    touched = np.flatnonzero(read | written)
    start = exact.start_bytes(index)
    size = max(start, int(touched[-1]) + 1 if touched.size else 0)
    size = -(-size // pointee.size_bytes) * pointee.size_bytes
    return Buffer(
        name=name,
        pointee=pointee,
        start_bytes=start,
        initial=exact.initial(index, size),
        expected=exact.result(index, size).copy(),
        readable=read[:size].copy(),
        writable=written[:size].copy(),
        upward=tuple(memory.result(index, size).copy() for memory in upward),
        random=tuple(memory.result(index, size).copy() for memory in random),
    )
