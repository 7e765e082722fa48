"""One running program of a grid: its values, and the execution of blocks of ops.

Rules are looked up in a table from op class to function, `rule(program, op, *operands)`:
operands are arrays (None where absent), and the result is one array, several, or None. Scalars
are arrays without axes. Combine blocks of reductions run on whole arrays at once, so an
elementwise rule may not assume the shape of its operands, only their element types.

Invariant: every value in flight has the dtype of its IR type, and outside combine blocks its
shape.
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
    """Report a kernel's illegal action, at its op.

    It `is_out_of_bounds` for an access outside of a buffer of declared size.
    """

    is_out_of_bounds = False


_Result: TypeAlias = "tuple[Value, np.dtype[Any]]"
Line: TypeAlias = "tuple[Op, type[Op], tuple[Value | None, ...], tuple[_Result, ...]]"
"""An op, its class, its operands and its results."""

KnownValues: TypeAlias = (
    "Callable[[Block, list[Line]], tuple[Mapping[Value | None, Any], list[Line]] | None]"
)
"""A lookup, before a block runs, of reusable values in it and the lines left to run."""


class Code:
    """A cache of blocks' operands and results, shared by all runs of a kernel.

    Invariant: a block does not change after its first run.
    """

    def __init__(self) -> None:
        self._blocks: dict[Block, tuple[list[Line], tuple[Value | None, ...]]] = {}

    def of(self, block: Block) -> tuple[list[Line], tuple[Value | None, ...]]:
        """Return the ops of a block, with operands and results, and its terminator's operands."""
        entry = self._blocks.get(block)
        if entry is None:
            last = block.terminator
            ops = (op for op in block if op is not last)
            lines = [(op, type(op), tuple(op.slots), _results_of(op)) for op in ops]
            entry = self._blocks[block] = lines, tuple(last.slots)
        return entry


def _results_of(op: Op) -> tuple[_Result, ...]:
    """Return the results of an op, each with its dtype."""
    return tuple((value, dtype_of(element_of(value.type))) for value in op.results)


class Program:
    """The state of one program for the rules of ops.

    `place` and `grid` are its indices and the extents, both of length 3; `rank` is the CTA's
    index in the program's cluster.
    """

    def __init__(
        self,
        rules: Rules,
        memory: Memory,
        poison: Poison,
        indices: tuple[int, ...],
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
        """The state of each mbarrier by its address, for the rules of tensor copies."""
        self.maps: dict[int, Array] = {}
        """The tensor maps made by warps, by the address of the slot."""
        self.stores: list[Transfer] = []
        """Pending tensor copies from shared memory, oldest first."""
        self.products: list[Any] = []
        """Products of warpgroups in flight, oldest first; see `wgmma.py`."""
        self.finished: list[Any] = []
        """Completed products with results no wait has returned yet."""
        self.has_roles = False
        """Whether the program has a producer, outside of barriers."""
        self.is_producer = False
        """Whether this is the producer."""
        self.group = 0
        """The number of this group of consumers."""
        self.peers: list[Program] = []
        """All CTAs of the cluster in order of rank, if they exchange values."""
        self.posted: list[Array] = []
        """This CTA's values for the cluster's current exchange."""
        self.told: dict[int, int] = {}
        """The last mark of reported shared-memory accesses of other CTAs, by rank."""
        self.place = indices
        self.grid = grid
        self.rank = rank
        self.known: KnownValues | None = None
        """The lookup of reusable values from an earlier run."""
        self._rules = rules
        self._code = Code() if code is None else code
        self._values: dict[Value | None, Any] = {None: None}

    def beside(self, **changes: bool | int) -> Program:
        """Return a copy of the program for warps in parallel from here on.

        The copy has its own values, and its own copies and products in flight.
        """
        program = copy(self)
        program.__dict__.update(changes, _values=dict(self._values))
        program.stores, program.products, program.finished = [], [], []
        return program

    def run_block(self, block: Block, args: Sequence[Array]) -> list[Array]:
        """Run a block with `args`; return the operands of its terminator.

        Raises: InterpretError at an op's illegal action.
        """
        self.bind(block.args, args)
        values, rules = self._values, self._rules
        lines, yielded = self._code.of(block)
        reusable = None if self.known is None else self.known(block, lines)
        if reusable is not None:
            values.update(reusable[0])
            lines = reusable[1]
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
                value, dtype = results[0]
                if outs.dtype is dtype:
                    values[value] = outs
                    continue
            self._bind_results(op, results, outs)
        return [values[slot] for slot in yielded if slot is not None]

    def bind(self, formals: Sequence[Value], actuals: Sequence[Array]) -> None:
        """Bind values to arrays."""
        self._values.update(zip(formals, actuals, strict=True))

    def operands(self, op: Op) -> list[Array | None]:
        """Return the operands of an op, None where absent."""
        return [self._values[slot] for slot in op.slots]

    def run_op(self, op: Op) -> None:
        """Run an op inside a block, and bind its results. Raises: as `run_block`."""
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
        for (value, dtype), out in zip(results, outs, strict=True):
            if out.dtype is not dtype and out.dtype != dtype and not _is_place(value):
                raise IRError(f"{op.opcode} made {out.dtype} for {value.type}", op.loc)
            self._values[value] = out

    def error(self, op: Op, message: str) -> InterpretError:
        """Return the error for an illegal action of `op`."""
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
    """Return whether a value is an address or descriptor, held as other numbers."""
    return isinstance(value.type, SharedType | DescriptorType | TensorMapType)


def scalar(value: Array) -> Any:
    """Return the Python number in an array without axes."""
    return value.item()
