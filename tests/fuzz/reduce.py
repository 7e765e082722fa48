"""Make a failing program small: remove all parts not needed for the failure.

Hypothesis shrinks the choices of a program, as tests need. A long run draws from a seed, and its
failures are shrunk here as tile IR, one edit after the other. An effect is dropped, a result
replaced by something simpler of the same type, a loop by one iteration, a branch by a side, the
launch and the configuration by smaller ones.

Invariant: the returned program fails in the caller's sense; with attempts left, no edit of it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.types import I1, DescriptorType, ScalarType, element_of
from aotc.ir.verify import verify
from tests.fuzz.programs import Program

Fails = Callable[[Program], bool]
Edit = Callable[[Op], None]
MakeEdits = Callable[[Op], Sequence[Edit]]


def reduced(program: Program, fails: Fails, max_attempts: int = 400) -> Program:
    """Return a small program that still fails, with at most `max_attempts` calls of `fails`."""
    search = _Search(program, fails, max_attempts)
    while search.sweep():
        pass
    return _without_unused(search.program, fails)


class _Search:
    """Try a program's edits from its end, and keep those that still fail."""

    def __init__(self, program: Program, fails: Fails, max_attempts: int) -> None:
        self.program = program
        self._fails = fails
        self._left = max_attempts

    def sweep(self) -> bool:
        """Try each edit once; return whether any was kept and more may be asked."""
        before = self.program
        for smaller in _configurations(self.program):
            self._keep(smaller)
        for make_edits in (_dropped, _inlined, _replaced):
            self._edit_all(make_edits)
        return self.program != before and self._left > 0

    def _keep(self, smaller: Program) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        if self._fails(smaller):
            self.program = smaller
            return True
        return False

    def _edit_all(self, make_edits: MakeEdits) -> None:
        ops = _ops(self.program)
        index = len(ops)
        while index > 0 and self._left > 0:
            index -= 1
            count = len(make_edits(ops[index]))
            if any(map(self._keep, _edited(self.program, index, count, make_edits))):
                # The op's unused operands went too, so this index is another op's now.
                ops = _ops(self.program)
                index = min(index + 1, len(ops))


def _ops(program: Program) -> list[Op]:
    return list(program.kernel().walk())


def _configurations(program: Program) -> Iterator[Program]:
    if any(extent > 1 for extent in program.grid):
        yield replace(program, grid=(1,) * len(program.grid))
    for num_warps in (1, 2, 4):
        if num_warps < program.num_warps:
            yield replace(program, num_warps=num_warps)
    if program.num_stages > 1:
        yield replace(program, num_stages=1)
    if program.num_ctas > 1:
        yield replace(program, num_ctas=1)
    if program.target != "sm_90a":
        yield replace(program, target="sm_90a")


def _edited(program: Program, index: int, count: int, make_edits: MakeEdits) -> Iterator[Program]:
    """Yield the program with each of the `count` edits of the op at `index`."""
    for number in range(count):
        kernel = program.kernel()
        op = list(kernel.walk())[index]
        try:
            make_edits(op)[number](op)
            rewrite(kernel, {})  # drops dead ops
            verify(kernel)
        except IRError:
            continue
        smaller = program.with_kernel(kernel)
        if smaller.text != program.text:
            yield smaller


# ---- edits ------------------------------------------------------------------------------------


def _dropped(op: Op) -> Sequence[Edit]:
    is_effect = op.has_side_effects and not op.terminator
    unused = not any(value.users for value in op.results)
    return [Op.erase] if is_effect and unused else []


def _inlined(op: Op) -> Sequence[Edit]:
    if isinstance(op, scf.If):
        return [lambda op: _inline(op, op.blocks[0], []), lambda op: _inline(op, op.blocks[1], [])]
    if isinstance(op, scf.For):
        return [_run_once]
    return []


def _run_once(op: Op) -> None:
    assert isinstance(op, scf.For)
    _inline(op, op.body, [op.lower, *op.init])


def _inline(op: Op, block: Block, args: Sequence[Value]) -> None:
    for formal, actual in zip(block.args, args, strict=True):
        formal.replace_all_uses_with(actual)
    builder = Builder.before_op(op)
    yields = list(block.terminator.operands)
    for nested in list(block):
        if not nested.terminator:
            nested.remove()
            builder(nested)
    op.replace_with(yields)


def _replaced(op: Op) -> Sequence[Edit]:
    """Return edits that replace results by operands, or by a constant."""
    if isinstance(op, arith.Constant) or not op.results or op.block is None:
        return []
    if len(op.results) > 1 and not isinstance(op, scf.For | scf.While):
        return [_by_constants]
    edits: list[Edit] = []
    if isinstance(op, scf.For | scf.While):
        edits.append(lambda op: op.replace_with(list(getattr(op, "init"))))  # noqa: B009
    else:
        kind = op.results[0].type
        edits += [
            lambda op, index=index: op.replace_with([op.operands[index]])
            for index, value in enumerate(op.operands)
            if value.type == kind
        ]
    return [*edits, _by_constants]


def _by_constants(op: Op) -> None:
    if isinstance(op, tile.Load) and op.mask is not None and op.other is None:
        raise IRError("its value is not defined where the mask is false")
    builder = Builder.before_op(op)
    values: list[Value] = []
    for result in op.results:
        element = element_of(result.type)
        if not isinstance(element, ScalarType) or isinstance(result.type, DescriptorType):
            raise IRError("a pointer or a tensor is not constant")
        number = False if element == I1 else 0.0 if element.is_float else 0
        values.append(builder(arith.Constant(number, result.type)).out)
    op.replace_with(values)


def _without_unused(program: Program, fails: Fails) -> Program:
    """Drop unused parameters, if the program still fails."""
    kernel = program.kernel()
    live_indices = [index for index, arg in enumerate(kernel.body.args) if arg.users]
    body = Block(
        [kernel.body.args[index].type for index in live_indices],
        [kernel.body.args[index].hint for index in live_indices],
    )
    for position, index in enumerate(live_indices):
        kernel.body.args[index].replace_all_uses_with(body.args[position])
    add = Builder(body)
    for op in list(kernel.body):
        op.remove()
        add(op)
    params = tuple(kernel.params[index] for index in live_indices)
    smaller = replace(
        program,
        text="",
        arguments=tuple(program.arguments[index] for index in live_indices),
    ).with_kernel(Kernel(kernel.name, params, body))
    return smaller if fails(smaller) else program
