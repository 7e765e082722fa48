"""The branch around what one thread issues: asynchronous copies, and arrivals at mbarriers.

Hardware issues these once for a warp, not once for a thread. Under a predicate of a thread, ptxas
has the warp vote whether to issue, and may place the vote where the lanes of the warp arrive apart:
each part of them votes, and the instruction is issued twice. So nothing here is predicated. A
warp is chosen by a value that is the same in all of its lanes, `elect.sync` chooses one of them,
and that lane branches to all that is issued at this point, until `bar.warp.sync` joins the lanes
again. The same lane is elected each time, so what a thread committed it can wait for.

What follows each other without an effect between shares a branch: `Issue` gathers it, and the
emitter writes it ahead of the next effect.

Invariant: one lane of a warp is at an instruction of an `Issue`, and all others wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from aotc.backend.emitter import Emitter
from aotc.backend.nvvm import Address

_NEW_LINE = "\\0A\\09"  # as LLVM spells it in a string


@dataclass(frozen=True, slots=True)
class Issuer:
    """Name the threads that issue: a lane of each warp for which `warps` holds.

    `warps` is an i1 that all lanes of a warp agree on, "" for every warp. Where a thread is `alone`
    in what it runs, nobody is elected.
    """

    warps: str = ""
    alone: bool = False


class Issue:
    """Gather instructions of one issuer and their operands: one asm call when it is written.

    Source: PTX ISA 9.7.13.14 `elect.sync`, 9.7.13.2 `bar.warp.sync`.
    """

    def __init__(self, issuer: Issuer, suffix: str) -> None:
        self.issuer = issuer
        self._suffix = suffix
        self._operands: dict[tuple[str, str, str], int] = {}
        self._lines: list[tuple[str, str]] = []

    def operand(self, letter: str, kind: str, value: str) -> str:
        """Add an operand, unless it is one already, and return how the text names it."""
        return f"${self._operands.setdefault((letter, kind, value), len(self._operands))}"

    def address(self, address: Address) -> str:
        """Return the text of an address in shared memory."""
        return f"[{self.operand('r', 'i32', address.base)}+{address.offset_bytes}]"

    def number(self, value: str) -> str:
        """Return the text of an i32, which is itself if it is a constant."""
        return value if value.isdecimal() else self.operand("r", "i32", value)

    def add(self, text: str, condition: str = "") -> None:
        """Add instructions; with a `condition`, an i1 that a warp agrees on, only if it holds."""
        self._lines.append((self.operand("b", "i1", condition) if condition else "", text))

    def text(self) -> str:
        """Return the asm call."""
        lines: list[str] = []
        for number, (condition, group) in enumerate(groupby(self._lines, lambda line: line[0])):
            body = [text for _, text in group]
            if condition:
                body = [f"@!{condition} bra skip{number};", *body, f"skip{number}:"]
            lines += body
        if not self.issuer.alone:
            lines = self._elected(lines)
        constraints = ",".join(letter for letter, _, _ in self._operands)
        arguments = ", ".join(f"{kind} {value}" for _, kind, value in self._operands)
        if len(lines) > 1:
            lines = ["{", *lines, "}"]
        text = _NEW_LINE.join(lines)
        call = f'call void asm sideeffect "{text}", "{constraints}"({arguments}) #0'
        return call + self._suffix

    def _elected(self, lines: list[str]) -> list[str]:
        """Return the branch of the lane that is elected to run `lines`, in the issuer's warps."""
        warps = self.issuer.warps
        chosen = [f"@!{self.operand('b', 'i1', warps)} bra.uni done;"] if warps else []
        return [
            ".reg .pred elected;",
            *chosen,
            "elect.sync _|elected, 0xffffffff;",
            "@!elected bra others;",
            *lines,
            "others: bar.warp.sync 0xffffffff;",
            *(["done:"] if warps else []),
        ]


def issue(emit: Emitter, issuer: Issuer) -> Issue:
    """Return the open branch of `issuer`, or open one."""
    held = emit.held
    if not isinstance(held, Issue) or held.issuer != issuer:
        held = Issue(issuer, emit.debug_suffix)
        emit.hold(held)
    return held


def elected(emit: Emitter) -> str:
    """Return an i1 that holds in one lane of the warp, all of whose lanes come here.

    Source: PTX ISA 9.7.13.14 `elect.sync`.
    """
    pair = emit.fresh(emit.call_text("{i32, i1}", "llvm.nvvm.elect.sync", [("i32", "-1")]))
    return emit.value(f"extractvalue {{i32, i1}} {pair}, 1")
