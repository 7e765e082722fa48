"""One running program of a grid: its values, and how a block of ops is run.

Rules are looked up in a table from op class to function, `rule(program, op, *operands)`: the
operands are arrays (None where absent), what comes back is one array, several, or None. Scalars
are arrays without axes. Combine blocks of reductions run on whole arrays at once, so an
elementwise rule may not assume the shape of its operands, only their element types.

Invariant: every value in flight has the dtype of its IR type, and outside combine blocks its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np

from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import DiagnosticError, IRError
from aotc.ir.types import DescriptorType, SharedType, TensorMapType, element_of
from aotc.verify.arrays import Array
from aotc.verify.interpreter.memory import AccessError, Memory, OutOfBoundsError
from aotc.verify.interpreter.numerics import Poison, dtype_of
from aotc.verify.interpreter.shared_memory import SharedMemory, Transfer

Rule: TypeAlias = "Callable[..., Array | Sequence[Array] | None]"
Rules: TypeAlias = Mapping[type[Op], Rule]


class InterpretError(DiagnosticError):
    """Report what a kernel may not do, at the op that does it.

    It `is_out_of_bounds` where a kernel leaves a buffer whose size is stated.
    """

    is_out_of_bounds = False


_Result: TypeAlias = "tuple[Value, np.dtype[Any]]"
Line: TypeAlias = "tuple[Op, type[Op], tuple[Value | None, ...], tuple[_Result, ...]]"
"""An op, its class, its operands and its results."""

KnownValues: TypeAlias = (
    "Callable[[Block, list[Line]], tuple[Mapping[Value | None, Any], list[Line]] | None]"
)
"""Values in a block that is about to run which are known, and those of its lines that are to run."""


class Code:
    """Keep what the ops of blocks read and bind, looked up once for all runs of a kernel.

    Invariant: a block that was run does not change.
    """

    def __init__(self) -> None:
        self._blocks: dict[Block, tuple[list[Line], tuple[Value | None, ...]]] = {}

    def of(self, block: Block) -> tuple[list[Line], tuple[Value | None, ...]]:
        """Return the ops of a block, with operands and results, and what its terminator yields."""
        found = self._blocks.get(block)
        if found is None:
            last = block.terminator
            ops = (op for op in block if op is not last)
            lines = [(op, type(op), tuple(op.slots), _results_of(op)) for op in ops]
            found = self._blocks[block] = lines, tuple(last.slots)
        return found


def _results_of(op: Op) -> tuple[_Result, ...]:
    """Return the results of an op, and the dtype that each is to have."""
    return tuple((value, dtype_of(element_of(value.type))) for value in op.results)


class Program:
    """Hold the state of one program: what the rules of ops read and write.

    `place` and `grid` are its indices and the extents, both of length 3; `rank` is the block's index
    in the cluster that runs the program.
    """

    def __init__(
        self,
        rules: Rules,
        memory: Memory,
        poison: Poison,
        place: tuple[int, ...],
        grid: tuple[int, ...],
        rank: int = 0,
        *,
        check_races: bool = True,
        code: Code | None = None,
    ) -> None:
        self.memory = memory
        self.shared = SharedMemory(poison, check_races=check_races)
        self.poison = poison
        self.mbarriers: dict[int, object] = {}
        """The state of each mbarrier by its address, which the rules of tensor copies keep."""
        self.maps: dict[int, Array] = {}
        """The tensor maps that warps have made, by the address of the slot."""
        self.stores: list[Transfer] = []
        """Tensor copies from shared memory that nobody has waited for, oldest first."""
        self.products: list[Any] = []
        """Products of warpgroups in flight, oldest first, as `verify.products` keeps them."""
        self.finished: list[Any] = []
        """Products that are done and whose results no wait has handed back."""
        self.has_roles = False
        """Whether a producer runs beside what takes part in barriers."""
        self.is_producer = False
        """Whether this is that producer."""
        self.group = 0
        """The number of the group of consumers that this is."""
        self.peers: list[Program] = []
        """All CTAs of the cluster in order of rank, if they exchange values."""
        self.posted: list[Array] = []
        """What this CTA contributes to the exchange that the cluster is at."""
        self.told: dict[int, int] = {}
        """Up to which mark other CTAs, by rank, have told that they have accessed their shared memory."""
        self.place = place
        self.grid = grid
        self.rank = rank
        self.known: KnownValues | None = None
        """What need not be computed, where this program has run before."""
        self._rules = rules
        self._code = Code() if code is None else code
        self._values: dict[Value | None, Any] = {None: None}

    def beside(self, **changes: bool | int) -> Program:
        """Return what runs beside other warps of the program, from what is known up to here on.

        It has values, and copies and products in flight, of its own.
        """
        made = copy(self)
        made.__dict__.update(changes, _values=dict(self._values))
        made.stores, made.products, made.finished = [], [], []
        return made

    def run_block(self, block: Block, args: Sequence[Array]) -> list[Array]:
        """Run a block with `args`; return the operands of its terminator.

        Raises: InterpretError at the op that does what it may not.
        """
        self.bind(block.args, args)
        values, rules = self._values, self._rules
        lines, yielded = self._code.of(block)
        known = None if self.known is None else self.known(block, lines)
        if known is not None:
            values.update(known[0])
            lines = known[1]
        for op, kind, slots, results in lines:
            try:
                outs = rules[kind](self, op, *[values[slot] for slot in slots])
            except AccessError as error:
                raise self._access_error(op, error) from error
            except KeyError:
                if kind in rules:
                    raise
                raise IRError(f"the interpreter has no rule for {op.opcode}", op.loc) from None
            if len(results) == 1 and type(outs) is np.ndarray:
                value, wanted = results[0]
                if outs.dtype is wanted:
                    values[value] = outs
                    continue
            self._bind_results(op, results, outs)
        return [values[slot] for slot in yielded if slot is not None]

    def bind(self, formals: Sequence[Value], actuals: Sequence[Array]) -> None:
        """Say what values are."""
        self._values.update(zip(formals, actuals, strict=True))

    def operands(self, op: Op) -> list[Array | None]:
        """Return the operands of an op, None where there is none."""
        return [self._values[slot] for slot in op.slots]

    def run_op(self, op: Op) -> None:
        """Run an op that ends no block, and bind its results. Raises: as `run_block`."""
        rule = self._rules.get(type(op))
        if rule is None:
            raise IRError(f"the interpreter has no rule for {op.opcode}", op.loc)
        try:
            outs = rule(self, op, *self.operands(op))
        except AccessError as error:
            raise self._access_error(op, error) from error
        self._bind_results(op, _results_of(op), outs)

    def _bind_results(self, op: Op, results: Sequence[_Result], outs: Any) -> None:
        if outs is None:
            outs = ()
        elif hasattr(outs, "dtype"):
            outs = (np.asarray(outs),)
        for (value, wanted), out in zip(results, outs, strict=True):
            if out.dtype is not wanted and out.dtype != wanted and not _is_place(value):
                raise IRError(f"{op.opcode} made {out.dtype} for {value.type}", op.loc)
            self._values[value] = out

    def error(self, op: Op, message: str) -> InterpretError:
        """Return the error that `op` did something it may not."""
        error = InterpretError(f"{op.opcode} {message}", op.loc)
        error.add_context(f"in program {self.place} of grid {self.grid}")
        return error

    def _access_error(self, op: Op, cause: AccessError) -> InterpretError:
        error = self.error(op, str(cause))
        error.is_out_of_bounds = isinstance(cause, OutOfBoundsError)
        if error.is_out_of_bounds:
            error.remedy = "mask the access, or correct the size in [kernel.verify]"
        return error


def _is_place(value: Value) -> bool:
    """Return whether a value says where something is: it is held as numbers of another type."""
    return isinstance(value.type, SharedType | DescriptorType | TensorMapType)


def scalar(value: Array) -> Any:
    """Return the Python number in an array without axes."""
    return value.item()
