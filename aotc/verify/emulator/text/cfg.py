"""The control-flow graph of a kernel: basic blocks, reconvergence, loops, liveness.

Lanes that diverge at a branch reconverge at its immediate post-dominator. Blocks that end in a
`trap` are ignored there: no lane leaves them.

Invariant: blocks are in the order of the text, cover it, and overlap nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.syntax import Instruction, Label, Operand, Register, Vector
from aotc.verify.emulator.text.effects import effect_of

_ENDS = ("bra", "brx", "ret", "exit", "trap")


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Hold instructions `start` to `stop`, exclusive.

    `reconvergence` is the instruction where lanes that diverge at the end meet again, or the number
    of instructions if they meet only at the exit.
    """

    start: int
    stop: int
    successors: tuple[int, ...]
    reconvergence: int


@dataclass(frozen=True, slots=True)
class Cfg:
    """Hold the blocks of a kernel; `block_at` maps a first instruction to its block."""

    blocks: tuple[BasicBlock, ...]
    block_at: Mapping[int, int]


def build_cfg(instructions: Sequence[Instruction]) -> Cfg:
    """Return the control-flow graph of a kernel's instructions.

    Raises: EmulationError if control can run past the last instruction.
    """
    starts = _leaders(instructions)
    block_at = {start: index for index, start in enumerate(starts)}
    stops = [*starts[1:], len(instructions)]
    successors: list[tuple[int, ...]] = []
    leaves: list[bool] = []
    for stop in stops:
        last = instructions[stop - 1]
        targets = [block_at[label] for label in jump_targets(last)]
        falls = last.opcode not in _ENDS or last.guard is not None
        if falls and stop == len(instructions):
            raise EmulationError(
                "control runs past the end of the kernel", line=last.line, text=last.text
            )
        unique = dict.fromkeys((*targets, block_at[stop]) if falls else targets)
        successors.append(tuple(unique))
        leaves.append(last.opcode in ("ret", "exit"))
    meeting = _post_dominators(successors, leaves)
    blocks = [
        BasicBlock(start, stop, after, len(instructions) if meet is None else starts[meet])
        for start, stop, after, meet in zip(starts, stops, successors, meeting, strict=True)
    ]
    return Cfg(tuple(blocks), block_at)


@dataclass(frozen=True, slots=True)
class Loop:
    """Locate a loop: its first instruction in the text, and its header."""

    first: int
    entry: int


def nests_of(cfg: Cfg) -> list[tuple[Loop, ...]]:
    """Return the enclosing loops of each block, outermost first.

    A loop is the set of blocks that lead back to a block dominating them.
    """
    before: list[list[int]] = [[] for _ in cfg.blocks]
    for index, block in enumerate(cfg.blocks):
        for after in block.successors:
            before[after].append(index)
    dominators = _dominators(before)
    bodies: list[tuple[set[int], int]] = []
    for entry, sources in enumerate(before):
        worklist = [index for index in sources if dominators[index] >> entry & 1]
        body = {entry}
        is_loop = bool(worklist)
        while worklist:
            index = worklist.pop()
            if index not in body:
                body.add(index)
                worklist += before[index]
        if is_loop:
            bodies.append((body, entry))
    bodies.sort(key=lambda loop: (-len(loop[0]), loop[1]))
    starts = [block.start for block in cfg.blocks]
    loops = [(body, Loop(starts[min(body)], starts[entry])) for body, entry in bodies]
    return [
        tuple(loop for body, loop in loops if index in body) for index in range(len(cfg.blocks))
    ]


def _dominators(before: Sequence[Sequence[int]]) -> list[int]:
    """Return the dominators of each block as bits; `before` has its predecessors."""
    all_blocks = (1 << len(before)) - 1
    dominators = [1, *[all_blocks] * (len(before) - 1)]
    changed = True
    while changed:
        changed = False
        for index in range(1, len(before)):
            common = all_blocks if before[index] else 0
            for predecessor in before[index]:
                common &= dominators[predecessor]
            common |= 1 << index
            changed |= common != dominators[index]
            dominators[index] = common
    return dominators


def jump_targets(instruction: Instruction) -> tuple[int, ...]:
    """Return the target instructions of a jump, in the order written."""
    return tuple(_labels(instruction.operands)) if instruction.opcode in ("bra", "brx") else ()


def _labels(operands: Sequence[Operand]) -> list[int]:
    indices: list[int] = []
    for operand in operands:
        if isinstance(operand, Label):
            indices.append(operand.index)
        elif isinstance(operand, Vector):
            indices += _labels(operand.elements)
    return indices


def _leaders(instructions: Sequence[Instruction]) -> list[int]:
    starts = {0}
    for index, instruction in enumerate(instructions):
        starts.update(jump_targets(instruction))
        if instruction.opcode in _ENDS:
            starts.add(index + 1)
    return sorted(start for start in starts if start < len(instructions))


def _post_dominators(
    successors: Sequence[tuple[int, ...]], leaves: Sequence[bool]
) -> list[int | None]:
    """Return each block's immediate post-dominator, None for the exit.

    Source: Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph.
    """
    count = len(successors)
    exit_node = count
    after = [
        [*targets, exit_node] if leave else [*targets]
        for targets, leave in zip(successors, leaves, strict=True)
    ]
    before: list[list[int]] = [[] for _ in range(count + 1)]
    for block, targets in enumerate(after):
        for target in targets:
            before[target].append(block)
    order = _postorder(exit_node, before)
    rank = {node: position for position, node in enumerate(order)}
    immediate: dict[int, int] = {exit_node: exit_node}

    def meet(left: int, right: int) -> int:
        while left != right:
            while rank[left] < rank[right]:
                left = immediate[left]
            while rank[right] < rank[left]:
                right = immediate[right]
        return left

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            processed = [target for target in after[node] if target in immediate]
            best = processed[0]
            for target in processed[1:]:
                best = meet(best, target)
            if immediate.get(node) != best:
                immediate[node] = best
                changed = True
    parents = [immediate.get(block, exit_node) for block in range(count)]
    return [None if node == exit_node else node for node in parents]


def _postorder(root: int, edges: Sequence[Sequence[int]]) -> list[int]:
    order: list[int] = []
    seen = {root}
    stack = [(root, iter(edges[root]))]
    while stack:
        node, rest = stack[-1]
        follow = next((target for target in rest if target not in seen), None)
        if follow is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(follow)
            stack.append((follow, iter(edges[follow])))
    return order


# ---- data flow ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataFlow:
    """Hold register liveness per block, and registers possibly read before written.

    `live_in` and `live_out` are bit sets over the numbers in `numbers`.
    """

    numbers: Mapping[Register, int]
    live_in: tuple[int, ...]
    live_out: tuple[int, ...]
    maybe_undefined: tuple[Register, ...]


def analyse(instructions: Sequence[Instruction], cfg: Cfg) -> DataFlow:
    """Return the data flow of a kernel."""
    numbers: dict[Register, int] = {}
    block_uses: list[int] = []
    block_kills: list[int] = []
    touched: list[tuple[list[int], list[int]]] = []
    for block in cfg.blocks:
        uses = kills = 0
        for instruction in instructions[block.start : block.stop]:
            effect = effect_of(instruction)
            reads = [numbers.setdefault(register, len(numbers)) for register in effect.reads]
            writes = [numbers.setdefault(register, len(numbers)) for register in effect.writes]
            touched.append((reads, [] if instruction.guard else writes))
            uses |= _bits(reads) & ~kills
            if instruction.guard is None:
                kills |= _bits(writes)
        block_uses.append(uses)
        block_kills.append(kills)
    live_in, live_out = _liveness(cfg, block_uses, block_kills)
    undefined = _maybe_undefined(cfg, touched, block_kills)
    registers = tuple(register for register, number in numbers.items() if undefined >> number & 1)
    return DataFlow(numbers, tuple(live_in), tuple(live_out), registers)


def _bits(numbers: Sequence[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _liveness(
    cfg: Cfg, block_uses: Sequence[int], block_kills: Sequence[int]
) -> tuple[list[int], list[int]]:
    live_in = list(block_uses)
    live_out = [0] * len(block_uses)
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(block_uses))):
            out = 0
            for after in cfg.blocks[index].successors:
                out |= live_in[after]
            live_out[index] = out
            into = block_uses[index] | out & ~block_kills[index]
            if into != live_in[index]:
                live_in[index] = into
                changed = True
    return live_in, live_out


def _maybe_undefined(
    cfg: Cfg, touched: Sequence[tuple[list[int], list[int]]], block_kills: Sequence[int]
) -> int:
    """Return the registers read before being written on some path from the entry."""
    all_registers = -1
    defined_at_entry = [all_registers] * len(block_kills)
    defined_at_entry[0] = 0
    work = [0]
    while work:
        index = work.pop()
        out = defined_at_entry[index] | block_kills[index]
        for after in cfg.blocks[index].successors:
            defined_in = defined_at_entry[after] & out
            if defined_in != defined_at_entry[after]:
                defined_at_entry[after] = defined_in
                work.append(after)
    undefined = 0
    for index, block in enumerate(cfg.blocks):
        defined = defined_at_entry[index]
        for reads, writes in touched[block.start : block.stop]:
            undefined |= _bits(reads) & ~defined
            defined |= _bits(writes)
    return undefined
