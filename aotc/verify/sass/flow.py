"""The control-flow graph of a function: basic blocks and where each may go.

Subroutines are part of the graph. ptxas calls with the return address in a register, and calls as a
branch that reaches far; so a call is a branch to its target, and a return may go to the instruction after any call.

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
    """Instructions that follow each other; `taken` is where a branch at the end goes.

    `next` is the block after it in the text, None if control never falls through.
    """

    index: int
    instructions: tuple[Instruction, ...]
    taken: tuple[int, ...]
    next: int | None

    @property
    def start(self) -> int:
        """Address of the first instruction."""
        return self.instructions[0].address

    @property
    def last(self) -> Instruction:
        """The instruction that decides where control goes on."""
        return self.instructions[-1]

    @property
    def successors(self) -> tuple[int, ...]:
        """Blocks that may come next."""
        return self.taken if self.next is None else (*self.taken, self.next)


@dataclass(frozen=True, slots=True)
class Graph:
    """The blocks of a function, by index; the first is the entry."""

    blocks: tuple[Block, ...]

    def block_at(self, address: int) -> Block:
        """Return the block that holds the instruction at an address."""
        return self.blocks[bisect_right([b.start for b in self.blocks], address) - 1]


def build_graph(function: Function) -> Graph:
    """Return the graph of a function.

    Raises: SassError if a branch goes where no instruction is, or nobody knows where.
    """
    instructions = function.instructions
    addresses = {each.address for each in instructions}
    returns = _return_sites(instructions)
    starts = {instructions[0].address, *(site for sites in returns.values() for site in sites)}
    for at, each in enumerate(instructions):
        if each.name != "RET":
            starts.update(each.targets)
        if each.name in _CLOSES and at + 1 < len(instructions):
            starts.add(instructions[at + 1].address)
    starts &= addresses
    runs: list[list[Instruction]] = []
    for each in instructions:
        if each.address in starts:
            runs.append([])
        runs[-1].append(each)
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
    taken: tuple[int, ...] = ()
    falls = last.name not in (*BRANCHES, *ENDS) or _is_conditional(last)
    if last.name == "RET":
        taken = tuple(numbers[each] for each in returns[last.address])
    elif last.name == "CALL" and not last.targets:
        falls = True  # a function of another file, such as vprintf, returns
    elif last.name in BRANCHES:
        if not last.targets:
            raise SassError(f"the target of {last.text!r} at {last.address:#06x} is not known")
        taken = tuple(numbers[each] for each in dict.fromkeys(last.targets))
    return Block(index, instructions, taken, index + 1 if falls and not is_last else None)


def _is_conditional(instruction: Instruction) -> bool:
    if instruction.guard is not None and instruction.guard.name not in ("PT", "UPT"):
        return True
    # `BRA.DIV UR4, L` and `BRA.U UP0, L` have their condition among the operands.
    return "DIV" in instruction.modifiers or any(
        operand.lstrip("!").startswith(("UP", "P")) for operand in instruction.operands
    )


def _return_sites(instructions: tuple[Instruction, ...]) -> dict[int, list[int]]:
    """Return where each RET may return to, by its address: after calls of the subroutine it ends.

    A call whose target comes to no RET, others' calls aside, is a branch that reaches far.
    """
    if not any(each.name == "RET" for each in instructions):
        return {}
    places = {each.address: at for at, each in enumerate(instructions)}
    sites: dict[int, list[int]] = {each.address: [] for each in instructions if each.name == "RET"}
    for call, after in pairwise(instructions):
        if call.name == "CALL" and call.targets:
            for end in _ends(instructions, places, call.targets[0]):
                sites[end].append(after.address)
    return sites


def _ends(
    instructions: tuple[Instruction, ...], places: dict[int, int], entry: int
) -> Iterator[int]:
    """Yield the addresses of the RETs that end the subroutine at `entry`, calls stepped over."""
    seen = {entry}
    waiting = [entry]
    while waiting:
        at = places[waiting.pop()]
        each = instructions[at]
        if each.name == "RET":
            yield each.address
            continue
        following = list(each.targets) if each.name in BRANCHES and each.name != "CALL" else []
        is_left = each.name in (*ENDS, *BRANCHES) and each.name != "CALL"
        if (not is_left or _is_conditional(each)) and at + 1 < len(instructions):
            following.append(instructions[at + 1].address)
        for address in following:
            if address not in seen:
                seen.add(address)
                waiting.append(address)
