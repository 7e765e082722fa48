"""Make the kernel persistent, so that a producer can run ahead across program instances.

A new CTA begins with empty stages, and the tensor cores idle until the first loads land. So if a producer
warp will issue loads, the whole kernel becomes the body of a loop. A launch starts as many CTAs as run at a
time, and CTA b runs the programs b, b + count, …. The launcher passes the extents of the grid, `grid[0]` to
`grid[2]`, as arguments.

In causal attention the mainloop's end, but not its start, depends on the program's number. Then programs
are roughly sorted by cost, and CTAs go through them to and fro, counted back from the last round: CTA b
runs the b-th program of one round and the b-th from the end of the next. So no CTA always has the longer
programs. Only the last round may be partial, and it is not reversed.

Kernels whose programs communicate (atomics, memory barriers), read their count, or loop over their work
themselves stay as they are. If programs take unequal time, the hardware, which assigns programs to CTAs as
they finish, may do better: `persistent = false` in the config leaves it to the hardware.

Nor does it help if threads also copy operands, such as gathered rows. Their copies begin anew with each
program, at the pace of one CTA, while the hardware overlaps the next CTA's start with a CTA's end.

Invariant: every program of the grid is run once, by itself; programs have no order.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.params import GRID_SOURCES, ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32
from aotc.schedule.analysis.global_order import synchronizes
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark

_AXES = ("x", "y", "z")


def make_persistent(kernel: Kernel, schedule: Schedule) -> None:
    """Wrap the kernel in a loop over programs, if its copies can then run ahead."""
    if schedule.config.persistent is False:
        return
    if not schedule.map_pointers or not schedule.may_specialize or not _gains(kernel):
        return
    if not schedule.config.persistent and any(map(_copies_by_threads, kernel.walk())):
        return
    with at(kernel.loc):
        _wrap(kernel)
    kernel.is_persistent = True
    schedule.remark(kernel.loc, Remark.PERSISTENT())


def _gains(kernel: Kernel) -> bool:
    """Return whether the kernel has a mainloop of dots with tensor loads as operands."""
    loads = False
    for op in kernel.walk():
        if _communicates(op) or isinstance(op, tile.NumPrograms):
            return False
        if op.has(Trait.MAY_NOT_END, Trait.DEPENDENT_LAUNCH):
            return False  # the whole program waits or spins for others
        if isinstance(op, descriptor.DescriptorOf):
            return False  # no producer warp loads through maps built by the kernel
        if isinstance(op, descriptor.DescriptorLoad):
            depth = sum(isinstance(outer, scf.For) for outer in op.ancestors())
            if depth > 1:
                return False  # the outer loop is over its work, or as long as that
            loads |= depth == 1
    return loads


def _is_uneven(kernel: Kernel) -> bool:
    """Return whether some loop's end, but not its start, depends on the program's number."""
    loops = [op for op in kernel.walk() if isinstance(op, scf.For)]
    return any(_is_of_program(op.upper) and not _is_of_program(op.lower) for op in loops)


def _is_of_program(value: Value) -> bool:
    """Return whether a value is computed from the program's number by arithmetic alone."""
    worklist, seen = [value], dict[Value, None]()
    while worklist:
        op = worklist.pop().op
        if isinstance(op, tile.ProgramId):
            return True
        if op is not None and op.pure and not op.blocks:
            worklist += [operand for operand in op.operands if operand not in seen]
            seen.update(dict.fromkeys(op.operands))
    return False


def _copies_by_threads(op: Op) -> bool:
    """Return whether an op is a dot in a loop with an operand loaded there by threads."""
    if not isinstance(op, tile.Dot) or not isinstance(op.parent_op, scf.For):
        return False
    worklist = [op.a, op.b]
    while worklist:
        producer = worklist.pop().op
        if producer is None or producer.block is not op.block:
            continue
        if isinstance(producer, tile.Load):
            return True
        if producer.pure and not producer.blocks:
            worklist += producer.operands
    return False


def _communicates(op: Op) -> bool:
    """Return whether an op lets programs observe each other."""
    return synchronizes(op) or getattr(op, "volatile", False)


def _wrap(kernel: Kernel) -> None:
    old = [op for op in kernel.body if not op.terminator]
    to_and_fro = _is_uneven(kernel)
    builder = Builder.before_op(kernel.body.terminator)
    extents = [_extent(kernel, axis) for axis in range(len(_AXES))]
    row = builder(arith.Mul(extents[0], extents[1])).out
    count = builder(arith.Mul(row, extents[2])).out
    first = builder(tile.ProgramId(0)).out
    step = builder(tile.NumPrograms(0)).out
    body = Block([I32], ["program"])
    inside = Builder(body)
    program = body.args[0]
    if to_and_fro:
        program = _to_and_fro(builder, inside, program, first, count, step)
    at_row = inside(arith.Div(program, extents[0])).out
    numbers = [
        inside(arith.Rem(program, extents[0])).out,
        inside(arith.Rem(at_row, extents[1])).out,
        inside(arith.Div(program, row)).out,
    ]
    for op in old:
        op.remove()
        inside(op)
    for op in list(body.walk()):
        if isinstance(op, tile.ProgramId):
            op.replace_with([numbers[op.axis]])
    inside(scf.Yield([]))
    builder(
        build(scf.For, [first, count, step], {"unroll": scf.NEVER_UNROLLED}, [body], kernel.loc)
    )


def _to_and_fro(
    builder: Builder, inside: Builder, program: Value, first: Value, count: Value, step: Value
) -> Value:
    """Return the program a CTA runs in place of `program`, reversing every other round.

    The n-th round from the last is reversed if n is odd. `builder` is ahead of the loop.
    """
    unit = builder(arith.Constant(1, I32)).out
    last = builder(arith.Div(builder(arith.Sub(count, unit)).out, step)).out
    opposite = builder(arith.Sub(builder(arith.Sub(step, unit)).out, first)).out
    apart = builder(arith.Sub(opposite, first)).out
    left = inside(arith.Sub(last, inside(arith.Div(program, step)).out)).out
    is_reversed = inside(arith.And(left, unit)).out
    return inside(arith.Add(program, inside(arith.Mul(is_reversed, apart)).out)).out


def _extent(kernel: Kernel, axis: int) -> Value:
    """Return a new parameter: the extent of the grid along an axis."""
    name = f"grid.{_AXES[axis]}"
    kernel.params += (ParamInfo(name, source=GRID_SOURCES[axis]),)
    return kernel.body.add_arg(I32, name)
