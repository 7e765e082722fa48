"""What a launch must give: the kernel's tile IR interpreted, exactly and with noise.

The first interpretation defines the buffers (see `lazy_memory.py`) and the expected results, the noisy
ones how far from them hardware may be (see `noise.py`).

Invariant: a `Reference` depends on the tile IR, the launch and the ranges, and on nothing else.
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
from aotc.verify.checks.rounding import NUM_FLIPPED_RUNS, CastWatch, inner_casts
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
    """Report that a launch's result is open: memory is touched by several programs or threads."""


class RewriteError(ConflictError):
    """Report that a program changes what it has written, which a kernel may mean to."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Hold what lies behind a pointer, as bytes from `HEAD_BYTES` before it to the last touched.

    `start_bytes` is where the pointer points. `upward` and `random` are the results with noise, see
    `noise.py`, `flipped` those with roundings to the other side, see `rounding.py`; there are none
    where the result `is_exact`. A tensor has a `shape`, and `strides` in
    elements. With `pages` only these are held, one after the other. One that holds addresses has
    `pointees`, the buffers they are of, over and over; one that holds tensor maps of them has their form, `maps`.
    The kernel stores tensor maps at the bytes `stored_maps` of the memory, with addresses of the interpreter's: there
    the memory is at `address`.
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
        """How large the memory is that this is, or the pages of which this holds."""
        return (self.pages[-1] + 1) * PAGE_BYTES if self.pages else self.initial.size

    @property
    def held_bytes(self) -> int:
        """How much memory all that this holds takes."""
        held = (self.initial, self.expected, self.readable, self.writable)
        return sum(each.nbytes for each in (*held, *self.upward, *self.random, *self.flipped))

    def spread(self, content: Bytes) -> Bytes:
        """Return all of the memory, of which `content` is what is held; untouched pages are zero.

        The zeros take no room until they are written to. Raises: MemoryError.
        """
        whole = sparse_zeros(self.size_bytes) if self.pages else np.empty(self.size_bytes, np.uint8)
        for start, part in self.parts(content):
            whole[start : start + part.size] = part
        return whole

    def collect(self, whole: Bytes) -> Bytes:
        """Return of all of the memory what is held."""
        if not self.pages:
            return whole
        # The pieces of marks for its pages are as those of its content.
        pieces = self.parts(self.initial)
        return np.concatenate([whole[start : start + part.size] for start, part in pieces])

    def addressing(self, addresses: Mapping[str, int], content: Bytes) -> Bytes:
        """Return the content of one that holds addresses with those of its pointees elsewhere."""
        if not self.pointees:
            return content
        values = np.array([addresses[name] for name in self.pointees], np.int64)
        place = np.arange(content.size // 8) - self.start_bytes // 8
        return view(values[place % len(values)], np.uint8)

    def parts(self, content: Bytes) -> Iterator[tuple[int, Bytes]]:
        """Yield pieces of what is held and the byte of the memory at which each begins.

        A piece is as many pages as follow one another: a driver's copy costs far more than a page.
        """
        if not self.pages:
            yield 0, content
            return
        pages = np.asarray(self.pages)
        starts = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(pages)], strict=True):
            place = self.pages[start] * PAGE_BYTES
            yield place, content[start * PAGE_BYTES : end * PAGE_BYTES]

    def element_at(self, held: int) -> int:
        """Return the index, counted from the pointer, of the element number `held` of what is held."""
        size = self.pointee.size_bytes
        place = held * size
        if self.pages:
            place = self.pages[place // PAGE_BYTES] * PAGE_BYTES + place % PAGE_BYTES
        return (place - self.start_bytes) // size

    @property
    def is_exact(self) -> bool:
        """Whether there is one right result, to the bit."""
        return not self.upward

    def elements(self, content: Bytes) -> Array:
        """Return bytes of this buffer as its elements."""
        return view(content, loaded_dtype(self.pointee))


@dataclass(frozen=True, slots=True)
class Reference:
    """Hold the buffers of a launch by name, and its arguments in the order of the parameters.

    With `met_undefined` the kernel made undefined values, whatever became of them.
    """

    launch: Launch
    buffers: dict[str, Buffer]
    order: tuple[str, ...]
    met_undefined: bool = False

    def buffer(self, name: str) -> Buffer | None:
        """Return the memory that an argument points at; None for a scalar."""
        return self.buffers.get(self.launch.aliases.get(name, name))

    @property
    def num_stored(self) -> int:
        """How many bytes were written, and so are compared."""
        return sum(int(np.count_nonzero(b.writable)) for b in self.buffers.values())


def interpret(
    kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs, *, may_rewrite: bool = True
) -> Reference:
    """Return what `launch` must give.

    Raises:
        InterpretError: the kernel does what it may not.
        IndexOverflowError: which is one, for an address that 32 bits are too few for.
        ConflictError: two programs touch the same memory.
        RewriteError: a program changes what it has written, unless it `may_rewrite`.
    """
    watch = CastWatch(inner_casts(kernel, is_inexact) if roles.inexact else [])
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
        raise ConflictError("an index overflows")  # a compiler may assume that none does
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
        groups = [ops[at::MAX_UPWARD_RUNS] for at in range(min(len(ops), MAX_UPWARD_RUNS))]
        steady = steady_values(kernel, recording, [*ops, *watch.casts])
        known_rules = recording.recalling(RULES, [tile.Dot, arith.Exp2, arith.Cast])
        apart = [0] * NUM_RANDOM_RUNS
        if launch.is_special:  # what overflows may meet what else does
            apart += [bit for bit in _APART for _ in range(NUM_RANDOM_RUNS)]
        for seed, group in enumerate([*groups, *[ops] * len(apart)], launch.seed + 1):
            upwards, number = len(upward) < len(groups), len(random)
            rules = noisy_rules(
                known_rules, seed, group, recording, upwards=upwards, apart=apart[number]
            )
            if number < NUM_RANDOM_RUNS:
                rules = watch.measuring(rules)
            rules = recording.replaying(rules, [*group, *watch.casts], same_poison=False)
            moved = run_launch(
                kernel, launch, exact.again(), args, rules, seed, code=code, steady=steady
            )
            (upward if upwards else random).append(moved)
        for run in range(NUM_FLIPPED_RUNS) if watch.has_moved else ():
            rules = recording.replaying(watch.flipping(RULES, run), watch.casts, same_poison=True)
            flipped.append(
                run_launch(kernel, launch, exact.again(), args, rules, 0, code=code, steady=steady)
            )
    inexact = [launch.aliases.get(name, name) for name in roles.inexact]
    buffers: dict[str, Buffer] = {}
    for index, (name, pointee) in enumerate(owners_of(kernel, launch, inputs).items()):
        # What a loaded address points at is as exact as what the kernel does with it.
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
    """Return what runs with noise need not compute: what depends on no inexact op."""
    moving = forward([*inexact, *recording.unsteady()])
    changed = {value for op in moving for value in op.results}
    # Where a run may write to other buffers than the exact one, it may read other values from them.
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
    """Interpret the kernel; return the memory, with what it left."""
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
    """Return how an atomic orders what programs do before and after it."""
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
        tuple(memory.result(index, size, pages) for memory in each) for each in runs
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
