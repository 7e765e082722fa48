"""Bugs in matrix products on tensor cores."""

from __future__ import annotations

from typing import Any

from aotc.backend import nvvm
from aotc.backend.rules import dot, wgmma
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.types import I8
from aotc.schedule.layout import legalize_dots
from tests.support.mutations.plant import (
    Mutation,
    after_pass,
    each,
    entry,
    in_ptx,
    replacing,
    wrapping,
)


def _mma(change: Any) -> Any:
    return wrapping(
        nvvm,
        "mma",
        lambda mma: lambda emit, kind, a, b, acc: mma(emit, kind, *change(list(a), list(b), acc)),
    )


def _swap(words: list[str], first: int, other: int) -> list[str]:
    words[first], words[other] = words[other], words[first]
    return words


def _rounded(mma: Any) -> Any:
    def made(emit: Any, *operands: Any) -> list[str]:
        halves = [emit.value(f"fptrunc float {sum_} to half") for sum_ in mma(emit, *operands)]
        return [emit.value(f"fpext half {half} to float") for half in halves]

    return made


def _forgetful(mma: Any) -> Any:
    """Return an `mma` on the accumulator's initial value instead of its latest one."""
    begun: dict[tuple[str, ...], list[str]] = {}

    def made(emit: Any, kind: Any, a: Any, b: Any, acc: Any) -> list[str]:
        start = begun.get(tuple(acc), acc)
        out = mma(emit, kind, a, b, start)
        begun[tuple(out)] = start
        return out

    return made


def _not_carried(loop: scf.For) -> None:
    loop.body.terminator.set_slots([*loop.body.args[1:2], *loop.body.terminator.operands[1:]])


def _close_backwards(close: Any) -> Any:
    return lambda self, words, columns, registers: close(self, words, columns[::-1], registers)


def _imprecise(dot: tile.Dot) -> None:
    dot.max_num_imprecise_acc = 0


MUTATIONS = (
    Mutation(
        "rows of A swapped in a fragment",
        "registers of a fragment in another order: rows 8 to 15 before rows 0 to 7",
        "multiply",
        _mma(lambda a, b, acc: (_swap(a, 0, 1), b, acc)),
    ),
    Mutation(
        "K swapped in a fragment of B",
        "registers of a fragment in another order: the later half of K first",
        "multiply",
        _mma(lambda a, b, acc: (a, _swap(b, 0, 1), acc)),
    ),
    Mutation(
        "sums in other registers",
        "what an instruction leaves is taken for the elements of other places",
        "multiply",
        wrapping(dot._MmaLowering, "_close", _close_backwards),
    ),
    Mutation(
        "ldmatrix without its transposition",
        "`.trans` is lost",
        "multiply",
        in_ptx(r"x4\.trans", "x4"),
    ),
    Mutation(
        "matrices of stmatrix swapped",
        "words of an accumulator in another order on their way to memory",
        "multiply_to_fp16",
        in_ptx(r"(stmatrix.*\{)(%r\d+), (%r\d+)", r"\1\3, \2"),
        "sm_90a",
    ),
    Mutation(
        "a descriptor says whose memory it is",
        "in a cluster, bits of an address spill into another field of a descriptor",
        "multiply_in_clusters",
        replacing(wgmma, "_OWN_ADDRESS_MASK", -1),
        "sm_90a",
    ),
    Mutation(
        "sums rounded to half",
        "an accumulator of fewer bits than asked for",
        "multiply",
        wrapping(nvvm, "mma", _rounded),
    ),
    Mutation(
        "sums not threaded along K",
        "each instruction of a block adds to what the block began with",
        "multiply",
        wrapping(nvvm, "mma", _forgetful),
    ),
    Mutation(
        "sums not carried by the loop",
        "a loop yields the sums it was given",
        "multiply",
        after_pass("legalize_dots", each(scf.For, _not_carried)),
    ),
    *(
        Mutation(
            f"products of fp8 not promoted, {kernel}",
            "tensor cores add up all of K with the few bits they have for fp8",
            f"multiply_fp8_{kernel}",
            after_pass("legalize_dots", each(tile.Dot, _imprecise)),
            "sm_90a",
        )
        for kernel in ("added", "promoted")
    ),
    Mutation(
        "bytes multiplied as unsigned",
        "the wrong type in the name of an instruction",
        "multiply_int8",
        entry(dot._OPERANDS, I8, ("u8", "i32")),
    ),
    Mutation(
        "tf32 for three products of it",
        "the precision that was asked for is not what is computed",
        "multiply_fp32",
        replacing(
            legalize_dots,
            "_beyond_tf32",
            lambda value, build: build(arith.Constant(0.0, value.type)).out,
        ),
    ),
    Mutation(
        "bits beyond tf32 are not all",
        "the mask that takes tf32 off a number has one bit too many",
        "multiply_fp32",
        replacing(legalize_dots, "_TF32_BITS", 0xFFFFF000),
    ),
    Mutation(
        "copies along K are summed",
        "lanes that hold copies where K is short do not give zeros",
        "multiply_small",
        replacing(dot._MmaLowering, "_copies", lambda self, registers: ""),
    ),
)
