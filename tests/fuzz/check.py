"""Check a program at every stage: source, tile IR, after each pass, emulated PTX.

The interpreter runs the tile IR, the frontend's translation of it written as source, and the IR
after each pass. Finally LLVM turns it into PTX; the emulator runs this with its warps in step and
at random.

Invariant: a check depends on the program alone, and leaves it unchanged.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np

from aotc.backend import assemble, emit_ptx, find_hazards, lower_kernel
from aotc.frontend.translate import translate
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects.descriptor import (
    TENSOR_ALIGNMENT_BYTES,
    DescriptorLoad,
    DescriptorOf,
    DescriptorReduce,
    DescriptorStore,
    DescriptorWrite,
)
from aotc.ir.passes import Observer
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import DescriptorType
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.emulator.run import emulate
from aotc.verify.interpreter.program import Program as Interpreted
from aotc.verify.interpreter.program import Rule, Rules
from aotc.verify.interpreter.run import RULES, Interpreter, InterpretError, run
from tests.fuzz import launch
from tests.fuzz.arguments import Array, Buffer, Scalar, Tensor
from tests.fuzz.programs import Program
from tests.fuzz.source import Unwritable, signature, write_source

# From the first of these to the second, shared memory is used and its barriers are still to come.
_BARRIERS_ARE_MISSING = ("assign_layouts", "insert_barriers")
_MAX_STEPS = 2_000_000


BlockAccess: TypeAlias = DescriptorLoad | DescriptorStore | DescriptorReduce


class Failure(Exception):  # noqa: N818 - what a fuzzer finds
    """Report the stage at which a program went wrong, and the difference."""

    def __init__(self, stage: str, kind: str, detail: str) -> None:
        super().__init__(f"{stage}: {kind}: {detail}")
        self.stage = stage
        self.kind = kind
        self.detail = detail


class Refused(Exception):  # noqa: N818 - no fault of anyone's
    """Report that a program exceeds a target's resources."""


def check(
    program: Program,
    *,
    seeds: Sequence[int] = (0, 1),
    each_pass: bool = True,
    assembles: bool = False,
) -> None:
    """Run a program at every stage and compare.

    `seeds` are the emulator's. Without `each_pass`, only the schedule's final IR is interpreted, and
    every pass only if that is wrong; the frontend is left out. `assembles` also has ptxas accept
    the PTX.
    Raises: Failure, Refused.
    """
    if not each_pass:
        try:
            _check(program, seeds, each_pass=False, assembles=assembles)
        except Failure:
            _check(program, seeds, each_pass=True, assembles=assembles)
            raise
        return
    _check(program, seeds, each_pass=True, assembles=assembles)


def _check(program: Program, seeds: Sequence[int], *, each_pass: bool, assembles: bool) -> None:
    checker = _Checker(program, each_pass=each_pass)
    if each_pass:
        checker.check_source()
    kernel = checker.scheduled()
    target = TARGETS[program.target]
    ptx = checker.attempt("backend", lambda: emit_ptx(lower_kernel(kernel, target).llvm_ir, target))
    for hazard in find_hazards(ptx):
        raise Failure("backend", "wgmma", str(hazard))
    if assembles:
        crash = checker.attempt("ptxas", lambda: assemble(ptx, target)).crash
        if crash:
            raise Failure("ptxas", "crash", crash)
    for seed in seeds:
        inputs = program.make()
        passed = launch.parameters(kernel, inputs, program.grid)
        checker.attempt(
            f"emulator, seed {seed}",
            lambda passed=passed, seed=seed: emulate(
                *(ptx, launch.ctas(kernel, program.grid), passed),
                shared_bytes=kernel.shared_bytes,
                seed=seed,
                max_steps=_MAX_STEPS,
            ),
        )
        checker.compare(f"emulator, seed {seed}", inputs)


def is_defined(program: Program) -> bool:
    """Return whether a program is defined, for example without copies refused by hardware.

    Undefined values (masked-off lanes) must leave its results unchanged.
    """
    kernel, results = program.kernel(), (program.make(), program.make())
    try:
        for poison, buffers in enumerate(results):
            arguments = list(buffers.values())
            Interpreter(kernel, arguments, poison_seed=poison, rules=_STRICT).run(program.grid)
    except InterpretError:
        return False
    first, second = results
    return not any(
        not isinstance(argument, Scalar)
        and differences(
            argument, *(np.asarray(inputs[argument.name]) for inputs in (first, second))
        ).size
        for argument in program.arguments
    )


def keeps_promises(program: Program) -> bool:
    """Return whether a program may make tensor maps of all its described tensors."""
    arguments = list(program.make().values())
    try:
        Interpreter(program.kernel(), arguments, rules=_WITH_MAPS).run(program.grid)
    except InterpretError:
        return False
    return True


def _copied_by_hardware(rule: Rule) -> Rule:
    """Return a rule for block accesses that checks the coordinate limits of tensor copies."""

    def checked(program: Interpreted, op: BlockAccess, *operands: Array):
        kind = op.descriptor.type
        assert isinstance(kind, DescriptorType)
        coords = [int(coord) for coord in operands[-len(op.coords) :]]
        if coords[-1] * kind.element.size_bytes % TENSOR_ALIGNMENT_BYTES:
            raise program.error(op, f"begins at column {coords[-1]}, no multiple of 16 bytes")
        if not isinstance(op, DescriptorLoad) and min(coords) < 0:
            raise program.error(op, f"writes from {coords} on")
        return rule(program, op, *operands)

    return checked


def _made_as_promised(program: Interpreted, op: DescriptorOf, *operands: Array) -> Array:
    """Make a descriptor whose map the kernel may make: nothing checks it at launch."""
    pointer, *sizes = (int(operand) for operand in operands)
    rank, kind = len(op.shape), op.out.type
    assert isinstance(kind, DescriptorType)
    is_stored = any(isinstance(user, DescriptorWrite) for user in op.out.users)
    elems = (*sizes[rank:], *([sizes[rank - 1]] if is_stored else []))
    addresses = (pointer, *(size * kind.element.size_bytes for size in elems))
    if any(address % TENSOR_ALIGNMENT_BYTES for address in addresses):
        raise program.error(op, "is of rows that are no multiples of 16 bytes")
    descriptor = RULES[DescriptorOf](program, op, *operands)
    assert isinstance(descriptor, np.ndarray)
    return descriptor


_WITH_MAPS: Rules = {**RULES, DescriptorOf: _made_as_promised}
_STRICT: Rules = {
    **RULES,
    **{
        kind: _copied_by_hardware(RULES[kind])
        for kind in (DescriptorLoad, DescriptorStore, DescriptorReduce)
    },
}


class _Checker:
    def __init__(self, program: Program, *, each_pass: bool) -> None:
        self._program = program
        self._each_pass = each_pass
        self._has_barriers = True
        self._expected = self._interpreted("tile IR", program.kernel())

    def check_source(self) -> None:
        """Check the frontend's translation of the program written as source."""
        program, kernel = self._program, self._program.kernel()
        try:
            text = write_source(kernel)
        except Unwritable:
            return
        types, target = signature(kernel), program.target
        with TemporaryDirectory() as folder:
            path = Path(folder, "source.py")
            path.write_text(text)
            try:
                translated = translate(str(path), kernel.name, types, {}, target=target).kernel
            except Exception as error:  # anything it raises is a finding
                raise Failure("frontend", type(error).__name__, f"{error}\n{text}") from error
        self.compare("frontend", self._interpreted("frontend", translated))

    def scheduled(self) -> Kernel:
        """Return the gpu IR, checked after every pass."""
        kernel = self._scheduled(map_pointers=self._program.map_pointers)
        if not self._is_allowed(kernel):
            kernel = self._scheduled(map_pointers=False)
        printed = print_kernel(kernel)
        if print_kernel(self.attempt("parser", lambda: parse_kernel(printed))) != printed:
            raise Failure("printer", "changed", "gpu IR that is read back prints differently")
        return kernel

    def _scheduled(self, *, map_pointers: bool) -> Kernel:
        program, kernel = self._program, self._program.kernel()
        schedule = Schedule(TARGETS[program.target], program.config, map_pointers=map_pointers)
        self._has_barriers, self._is_distributed, self._last = True, False, program.text
        observer = Observer(verify_each=True, on_pass=self._after)
        return self.attempt("schedule", lambda: schedule_kernel(kernel, schedule, observer))

    def _is_allowed(self, kernel: Kernel) -> bool:
        """Return whether the program may be launched as this kernel."""
        if kernel.scratch_bytes and not keeps_promises(self._program):
            return False
        return launch.is_allowed(kernel, self._program.make())

    def attempt(self, stage, action):
        """Return the result of `action`. Raises: Failure for any of its errors."""
        try:
            return action()
        except (Failure, Refused):
            raise
        except CompileError as error:
            raise Refused(str(error)) from error
        except Exception as error:  # anything it raises is a finding
            raise Failure(stage, type(error).__name__, str(error)) from error

    def compare(self, stage: str, stage_outputs: launch.Given) -> None:
        """Compare the arrays with their expected contents."""
        for argument in self._program.arguments:
            if isinstance(argument, Scalar):
                continue
            want, actual = (
                _whole(outputs[argument.name]) for outputs in (self._expected, stage_outputs)
            )
            wrong = differences(argument, want, actual)
            if wrong.size:
                index = int(wrong[0])
                raise Failure(
                    stage,
                    "result",
                    f"{argument.name}[{index}] is {actual[index]!r}, expected {want[index]!r}; "
                    f"{wrong.size} of {want.size} differ",
                )

    def _after(self, name: str, kernel: Kernel) -> None:
        self._is_distributed |= name == "split_across_cluster"
        if name in _BARRIERS_ARE_MISSING:
            self._has_barriers = name == _BARRIERS_ARE_MISSING[1]
        if name != _BARRIERS_ARE_MISSING[1]:
            if not self._each_pass:
                return
            # Most passes leave most programs as they are, and printing is quicker than running.
            printed = print_kernel(kernel)
            if printed == self._last:
                return
            self._last = printed
        if (kernel.guards or kernel.scratch_bytes) and not self._is_allowed(kernel):
            return
        # Until then the kernel is a whole program's, for any number of CTAs.
        num_ctas, kernel.num_ctas = kernel.num_ctas, kernel.num_ctas if self._is_distributed else 1
        self.compare(f"after {name}", self._interpreted(f"after {name}", kernel))
        kernel.num_ctas = num_ctas

    def _interpreted(self, stage: str, kernel: Kernel) -> launch.Given:
        inputs = self._program.make()
        arguments = launch.arguments(kernel, inputs)
        self.attempt(
            stage,
            lambda: run(kernel, self._program.grid, arguments, check_races=self._has_barriers),
        )
        return inputs


def _whole(array: Array | int) -> Array:
    """Return an array's whole memory, including padding of rows and bytes before it."""
    assert isinstance(array, np.ndarray)
    owner = array if array.base is None else array.base
    return owner.reshape(-1).view(array.dtype)


def differences(argument: Buffer | Tensor, want: Array, actual: Array) -> Array:
    """Return where two arrays differ by more than they may; NaNs are alike, and so are zeros."""
    if not argument.element.is_float:
        return np.flatnonzero(want != actual)
    wide, wide_got = want.astype(np.float64), actual.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (wide == wide_got) | (np.isnan(wide) & np.isnan(wide_got))
        if argument.steps:
            step = 2.0**-argument.element.mantissa_bits
            bound = np.where(np.isfinite(wide), argument.steps * step * np.abs(wide), 0.0)
            same |= np.abs(wide - wide_got) <= bound
    return np.flatnonzero(~same)
