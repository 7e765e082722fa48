"""Compute a launch's expected results: interpret the tile IR, exactly and with noise.

The first interpretation defines the buffers (see `lazy_memory.py`) and the expected results;
the noisy ones bound hardware's deviation (see `noise.py`).

Invariant: a `Reference` depends only on the tile IR, the launch and the ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, tile
from aotc.ir.dialects.descriptor import DescriptorReduce
from aotc.ir.dialects.grid import GridBarrier
from aotc.ir.types import ScalarType
from aotc.verify.arrays import Array, copied, view
from aotc.verify.checks.contents import loaded_dtype
from aotc.verify.checks.dataflow import Roles
from aotc.verify.checks.index_overflow import OverflowWatch
from aotc.verify.checks.inputs import Inputs, maps_at, owners_of, prepared, tensors_of
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.lazy_memory import ElasticMemory
from aotc.verify.checks.noise import inexact_ops, is_inexact, noisy_rules
from aotc.verify.checks.rounding import (
    NUM_FLIPPED_RUNS,
    RoundingWatch,
    inner_roundings,
    weight_casts,
)
from aotc.verify.checks.value_flow import forward
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor
from aotc.verify.interpreter.program import Code, InterpretError, Program, Rule, Rules
from aotc.verify.interpreter.replay import Recording, Steady
from aotc.verify.interpreter.run import RULES, Argument, Interpreter
from aotc.verify.pages import PAGE_BYTES
from aotc.verify.sparse_memory import sparse_zeros

MAX_UPWARD_RUNS = 4
NUM_RANDOM_RUNS = 2
_APART = (1, 2)  # see `noisy_rules`: pairs of up to four ops of a type take different infinities

Bytes: TypeAlias = npt.NDArray[np.uint8]
Marks: TypeAlias = npt.NDArray[np.bool_]
_Runs: TypeAlias = "tuple[list[ElasticMemory], list[ElasticMemory], list[ElasticMemory]]"


class ConflictError(Exception):
    """Report an open result: several programs or threads access the same memory."""


class RewriteError(ConflictError):
    """Report that a program overwrites its own results, perhaps intentionally."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The memory behind a pointer, from `HEAD_BYTES` before it to the last accessed byte.

    - `start_bytes` is the pointer's offset.
    - `upward` and `random` are the results with noise, see `noise.py`; `flipped` those with
      flipped roundings, see `rounding.py`. There are none if the result `is_exact`.
    - A tensor has a `shape`, and `strides` in elements.
    - With `pages` only these are held, one after the other.
    - A buffer of addresses has `pointees`, the target buffers, repeated cyclically; a buffer of
      tensor maps has their form, `maps`, as well.
    - `stored_maps` are the offsets of tensor maps stored by the kernel, with the
      interpreter's addresses: there the memory is at `address`.
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
    flipped: tuple[Bytes, ...] = ()
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()
    pointees: tuple[str, ...] = ()
    maps: PlacedTensor | None = None
    stored_maps: tuple[int, ...] = ()
    address: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of the whole memory, held or not."""
        return (self.pages[-1] + 1) * PAGE_BYTES if self.pages else self.initial.size

    @property
    def held_bytes(self) -> int:
        """The size of all arrays held."""
        arrays = (self.initial, self.expected, self.readable, self.writable)
        return sum(array.nbytes for array in (*arrays, *self.upward, *self.random, *self.flipped))

    def spread(self, content: Bytes) -> Bytes:
        """Return the whole memory with `content` at the held bytes, and zeros elsewhere.

        The zeros take no room until they are written to. Raises: MemoryError.
        """
        whole = sparse_zeros(self.size_bytes) if self.pages else np.empty(self.size_bytes, np.uint8)
        for start, part in self.parts(content):
            whole[start : start + part.size] = part
        return whole

    def collect(self, whole: Bytes) -> Bytes:
        """Return the held bytes of the whole memory."""
        if not self.pages:
            return whole
        # Marks of the pages have the same pieces as contents.
        pieces = self.parts(self.initial)
        return np.concatenate([whole[start : start + part.size] for start, part in pieces])

    def addressing(self, addresses: Mapping[str, int], content: Bytes) -> Bytes:
        """Return the content with its pointees' addresses relocated."""
        if not self.pointees:
            return content
        values = np.array([addresses[name] for name in self.pointees], np.int64)
        slots = np.arange(content.size // 8) - self.start_bytes // 8
        return view(values[slots % len(values)], np.uint8)

    def parts(self, content: Bytes) -> Iterator[tuple[int, Bytes]]:
        """Yield contiguous pieces of the held bytes, each with its offset in memory.

        A piece spans all adjacent pages: a driver's copy has a high fixed cost.
        """
        if not self.pages:
            yield 0, content
            return
        pages = np.asarray(self.pages)
        starts = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(pages)], strict=True):
            offset = self.pages[start] * PAGE_BYTES
            yield offset, content[start * PAGE_BYTES : end * PAGE_BYTES]

    def element_at(self, stored_index: int) -> int:
        """Return the index, counted from the pointer, of the held element `stored_index`."""
        size = self.pointee.size_bytes
        offset = stored_index * size
        if self.pages:
            offset = self.pages[offset // PAGE_BYTES] * PAGE_BYTES + offset % PAGE_BYTES
        return (offset - self.start_bytes) // size

    @property
    def is_exact(self) -> bool:
        """Whether there is one right result, to the bit."""
        return not self.upward

    def elements(self, content: Bytes) -> Array:
        """Return bytes of this buffer as its elements."""
        return view(content, loaded_dtype(self.pointee))


@dataclass(frozen=True, slots=True)
class Reference:
    """The buffers of a launch by name, and its arguments in the order of the parameters.

    `met_undefined` is set if the kernel made undefined values, used or not.
    """

    launch: Launch
    buffers: dict[str, Buffer]
    order: tuple[str, ...]
    met_undefined: bool = False

    def buffer(self, name: str) -> Buffer | None:
        """Return an argument's memory; None for a scalar."""
        return self.buffers.get(self.launch.aliases.get(name, name))

    @property
    def num_stored(self) -> int:
        """Number of bytes written, and so compared."""
        return sum(int(np.count_nonzero(b.writable)) for b in self.buffers.values())


def interpret(
    kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs, *, may_rewrite: bool = True
) -> Reference:
    """Interpret `launch`, and return its expected results.

    Raises:
      - InterpretError: the kernel does something illegal.
      - IndexOverflowError: an InterpretError, for an overflow of a 32-bit address.
      - ConflictError: two programs access the same memory.
      - RewriteError: a program overwrites its own results, unless it `may_rewrite`.
    """
    watch = RoundingWatch(
        inner_roundings(kernel, is_inexact) if roles.inexact else [],
        weight_casts(kernel) if inputs.is_rescaled else [],
    )
    recording = Recording(kinds=dict.fromkeys(type(op) for op in kernel.walk()))
    rules = watch.recording(RULES)
    if roles.inexact:
        rules = recording.recording(rules)
    overflow = OverflowWatch(kernel)
    exact, args = prepared(kernel, roles, launch, inputs, is_traced=True)
    code = Code()
    try:
        run_launch(kernel, launch, exact, args, overflow.recording(rules), 0, code=code)
    except InterpretError as error:
        raise (overflow.error() or error) from None
    wrapped = overflow.error()
    if wrapped is not None:
        raise wrapped
    if exact.conflict:
        raise ConflictError(exact.conflict)
    if launch.is_long and overflow.wraps:
        raise ConflictError("an index overflows")  # a compiler may assume no index overflows
    if exact.crossed:
        message = f"elements of tiles meet in {exact.crossed} that threads may access in any order"
        raise ConflictError(message)
    if exact.rewritten and not may_rewrite:
        raise RewriteError(f"a program changes what it has written in {exact.rewritten}")
    upward: list[ElasticMemory] = []
    random: list[ElasticMemory] = []
    flipped: list[ElasticMemory] = []
    if roles.inexact:
        ops = inexact_ops(kernel)
        groups = [ops[start::MAX_UPWARD_RUNS] for start in range(min(len(ops), MAX_UPWARD_RUNS))]
        steady = steady_values(kernel, recording, [*ops, *watch.ops])
        known_rules = recording.recalling(RULES, [tile.Dot, arith.Exp2, arith.Cast])
        apart = [0] * NUM_RANDOM_RUNS
        if launch.is_special:  # overflows may meet each other
            apart += [bit for bit in _APART for _ in range(NUM_RANDOM_RUNS)]
        for seed, group in enumerate([*groups, *[ops] * len(apart)], launch.seed + 1):
            upwards, number = len(upward) < len(groups), len(random)
            rules = noisy_rules(
                known_rules, seed, group, recording, upwards=upwards, apart=apart[number]
            )
            if number < NUM_RANDOM_RUNS:
                rules = watch.measuring(rules)
            rules = recording.replaying(rules, [*group, *watch.ops], same_poison=False)
            memory = run_launch(
                kernel, launch, exact.again(), args, rules, seed, code=code, steady=steady
            )
            (upward if upwards else random).append(memory)
        for run in range(NUM_FLIPPED_RUNS) if watch.has_moved else ():
            rules = recording.replaying(watch.flipping(RULES, run), watch.ops, same_poison=True)
            flipped.append(
                run_launch(kernel, launch, exact.again(), args, rules, 0, code=code, steady=steady)
            )
    inexact = [launch.aliases.get(name, name) for name in roles.inexact]
    buffers: dict[str, Buffer] = {}
    for index, (name, pointee) in enumerate(owners_of(kernel, launch, inputs).items()):
        # Memory behind a loaded address is as exact as the ops on it.
        is_exact = name.partition("[")[0] not in inexact
        runs: _Runs = ([], [], []) if is_exact else (upward, random, flipped)
        buffers[name] = _buffer(name, pointee, index, exact, runs)
    for name, pointees in inputs.pointees.items():
        names = tuple(pointees.names(name, launch))
        maps = maps_at(kernel, name, pointees, launch) if pointees.shape else {}
        buffers[name] = replace(buffers[name], pointees=names, maps=maps.get(names[0]))
    for name, (shape, strides) in tensors_of(kernel, launch).items():
        buffers[name] = replace(buffers[name], shape=shape, strides=strides)
    order = tuple(info.name for info in kernel.params)
    return Reference(launch, buffers, order, exact.met_undefined)


def steady_values(kernel: Kernel, recording: Recording, inexact: Sequence[Op]) -> Steady:
    """Return the values for noisy runs to reuse: they depend on no inexact op."""
    moving = forward([*inexact, *recording.unsteady()])
    changed = {value for op in moving for value in op.results}
    # If a noisy run may write to other locations, it may load other values too.
    if any(
        operand in changed and operand is not getattr(op, "value", None)
        for op in kernel.walk()
        if any(effect.access == "write" for effect in op.effects)
        for operand in op.operands
    ):
        loads = [op for op in kernel.walk() if op.effects]
        moving = forward([*moving, *loads])
    return recording.steady(moving)


def run_launch(
    kernel: Kernel,
    launch: Launch,
    memory: ElasticMemory,
    args: Sequence[Argument],
    rules: Rules,
    poison_seed: int,
    *,
    code: Code | None = None,
    steady: Steady | None = None,
) -> ElasticMemory:
    """Interpret the kernel, and return the memory afterwards."""
    interpreter = Interpreter(
        kernel,
        args,
        poison_seed=poison_seed,
        memory=memory,
        rules=_atomic_rules(rules),
        code=code,
        steady=steady,
    )
    interpreter.run(launch.grid, launch.programs)
    memory.met_undefined = interpreter.poison.was_asked
    return memory


def _atomic_rules(rules: Rules) -> Rules:
    """Return `rules` in which the accesses of an atomic are marked as such."""

    def marked(base: Rule) -> Rule:
        def rule(program: Program, op: Op, *operands: Any) -> Any:
            memory = program.memory
            assert isinstance(memory, ElasticMemory)
            with memory.atomic(_order_of(op), getattr(op, "kind", "cas")):
                return base(program, op, *operands)

        return rule

    return {**rules, **{cls: marked(rules[cls]) for cls in _ATOMICS}}


def _order_of(op: Op) -> tile.AtomicSem:
    """Return the memory order of an atomic, as other programs see it."""
    if isinstance(op, tile.AtomicRmw | tile.AtomicCas) and op.scope != "cta":
        return op.sem
    return "relaxed"


_ATOMICS = (tile.AtomicRmw, tile.AtomicCas, DescriptorReduce, GridBarrier)


def _buffer(
    name: str,
    pointee: ScalarType,
    index: int,
    exact: ElasticMemory,
    runs: _Runs,
) -> Buffer:
    pages = exact.pages(index)
    read, written = exact.touched(index, pages)
    start = exact.start_bytes(index)
    size = read.size
    if not pages:
        # An empty slice of an array has no address of its own.
        size = max(start + 1, exact.end_bytes(index))
        size = -(-size // pointee.size_bytes) * pointee.size_bytes
    upward, random, flipped = (
        tuple(memory.result(index, size, pages) for memory in memories) for memories in runs
    )
    return Buffer(
        name=name,
        pointee=pointee,
        start_bytes=start,
        initial=exact.initial(index, size, pages),
        expected=exact.result(index, size, pages),
        readable=copied(read[:size]),
        writable=copied(written[:size]),
        upward=upward,
        random=random,
        flipped=flipped,
        pages=tuple(pages),
        stored_maps=exact.places_of_maps(index),
        address=exact.base_of(index),
    )
