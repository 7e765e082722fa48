"""The control-flow graph of a function: basic blocks and their successors.

Subroutines are part of the graph. ptxas calls with the return address in a register, and also
uses calls as long branches. So a call is a branch to its target, and a return may go to the
instruction after any call.

Invariant: an instruction that moves, splits or joins lanes is the last of its block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aotc.verify.sass.instructions import BRANCHES, ENDS
from aotc.verify.sass.text import Function, Instruction, SassError

_CLOSES = frozenset({*BRANCHES, *ENDS, "BSSY", "BSYNC", "BREAK", "WARPSYNC"})


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive instructions; `branch_targets` are the targets of the final branch.

    `next` is the block after it in the text, None if control never falls through.
    """

    index: int
    instructions: tuple[Instruction, ...]
    branch_targets: tuple[int, ...]
    next: int | None

    @property
    def start(self) -> int:
        """Address of the first instruction."""
        return self.instructions[0].address

    @property
    def last(self) -> Instruction:
        """The final instruction, which decides the successor."""
        return self.instructions[-1]

    @property
    def successors(self) -> tuple[int, ...]:
        """The possible next blocks."""
        return self.branch_targets if self.next is None else (*self.branch_targets, self.next)


@dataclass(frozen=True, slots=True)
class Graph:
    """The blocks of a function, by index; the first is the entry."""

    blocks: tuple[Block, ...]

    def block_at(self, address: int) -> Block:
        """Return the block of the instruction at an address."""
        return self.blocks[bisect_right([b.start for b in self.blocks], address) - 1]


def build_graph(function: Function) -> Graph:
    """Return the graph of a function.

    Raises: SassError for a branch with an unknown target or one outside of the instructions.
    """
    instructions = function.instructions
    addresses = {instruction.address for instruction in instructions}
    returns = _return_sites(instructions)
    starts = {instructions[0].address, *(site for sites in returns.values() for site in sites)}
    for position, instruction in enumerate(instructions):
        if instruction.name != "RET":
            starts.update(instruction.targets)
        if instruction.name in _CLOSES and position + 1 < len(instructions):
            starts.add(instructions[position + 1].address)
    starts &= addresses
    runs: list[list[Instruction]] = []
    for instruction in instructions:
        if instruction.address in starts:
            runs.append([])
        runs[-1].append(instruction)
    numbers = {run[0].address: index for index, run in enumerate(runs)}
    blocks = [
        _block(index, tuple(run), numbers, returns, is_last=index + 1 == len(runs))
        for index, run in enumerate(runs)
    ]
    return Graph(tuple(blocks))


def _block(
    index: int,
    instructions: tuple[Instruction, ...],
    numbers: dict[int, int],
    returns: Mapping[int, Sequence[int]],
    *,
    is_last: bool,
) -> Block:
    last = instructions[-1]
    branch_targets: tuple[int, ...] = ()
    falls = last.name not in (*BRANCHES, *ENDS) or _is_conditional(last)
    if last.name == "RET":
        branch_targets = tuple(numbers[address] for address in returns[last.address])
    elif last.name == "CALL" and not last.targets:
        falls = True  # a function of another file, such as vprintf, returns
    elif last.name in BRANCHES:
        if not last.targets:
            raise SassError(f"the target of {last.text!r} at {last.address:#06x} is not known")
        branch_targets = tuple(numbers[address] for address in dict.fromkeys(last.targets))
    return Block(index, instructions, branch_targets, index + 1 if falls and not is_last else None)


def _is_conditional(instruction: Instruction) -> bool:
    if instruction.guard is not None and instruction.guard.name not in ("PT", "UPT"):
        return True
    # `BRA.DIV UR4, L` and `BRA.U UP0, L` have their condition among the operands.
    return "DIV" in instruction.modifiers or any(
        operand.lstrip("!").startswith(("UP", "P")) for operand in instruction.operands
    )


def _return_sites(instructions: tuple[Instruction, ...]) -> dict[int, list[int]]:
    """Return the return sites of each RET, by address: after calls of its subroutine.

    A call whose target reaches no RET, nested calls aside, is a long branch.
    """
    if not any(instruction.name == "RET" for instruction in instructions):
        return {}
    indices = {instruction.address: index for index, instruction in enumerate(instructions)}
    sites: dict[int, list[int]] = {
        instruction.address: [] for instruction in instructions if instruction.name == "RET"
    }
    for call, after in pairwise(instructions):
        if call.name == "CALL" and call.targets:
            for end in _ends(instructions, indices, call.targets[0]):
                sites[end].append(after.address)
    return sites


def _ends(
    instructions: tuple[Instruction, ...], indices: dict[int, int], entry: int
) -> Iterator[int]:
    """Yield the addresses of the RETs of the subroutine at `entry`, calls stepped over."""
    seen = {entry}
    waiting = [entry]
    while waiting:
        index = indices[waiting.pop()]
        instruction = instructions[index]
        if instruction.name == "RET":
            yield instruction.address
            continue
        following = (
            list(instruction.targets)
            if instruction.name in BRANCHES and instruction.name != "CALL"
            else []
        )
        is_left = instruction.name in (*ENDS, *BRANCHES) and instruction.name != "CALL"
        if (not is_left or _is_conditional(instruction)) and index + 1 < len(instructions):
            following.append(instructions[index + 1].address)
        for address in following:
            if address not in seen:
                seen.add(address)
                waiting.append(address)
