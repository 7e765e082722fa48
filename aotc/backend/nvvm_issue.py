"""Instructions issued by one elected lane: asynchronous copies and arrivals at mbarriers.

Hardware issues these once per warp, not once per thread. Under a per-thread predicate, ptxas makes
the warp vote whether to issue. It may place the vote where the lanes have diverged: each part of
the warp votes, and the instruction is issued twice. So nothing here is predicated. A warp is chosen
by a warp-uniform value, `elect.sync` chooses one of its lanes. This lane branches to everything
issued at this point, until `bar.warp.sync` reconverges the warp. The same lane is elected each
time, so it can wait for its own commit groups.

A producer elects the lane where it issues loads: next to `elect.sync`, ptxas sees a single lane and
issues copies without a predicate. Consumers compute the lane ahead of their loops. With an election
at each arrival and store, a matmul of K = 8192 (128 x 128 tiles, 8 warps) took 12 % longer on an
H100. Nearly all of it was at the stores.

Consecutive instructions without another effect in between share a branch: `Issue` collects them,
and the emitter writes it before the next effect.

Invariant: one lane of a warp executes an `Issue`, and all others wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from aotc.backend.emitter import Emitter
from aotc.backend.nvvm_memory import Address

NEW_LINE = "\\0A\\09"  # as LLVM spells it in a string


@dataclass(frozen=True, slots=True)
class Issuer:
    """The issuing threads: one lane of each warp with true `warps`.

    `warps` is a warp-uniform i1, "" for every warp of the role. `lane` is an i1 true in one lane;
    "" elects one.
    """

    warps: str = ""
    lane: str = ""


class Issue:
    """Collect instructions of one issuer and their operands into one asm call.

    Source: PTX ISA 9.7.13.14 `elect.sync`, 9.7.13.2 `bar.warp.sync`.
    """

    def __init__(self, issuer: Issuer, suffix: str) -> None:
        self.issuer = issuer
        self._suffix = suffix
        self._operands: dict[tuple[str, str, str], int] = {}
        self._lines: list[tuple[str, str]] = []

    def operand(self, letter: str, kind: str, value: str) -> str:
        """Add an operand, once, and return its placeholder in the text."""
        return f"${self._operands.setdefault((letter, kind, value), len(self._operands))}"

    def address(self, address: Address) -> str:
        """Return the text of an address in shared memory."""
        return f"[{self.operand('r', 'i32', address.base)}+{address.offset_bytes}]"

    def global_address(self, address: Address) -> str:
        """Return an address in global memory as an operand."""
        pointer = self.operand("l", "ptr addrspace(1)", address.base)
        return f"[{pointer}+{address.offset_bytes}]"

    def number(self, value: str) -> str:
        """Return the text of an i32: the number itself if it is a constant."""
        return value if value.isdecimal() else self.operand("r", "i32", value)

    def add(self, text: str, condition: str = "") -> None:
        """Add instructions; they execute only if `condition`, a warp-uniform i1 or "", holds."""
        self._lines.append((self._predicate(condition), text))

    def text(self) -> str:
        """Return the asm call."""
        lines: list[str] = []
        for number, (condition, group) in enumerate(groupby(self._lines, lambda line: line[0])):
            body = [text for _, text in group]
            if condition:
                body = [f"@!{condition} bra skip{number};", *body, f"skip{number}:"]
            lines += body
        lines = self._branch(lines)
        constraints = ",".join(letter for letter, _, _ in self._operands)
        arguments = ", ".join(f"{kind} {value}" for _, kind, value in self._operands)
        if len(lines) > 1:
            lines = ["{", *lines, "}"]
        text = NEW_LINE.join(lines)
        call = f'call void asm sideeffect "{text}", "{constraints}"({arguments}) #0'
        return call + self._suffix

    def _branch(self, lines: list[str]) -> list[str]:
        """Return the branch for one lane of the issuer's warps to execute `lines`."""
        warps, lane = (self._predicate(value) for value in (self.issuer.warps, self.issuer.lane))
        elect = [] if lane else ["elect.sync _|elected, 0xffffffff;"]
        return [
            *([] if lane else [".reg .pred elected;"]),
            *([f"@!{warps} bra.uni done;"] if warps else []),
            *elect,
            f"@!{lane or 'elected'} bra others;",
            *lines,
            "others: bar.warp.sync 0xffffffff;",
            *(["done:"] if warps else []),
        ]

    def _predicate(self, value: str) -> str:
        return self.operand("b", "i1", value) if value else ""


def issue(emit: Emitter, issuer: Issuer) -> Issue:
    """Return the open branch of `issuer`, or open one."""
    pending = emit.held
    if not isinstance(pending, Issue) or pending.issuer != issuer:
        pending = Issue(issuer, emit.debug_suffix)
        emit.hold(pending)
    return pending
