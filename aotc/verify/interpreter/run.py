"""The interpreter of tile IR and gpu IR: a kernel's meaning, computed with NumPy.

It is the oracle of every test of the compiler. A schedule pass is right if the kernel's results
are the same before and after it, and a cubin is right if it matches its tile IR. Programs run
one after the other, each op on a whole tile, from a table with one function for each op.

On gpu IR a layout says where an element sits, not its value, so conversions are the identity.
The interpreter checks layouts instead: elements of a vector access are consecutive, aligned and
under one mask value; live shared-memory buffers do not overlap; and a barrier separates two
warps' accesses to one element.

A kernel's undefined behaviour is an error if detectable (an access out of bounds or misaligned,
racing lanes, a false assumption). Otherwise it is poison: masked-off lanes without `other`,
fresh shared memory; see `numerics.Poison`. Hints (`tile.hint`) are not checked: real kernels
promise too much of masked-off lanes.

Invariant: only the kernel's stores change arrays, also when a run fails.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from aotc.ir.core import Kernel
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES
from aotc.ir.expression import evaluate, parse
from aotc.ir.params import GRID_SOURCES, LAUNCH_SOURCES, SCRATCH_SOURCE, ParamInfo, TensorSource
from aotc.ir.types import (
    DescriptorType,
    PointerType,
    ScalarType,
    TensorMapType,
    Type,
    element_of,
)
from aotc.verify.arrays import Array
from aotc.verify.interpreter.clusters import (
    CLUSTER_RULES,
    exchanges,
    meets_grid,
    run_cluster,
    run_grid,
)
from aotc.verify.interpreter.descriptors import TENSOR_RULES, describe, part_of
from aotc.verify.interpreter.indexing import INDEXING_RULES
from aotc.verify.interpreter.mbarriers import MBARRIER_RULES
from aotc.verify.interpreter.memory import Address, Memory, TensorAddress
from aotc.verify.interpreter.numerics import Poison, dtype_of
from aotc.verify.interpreter.persistent_grid import num_persistent_ctas
from aotc.verify.interpreter.program import Code, InterpretError, Program, Rules
from aotc.verify.interpreter.replay import Steady
from aotc.verify.interpreter.rules_arith import ARITH_RULES
from aotc.verify.interpreter.rules_assembly import ASSEMBLY_RULES
from aotc.verify.interpreter.rules_gpu import GPU_RULES
from aotc.verify.interpreter.rules_mapped import MAP_RULES
from aotc.verify.interpreter.rules_tile import TILE_RULES
from aotc.verify.interpreter.warp_roles import ROLE_RULES
from aotc.verify.interpreter.wgmma import PRODUCT_RULES

Argument: TypeAlias = "Array | int | float | TensorAddress"

RULES: Rules = {
    **ARITH_RULES,
    **ASSEMBLY_RULES,
    **MAP_RULES,
    **TILE_RULES,
    **GPU_RULES,
    **INDEXING_RULES,
    **TENSOR_RULES,
    **PRODUCT_RULES,
    **MBARRIER_RULES,
    **ROLE_RULES,
    **CLUSTER_RULES,
}

__all__ = ["RULES", "Argument", "InterpretError", "Interpreter", "run"]


def run(
    kernel: Kernel,
    grid: Sequence[int],
    args: Sequence[Argument],
    *,
    poison_seed: int = 0,
    check_races: bool = True,
) -> None:
    """Run `kernel` over `grid` with `args` in the order of its parameters.

    A pointer parameter takes an array, which is changed in place and may be a view of another
    one; a scalar parameter takes a number. Without `check_races`, accesses to shared memory
    count as ordered: for gpu IR before barriers are inserted.

    Raises: InterpretError.
    """
    interpreter = Interpreter(kernel, args, poison_seed=poison_seed, check_races=check_races)
    interpreter.run(grid)


class Interpreter:
    """Run one kernel on fixed arguments."""

    def __init__(
        self,
        kernel: Kernel,
        args: Sequence[Argument],
        *,
        poison_seed: int = 0,
        check_races: bool = True,
        memory: Memory | None = None,
        rules: Rules = RULES,
        code: Code | None = None,
        steady: Steady | None = None,
    ) -> None:
        """Bind `args`; a pointer may be an `Address` in the caller's `memory`.

        Interpreters of one kernel may share its `code`. `steady` values are not computed, in
        programs that run in the recorded order.

        Raises: InterpretError if an argument does not fit its parameter or its promise.
        """
        self.kernel = kernel
        self.check_races = check_races
        self.memory = Memory() if memory is None else memory
        self.rules = rules
        self._code = Code() if code is None else code
        self._steady = steady
        self.poison = Poison(poison_seed)
        # After the schedule has split descriptors, several parameters come from one argument.
        passed = [info for info in kernel.params if info.source not in LAUNCH_SOURCES]
        names = list(dict.fromkeys(info.argument for info in passed))
        if len(args) != len(names):
            raise InterpretError(
                f"{kernel.name} takes {len(names)} arguments, got {len(args)}", kernel.loc
            )
        self._given = named_args = dict(zip(names, args, strict=True))
        self._tensors: dict[str, Array] = {}
        self._bound = {
            info.name: self._bind(info, value.type, named_args[info.argument])
            for info, value in zip(kernel.params, kernel.body.args, strict=True)
            if info.source not in LAUNCH_SOURCES
        }

    def run(self, grid: Sequence[int], chosen: Sequence[int] = ()) -> None:
        """Run every program of `grid`, 1 to 3 extents, or the persistent CTAs for them.

        With `chosen` only the programs of these numbers run, in this order, axis 0 fastest,
        unless programs wait for each other.

        Raises: InterpretError.
        """
        if not 1 <= len(grid) <= 3 or any(extent < 0 for extent in grid):
            raise InterpretError(f"expected a grid of 1 to 3 extents, got {tuple(grid)}")
        programs = extents = (*grid, 1, 1)[:3]
        if self.kernel.is_persistent:
            extents = (num_persistent_ctas(programs), 1, 1)
        counts = dict(zip(GRID_SOURCES, programs, strict=True))
        launch_values: dict[str, Array] = {}
        launch_values.update(
            (source, np.array(count, np.int32)) for source, count in counts.items()
        )
        # Only ops for tensor maps use scratch memory so far, and maps are values here.
        launch_values[SCRATCH_SOURCE] = np.array(0, np.int64)
        args = [
            launch_values[info.source] if info.source in launch_values else self._bound[info.name]
            for info in self.kernel.params
        ]
        together = exchanges(self.kernel)
        with np.errstate(all="ignore"):
            if meets_grid(self.kernel):
                clusters = [self._ctas(number, extents) for number in range(math.prod(extents))]
                run_grid(clusters, self.kernel, args, self.memory)
                return
            numbers = chosen or range(math.prod(extents))
            steady = None if together else self._steady
            if steady is not None and steady.num_programs != len(numbers) * self.kernel.num_ctas:
                steady = None  # the recording is incomplete
            count = itertools.count()
            for number in numbers:
                ctas = self._ctas(number, extents)
                if together:
                    self.memory.begin_program()
                    run_cluster(ctas, self.kernel, args)
                    continue
                for program in ctas:
                    self.memory.begin_program()
                    program.known = None if steady is None else steady.of(next(count))
                    program.run_block(self.kernel.body, args)

    def _ctas(self, number: int, extents: tuple[int, ...]) -> list[Program]:
        """Return the CTAs of a program of the grid."""
        rest, x = divmod(number, extents[0])
        z, y = divmod(rest, extents[1])
        return [
            Program(
                self.rules,
                self.memory,
                self.poison,
                (x, y, z),
                extents,
                rank,
                check_races=self.check_races,
                code=self._code,
            )
            for rank in range(self.kernel.num_ctas)
        ]

    def _bind(self, info: ParamInfo, type_: Type, arg: Argument) -> Array:
        if isinstance(type_, DescriptorType | TensorMapType):
            if info.tensor is not None:
                return self._described(info.tensor, type_.element, arg)
            self._check_tensor(info.name, type_, arg)
            return self._tensor(info.name, arg)
        element = element_of(type_)
        if info.source:
            value: int | float = part_of(self._tensor(info.argument, arg), info.source)
        elif isinstance(element, PointerType):
            value = self._address(info.name, element.pointee, arg)
        elif isinstance(arg, np.ndarray | TensorAddress):
            actual = f"{arg.dtype} array" if isinstance(arg, np.ndarray) else "a tensor"
            raise self._misfit(info.name, f"a number for {element}", actual)
        else:
            value = arg
        try:
            bound = np.array(value, dtype_of(element))
        except OverflowError as error:
            raise self._misfit(info.name, f"a value of {element}", str(value)) from error
        integral = isinstance(element, PointerType) or element.is_int
        if integral and bound.item() != value:
            raise self._misfit(info.name, f"a value of {element}", str(value))
        if integral and value % info.divisibility:
            raise self._misfit(info.name, f"a multiple of {info.divisibility}", f"{value:#x}")
        return bound

    def _tensor(self, name: str, arg: Argument) -> Array:
        """Return the descriptor of an argument: an array, or the address of a tensor."""
        if name not in self._tensors:
            if not isinstance(arg, np.ndarray):
                if not isinstance(arg, TensorAddress):
                    raise self._misfit(name, "an array for a descriptor", repr(arg))
                self._tensors[name] = describe(arg.address, arg.shape, arg.strides)
            else:
                if arg.ndim == 0 or (arg.shape[-1] > 1 and arg.strides[-1] != arg.itemsize):
                    raise self._misfit(name, "an array whose last axis is dense", f"{arg.strides}")
                address = self._place(name, arg)
                for multiple in (address, *arg.strides[:-1]):
                    if multiple % TENSOR_ALIGNMENT_BYTES:
                        expected = f"address, strides in multiples of {TENSOR_ALIGNMENT_BYTES}"
                        raise self._misfit(name, expected, str(multiple % TENSOR_ALIGNMENT_BYTES))
                strides = [stride // arg.itemsize for stride in arg.strides[:-1]]
                self._tensors[name] = describe(address, arg.shape, [*strides, 1])
        return self._tensors[name]

    def _described(self, tensor: TensorSource, element: ScalarType, arg: Argument) -> Array:
        """Return the launcher's descriptor of a pointer and scalars."""
        scalars = {name: value for name, value in self._given.items() if isinstance(value, int)}
        shape, strides = (
            [evaluate(parse(text), scalars) for text in texts]
            for texts in (tensor.shape, tensor.strides)
        )
        return describe(self._address(tensor.address, element, arg), shape, [*strides, 1])

    def _check_tensor(self, name: str, kind: DescriptorType | TensorMapType, arg: Argument) -> None:
        block = kind.block if isinstance(kind, DescriptorType) else kind.box
        if isinstance(arg, np.ndarray):
            expected = np.dtype(np.uint8) if kind.element.is_bool else dtype_of(kind.element)
            if arg.ndim != len(block) or arg.dtype not in (expected, dtype_of(kind.element)):
                requirement = f"an array of {expected} with {len(block)} axes"
                raise self._misfit(name, requirement, f"{arg.dtype} with {arg.ndim}")

    def _address(self, name: str, pointee: ScalarType, arg: Argument) -> int:
        if isinstance(arg, Address):
            return int(arg)
        accepted = [dtype_of(pointee)]
        if pointee.is_bool:
            accepted += [np.dtype(np.uint8), np.dtype(np.int8)]
        if not isinstance(arg, np.ndarray) or arg.dtype not in accepted:
            actual = f"{arg.dtype} array" if isinstance(arg, np.ndarray) else repr(arg)
            raise self._misfit(name, f"an array of {accepted[0]} for *{pointee}", actual)
        return self._place(name, arg)

    def _place(self, name: str, arg: Array) -> int:
        try:
            return self.memory.add(name, arg)
        except ValueError as error:
            raise self._misfit(name, "contiguous memory", "an array without") from error

    def _misfit(self, name: str, expected: str, actual: str) -> InterpretError:
        message = f"argument {name} of {self.kernel.name}: expected {expected}, got {actual}"
        return InterpretError(message, self.kernel.loc)
