"""What a launch must give: the kernel's tile IR interpreted, exactly and with noise.

The first interpretation defines the buffers (see `lazy_memory.py`) and the expected results, the noisy
ones how far from them hardware may be (see `noise.py`).

Invariant: a `Reference` depends on the tile IR, the launch and the ranges, and on nothing else.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, tile
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES, DescriptorReduce
from aotc.ir.dialects.grid import GridBarrier
from aotc.ir.types import DescriptorType, PointerType, ScalarType
from aotc.verify.arrays import Array, copied, reshape, view
from aotc.verify.checks import input_data
from aotc.verify.checks.dataflow import Roles, backward, forward
from aotc.verify.checks.launches import Launch, Scalar
from aotc.verify.checks.lazy_memory import Contents, ElasticMemory, Listed, loaded_dtype
from aotc.verify.checks.noise import inexact_ops, is_inexact, noisy_rules
from aotc.verify.checks.rounding import NUM_FLIPPED_RUNS, CastWatch, inner_casts
from aotc.verify.interpreter.memory import TensorAddress
from aotc.verify.interpreter.numerics import ALL_ZERO
from aotc.verify.interpreter.program import Code, InterpretError, Program, Rule, Rules
from aotc.verify.interpreter.replay import Recording, Steady
from aotc.verify.interpreter.run import RULES, Argument, Interpreter
from aotc.verify.pages import PAGE_BYTES

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # which Python names from 3.13 on
MAX_UPWARD_RUNS = 4
NUM_RANDOM_RUNS = 2
_APART = (1, 2)  # see `noisy_rules`: pairs of up to four ops of a type take different infinities
POISON_SEEDS = (ALL_ZERO, 1, 2, 3)  # a bit that is undefined is what it was in half of all runs
DEFAULT_MAX_BUFFER_BYTES = 1 << 28
# Numbers that a buffer lists, each once: a longer list would not fit in memory.
_MAX_LISTED = 1 << 24

Bytes: TypeAlias = npt.NDArray[np.uint8]
Marks: TypeAlias = npt.NDArray[np.bool_]
_Runs: TypeAlias = "tuple[list[ElasticMemory], list[ElasticMemory], list[ElasticMemory]]"


@dataclass(frozen=True, slots=True)
class Range:
    """Bound what a buffer holds: `low` up to but without `high`, functions of the scalars.

    Integers are multiples of `multiple_of`. Where it `is_distinct` each of them comes once before any comes again. Where it `is_cumulative`
    the buffer holds 0 and then running sums of such numbers, as starts of sequences are.
    """

    low: Callable[[Mapping[str, Scalar]], Scalar]
    high: Callable[[Mapping[str, Scalar]], Scalar]
    is_distinct: bool = False
    is_cumulative: bool = False
    multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class Pointees:
    """Say what the addresses in a buffer are of: `count` buffers of `element`, each its own."""

    element: ScalarType
    count: Callable[[Mapping[str, Scalar]], Scalar]

    def names(self, pointer: str, launch: Launch) -> list[str]:
        """Return the names of the buffers at a launch, such as "a_ptrs[0]"."""
        return [f"{pointer}[{k}]" for k in range(max(1, int(self.count(launch.scalars))))]


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
    `pointees`, the buffers they are of, over and over.
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
        whole = _zeros(self.size_bytes) if self.pages else np.empty(self.size_bytes, np.uint8)
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


def _zeros(size_bytes: int) -> Bytes:
    """Return zeros that take memory page by page, as they are written to. Raises: MemoryError."""
    # Nothing is reserved: rows may lie further apart than the machine has memory.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        room = mmap.mmap(-1, size_bytes, flags=flags)
    except OSError as error:
        raise MemoryError(str(error)) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(room, np.uint8)


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


@dataclass(frozen=True, slots=True)
class Inputs:
    """Say how buffers are filled: `ranges` and `pointees` by name, how large one may become."""

    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    pointees: Mapping[str, Pointees] = field(default_factory=dict[str, Pointees])
    max_buffer_bytes: int = DEFAULT_MAX_BUFFER_BYTES


def interpret(
    kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs, *, may_rewrite: bool = True
) -> Reference:
    """Return what `launch` must give.

    Raises:
        InterpretError: the kernel does what it may not.
        ConflictError: two programs touch the same memory.
        RewriteError: a program changes what it has written, unless it `may_rewrite`.
    """
    watch = CastWatch(inner_casts(kernel, is_inexact) if roles.inexact else [])
    recording = Recording(kinds=dict.fromkeys(type(op) for op in kernel.walk()))
    rules = watch.recording(RULES)
    if roles.inexact:
        rules = recording.recording(rules)
    overflows: list[Op] = []
    if launch.is_long:
        rules = _watching_indices(rules, kernel, overflows)
    exact, args = _prepared(kernel, roles, launch, inputs, is_traced=True)
    code = Code()
    _run(kernel, launch, exact, args, rules, 0, code=code)
    if exact.conflict:
        raise ConflictError(exact.conflict)
    if overflows:  # which a compiler may take for granted that it does not
        raise ConflictError("an index overflows")
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
            moved = _run(kernel, launch, exact.again(), args, rules, seed, code=code, steady=steady)
            (upward if upwards else random).append(moved)
        for run in range(NUM_FLIPPED_RUNS) if watch.has_moved else ():
            rules = recording.replaying(watch.flipping(RULES, run), watch.casts, same_poison=True)
            flipped.append(
                _run(kernel, launch, exact.again(), args, rules, 0, code=code, steady=steady)
            )
    inexact = [launch.aliases.get(name, name) for name in roles.inexact]
    buffers: dict[str, Buffer] = {}
    for index, (name, pointee) in enumerate(_owners_of(kernel, launch, inputs).items()):
        # What a loaded address points at is as exact as what the kernel does with it.
        is_exact = name.partition("[")[0] not in inexact
        runs: _Runs = ([], [], []) if is_exact else (upward, random, flipped)
        buffers[name] = _buffer(name, pointee, index, exact, runs)
    for name, pointees in inputs.pointees.items():
        buffers[name] = replace(buffers[name], pointees=tuple(pointees.names(name, launch)))
    for name, (shape, strides) in _tensors(kernel, launch).items():
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


def depends_on_order(kernel: Kernel, roles: Roles, reference: Reference, inputs: Inputs) -> str:
    """Return the exact buffer whose results change with the order of programs, or "".

    They may where a kernel uses what its atomics return.
    """
    used = (tile.AtomicRmw, tile.AtomicCas)
    if not any(
        isinstance(op, used) and any(out.users for out in op.results) for op in kernel.walk()
    ):
        return ""
    exact = [name for name, buffer in reference.buffers.items() if buffer.is_exact]
    return _changed(kernel, roles, reference, inputs, exact, backwards=True)


def depends_on_undefined(kernel: Kernel, roles: Roles, reference: Reference, inputs: Inputs) -> str:
    """Return the buffer whose results change with what undefined values happen to be, or ""."""
    if not reference.met_undefined:
        return ""
    for seed in POISON_SEEDS:
        found = _changed(kernel, roles, reference, inputs, [*reference.buffers], poison_seed=seed)
        if found:
            return found
    return ""


def _changed(
    kernel: Kernel,
    roles: Roles,
    reference: Reference,
    inputs: Inputs,
    names: Sequence[str],
    *,
    poison_seed: int = 0,
    backwards: bool = False,
) -> str:
    """Return the first of the buffers whose results are others when interpreted so, or ""."""
    launch = reference.launch
    memory, args = _prepared(kernel, roles, launch, inputs, is_traced=True)
    try:
        _run(kernel, launch, memory, args, RULES, poison_seed, backwards=backwards)
    except InterpretError:
        return ""
    for index, name in enumerate(_owners_of(kernel, launch, inputs)):
        if name not in names:
            continue
        known = reference.buffers[name]
        pages = sorted({*known.pages, *memory.pages(index)})
        size = max(known.initial.size, memory.size_bytes(index))
        expected, found = memory.initial(index, size, pages), memory.result(index, size, pages)
        # What the first interpretation did not touch is as it was.
        if pages:
            held = np.isin(pages, known.pages)
            reshape(expected, -1, PAGE_BYTES)[held] = reshape(known.expected, -1, PAGE_BYTES)
        else:
            expected[: known.expected.size] = known.expected
        if expected.tobytes() != found.tobytes():
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


def _owners_of(kernel: Kernel, launch: Launch, inputs: Inputs) -> dict[str, ScalarType]:
    """Return what has memory of its own at a launch: parameters, then what addresses are of."""
    found = pointers_of(kernel)
    owners = {name: pointee for name, pointee in found.items() if name not in launch.aliases}
    for name, pointees in inputs.pointees.items():
        owners.update(dict.fromkeys(pointees.names(name, launch), pointees.element))
    return owners


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


def _prepared(
    kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs, *, is_traced: bool = False
) -> tuple[ElasticMemory, list[Argument]]:
    """Return memory as it is before a launch, and the kernel's arguments."""
    memory = ElasticMemory(inputs.max_buffer_bytes, is_traced=is_traced, is_sparse=launch.is_sparse)
    tensors = _tensors(kernel, launch)
    args: list[Argument] = []
    owners = list(_owners_of(kernel, launch, inputs))
    shared: list[tuple[int, str]] = []
    for at, (info, arg) in enumerate(zip(kernel.params, kernel.body.args, strict=True)):
        kind = arg.type
        if not isinstance(kind, PointerType | DescriptorType):
            args.append(launch.scalars[info.name])
            continue
        if info.name in launch.aliases:
            shared.append((at, launch.aliases[info.name]))
            args.append(0)
            continue
        pointee = kind.pointee if isinstance(kind, PointerType) else kind.element
        is_free = launch.misaligned and info.divisibility == 1 and isinstance(kind, PointerType)
        misaligned = pointee.size_bytes if is_free and info.name not in inputs.pointees else 0
        if info.name in inputs.pointees:
            names = inputs.pointees[info.name].names(info.name, launch)
            places = [memory.address_of(owners.index(name)) for name in names]
            filled = Listed(np.array(places, np.int64))
        else:
            filled = _contents(info.name, pointee, roles, launch, inputs, launch.seed + at)
        address = memory.add_buffer(info.name, pointee, filled, misaligned)
        tensor = tensors.get(info.name)
        args.append(address if tensor is None else TensorAddress(address, *tensor))
    for at, name in enumerate(name for name in owners if "[" in name):
        element = inputs.pointees[name.partition("[")[0]].element
        memory.add_buffer(
            name, element, _contents(name, element, roles, launch, inputs, launch.seed + ~at)
        )
    for at, owner in shared:
        args[at] = memory.share_buffer(owners.index(owner))
    return memory, args


def _run(
    kernel: Kernel,
    launch: Launch,
    memory: ElasticMemory,
    args: Sequence[Argument],
    rules: Rules,
    poison_seed: int,
    *,
    backwards: bool = False,
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
    interpreter.run(launch.grid, launch.programs, backwards=backwards)
    memory.met_undefined = interpreter.poison.was_asked
    return memory


def _watching_indices(rules: Rules, kernel: Kernel, overflows: list[Op]) -> Rules:
    """Return `rules` that add to `overflows` the signed ops of addresses whose results wrap."""
    offsets = [op.offset for op in kernel.walk() if isinstance(op, arith.AddPtr)]
    watched = {value.op for value in backward(offsets, through_loads=False)}

    def watching(base: Rule, exactly: Callable[[Array, Array], Array]) -> Rule:
        def rule(program: Program, op: Op, a: Array, b: Array) -> Any:
            out = np.asarray(base(program, op, a, b))
            may_overflow = op in watched and out.dtype.kind == "i" and out.itemsize < 8
            if may_overflow and (exactly(a.astype(np.int64), b.astype(np.int64)) != out).any():
                overflows.append(op)
            return out

        return rule

    exact: dict[type[Op], Callable[[Array, Array], Array]] = {
        arith.Add: np.add,
        arith.Sub: np.subtract,
        arith.Mul: np.multiply,
        arith.Shl: np.left_shift,
    }
    return {**rules, **{cls: watching(rules[cls], exactly) for cls, exactly in exact.items()}}


def _contents(
    name: str, pointee: ScalarType, roles: Roles, launch: Launch, inputs: Inputs, seed: int
) -> Contents | Listed:
    given = inputs.ranges.get(name)
    if given is not None:
        low, high = given.low(launch.scalars), given.high(launch.scalars)
        if given.is_distinct:
            if high - low > _MAX_LISTED:
                raise InterpretError(f"{name} would list {int(high - low)} numbers")
            return input_data.shuffled(pointee, int(low), int(high), seed)
        if given.is_cumulative:
            return input_data.cumulative(pointee, int(low), int(high), seed)
        return input_data.between(pointee, low, high, seed, given.multiple_of)
    if name in roles.indices:
        return input_data.between(pointee, 0, launch.index_high, seed)
    if pointee.is_float:
        return (input_data.special if launch.is_special else input_data.floats)(pointee, seed)
    return input_data.integers(pointee, seed)


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
        size = max(start, exact.end_bytes(index))
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
    )
