"""Instructions that one elected lane issues: asynchronous copies and arrivals at mbarriers.

Hardware issues these once per warp, not once per thread. Under a per-thread predicate, ptxas makes
the warp vote whether to issue, and may place the vote where the lanes have diverged: each part of
the warp votes, and the instruction is issued twice. So nothing here is predicated. A warp is chosen
by a warp-uniform value, `elect.sync` chooses one of its lanes, and that lane branches to everything
issued at this point, until `bar.warp.sync` reconverges the warp. The same lane is elected each
time, so it can wait for its own commit groups.

Consecutive instructions without another effect in between share a branch: `Issue` collects them,
and the emitter writes it before the next effect.

Invariant: one lane of a warp executes an `Issue`, and all others wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from aotc.backend.emitter import Emitter
from aotc.backend.nvvm import Address

_NEW_LINE = "\\0A\\09"  # as LLVM spells it in a string


@dataclass(frozen=True, slots=True)
class Issuer:
    """The threads that issue: one lane of each warp for which `warps` holds.

    `warps` is a warp-uniform i1, "" for every warp. In a role with a single thread (`alone`),
    no lane needs to be elected.
    """

    warps: str = ""
    alone: bool = False


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

    def number(self, value: str) -> str:
        """Return the text of an i32: the number itself if it is a constant."""
        return value if value.isdecimal() else self.operand("r", "i32", value)

    def add(self, text: str, condition: str = "") -> None:
        """Add instructions; they execute only if `condition`, a warp-uniform i1 or "", holds."""
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
        """Return the branch in which the elected lane of the issuer's warps executes `lines`."""
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
    """Return an i1 that holds in one lane of a converged warp.

    Source: PTX ISA 9.7.13.14 `elect.sync`.
    """
    pair = emit.fresh(emit.call_text("{i32, i1}", "llvm.nvvm.elect.sync", [("i32", "-1")]))
    return emit.value(f"extractvalue {{i32, i1}} {pair}, 1")
