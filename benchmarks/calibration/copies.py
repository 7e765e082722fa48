"""Asynchronous copies without a tensor map: `cp.async`, `cp.async.bulk` and its reductions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.calibration import inputs
from benchmarks.calibration.case import Argument, Case, Group, Output
from benchmarks.calibration.staged import BARRIER, IMAGE_BYTES, THREADS, WAIT, nothing, staged

_SOURCE_BYTES = 4096
_BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def _rows(sizes: int, rng: np.random.Generator) -> list[Argument]:
    source = rng.integers(0, 1 << 32, _SOURCE_BYTES // 4, np.uint32)
    rows = rng.permutation(_SOURCE_BYTES // 16)[:THREADS].astype(np.uint32)
    return [source, rows, rng.integers(0, sizes + 1, THREADS).astype(np.uint32)]


def _threadwise() -> Iterator[Case]:
    addresses = """
    mad.wide.u32 d9, r0, 4, d9; ld.global.b32 r8, [d9]; mad.wide.u32 d8, r8, 16, d8;
    mad.wide.u32 d10, r0, 4, d10; ld.global.b32 r9, [d10];
    and.b32 r10, r9, 1; setp.eq.u32 p2, r10, 0;
    """
    end = "cp.async.commit_group; cp.async.wait_group 0;"
    for cache, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        name = f"cp.async.{cache}.shared.global {size}"
        for suffix, tail in (("", ""), (" with zeros", ", r9"), (" ignoring", ", p2")):
            copy = f"cp.async.{cache}.shared.global [r2], [d8], {size}{tail};"
            yield staged(name + suffix, addresses + copy + end, partial(_rows, size), num_args=4)


def _bytes(size: int, rng: np.random.Generator) -> list[Argument]:
    return [rng.integers(0, 256, size, np.uint8)]


def _bulk() -> Iterator[Case]:
    expect = "@p1 mbarrier.arrive.expect_tx.shared.b64 _, [r1+{barrier}], {size};"
    for size in (16, 48, 1024, IMAGE_BYTES):
        body = expect.format(barrier=BARRIER, size=size)
        body += f"@p1 {_BULK} [r1], [d8], {size}, [r1+{BARRIER}];{WAIT}"
        yield staged(f"cp.async.bulk to shared {size}", body, partial(_bytes, size), num_args=2)
        body = f"""
        @p1 cp.async.bulk.global.shared::cta.bulk_group [d8], [r1], {size};
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;"""
        outputs = (Output(1, "u8"),)
        name = f"cp.async.bulk to global {size}"
        yield staged(name, body, partial(_bytes, size), outputs, num_args=2)


REDUCTIONS = (
    *(("add", kind) for kind in ("u32", "s32", "u64", "f16", "bf16", "f32", "f64")),
    *(
        (operator, kind)
        for operator in ("min", "max")
        for kind in ("u32", "s32", "u64", "s64", "f16", "bf16")
    ),
    *((operator, "u32") for operator in ("inc", "dec")),
    *((operator, kind) for operator in ("and", "or", "xor") for kind in ("b32", "b64")),
)
"""What bulk reductions to global memory combine, and of which types."""


def reduction_operands(kind: str, rng: np.random.Generator) -> list[Argument]:
    """Return an image of shared memory and as many bytes to combine it with."""
    drawn = kind if "f" in kind else f"b{kind[1:]}"
    count = IMAGE_BYTES * 8 // inputs.width_of(drawn)
    image, memory = inputs.draw((drawn, drawn), rng, count)
    return [image, memory]


def _reductions() -> Iterator[Case]:
    for operation, kind in REDUCTIONS:
        noftz = ".noftz" if operation == "add" and kind in ("f16", "bf16") else ""
        mnemonic = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{noftz}.{kind}"
        body = f"""
        @p1 {mnemonic} [d8], [r1], {IMAGE_BYTES};
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;"""
        compared = kind if "f" in kind else f"b{kind[1:]}"
        draw = partial(reduction_operands, kind)
        yield staged(mnemonic, body, draw, (Output(1, compared),), num_args=2, draws_image=True)


def _waits() -> Iterator[Case]:
    """Phases of an mbarrier, written to shared memory by thread 0."""
    for arrivals in (1, 3):
        lines: list[str] = []
        for step in range(5):
            lines += [
                f"mbarrier.arrive.shared.b64 d20, [r1+{BARRIER}];",
                "mbarrier.pending_count.b64 r10, d20;",
                f"mbarrier.test_wait.parity.shared.b64 p2, [r1+{BARRIER}], 0; selp.b32 r11, 1, 0, p2;",
                f"mbarrier.test_wait.parity.shared.b64 p2, [r1+{BARRIER}], 1; selp.b32 r12, 1, 0, p2;",
                f"mbarrier.test_wait.shared.b64 p2, [r1+{BARRIER}], d20; selp.b32 r13, 1, 0, p2;",
                f"st.shared.v4.b32 [r1+{16 * step}], {{r10, r11, r12, r13}};",
            ]
        body = "@!p1 bra END;\n" + "\n".join(lines) + "\nEND:"
        yield staged(f"mbarrier of {arrivals}, phases", body, nothing, arrivals=arrivals)
    drop = f"""
    @!p1 bra END;
    mbarrier.arrive_drop.shared.b64 d20, [r1+{BARRIER}];
    mbarrier.arrive.shared.b64 d21, [r1+{BARRIER}], 2;
    mbarrier.arrive.shared.b64 d22, [r1+{BARRIER}];
    mbarrier.pending_count.b64 r10, d20; mbarrier.pending_count.b64 r11, d21;
    mbarrier.pending_count.b64 r12, d22;
    mbarrier.test_wait.parity.shared.b64 p2, [r1+{BARRIER}], 0; selp.b32 r13, 1, 0, p2;
    st.shared.v4.b32 [r1], {{r10, r11, r12, r13}};
    END:"""
    yield staged("mbarrier.arrive_drop", drop, nothing, arrivals=3)


GROUPS = (
    Group("cp-async", "cp.async", tuple(_threadwise())),
    Group("bulk", "bulk copies and reductions", (*_bulk(), *_reductions())),
    Group("mbarrier", "mbarriers", tuple(_waits())),
)
