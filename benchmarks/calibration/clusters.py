"""Blocks of a cluster accessing each other's shared memory, and the cluster's special registers.

Clusters have four blocks; each works on the next one's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.calibration.case import Case, Group
from benchmarks.calibration.copies import REDUCTIONS
from benchmarks.calibration.staged import BARRIER, CLUSTER_SYNC, THREADS, WAIT, nothing, staged
from benchmarks.calibration.tensors import Boxes

_BLOCKS, _CLUSTER = 8, 4
_NEXT = """
    mov.u32 r10, %cluster_ctarank;
    add.u32 r11, r10, 1;
    and.b32 r11, r11, 3;
    mapa.shared::cluster.u32 r12, r1, r11;
    mad.lo.u32 r13, r0, 16, r12;
"""
_ASYNC = "async.shared::cluster.mbarrier::complete_tx::bytes"
_RELAXED = _ASYNC.replace("async.", "async.relaxed.cluster.")


def _case(name: str, body: str, arrivals: int = 1) -> Case:
    return staged(name, _NEXT + body, nothing, blocks=_BLOCKS, cluster=_CLUSTER, arrivals=arrivals)


def _expect(size_bytes: int) -> str:
    """Expect bytes in each CTA, and let all know before they are sent."""
    return (
        f"@p1 mbarrier.arrive.expect_tx.shared.b64 _, [r1+{BARRIER}], {size_bytes};\n{CLUSTER_SYNC}"
    )


def _addresses() -> Iterator[Case]:
    load = "ld.shared::cluster.v4.b32 {r14, r15, r16, r17}, [r13];"
    keep = f"{CLUSTER_SYNC} st.shared.v4.b32 [r2], {{r14, r15, r16, r17}};"
    yield _case("mapa, ld.shared::cluster", load + keep)
    generic = """
    cvt.u64.u32 d20, r2; cvta.shared.u64 d20, d20; mapa.u64 d21, d20, r11;
    ld.v4.b32 {r14, r15, r16, r17}, [d21];"""
    yield _case("mapa.u64, generic ld", generic + keep)
    yield _case(
        "st.shared::cluster", load + CLUSTER_SYNC + "st.shared::cluster.v2.b32 [r13], {r14, r0};"
    )
    yield _case("atom.shared::cluster.add.u32", "atom.shared::cluster.add.u32 r14, [r13], r0;")
    ranks = """
    getctarank.shared::cluster.u32 r14, r13; getctarank.shared::cluster.u32 r15, r2;
    cvt.u64.u32 d20, r2; cvta.shared.u64 d20, d20; mapa.u64 d21, d20, r11;
    getctarank.u64 r16, d21; getctarank.u64 r17, d20;
    st.shared.v4.b32 [r2], {r14, r15, r16, r17};"""
    yield _case("getctarank", ranks)
    registers = """
    mov.u32 r14, %cluster_nctarank; mov.u32 r15, %cluster_ctaid.x; mov.u32 r16, %clusterid.x;
    mov.u32 r17, %nclusterid.x; st.shared.v4.b32 [r2], {r14, r15, r16, r17};
    mov.u32 r14, %cluster_nctaid.x; mov.u32 r15, %cluster_ctaid.y; mov.u32 r16, %nctaid.x;
    mov.u32 r17, %ntid.x; st.shared.v4.b32 [r2+2048], {r14, r15, r16, r17};"""
    yield _case("registers of a cluster", registers)


def _stores() -> Iterator[Case]:
    remote = f"add.u32 r14, r12, {BARRIER}; ld.shared.v4.b32 {{r15, r16, r17, r18}}, [r2];"
    for form, value, size in (
        ("b32", "r15", 4),
        ("b64", "d20", 8),
        ("v2.b32", "{r15, r16}", 8),
        ("v4.b32", "{r15, r16, r17, r18}", 16),
    ):
        body = f"{remote} mov.b64 d20, {{r15, r16}}; {_expect(size * THREADS)}"
        yield _case(f"st.async {form}", f"{body} st.{_ASYNC}.{form} [r13], {value}, [r14];{WAIT}")
    for operation, kind in REDUCTIONS:
        if kind not in ("u32", "s32", "u64", "b32") or (operation != "add" and kind == "u64"):
            continue
        wide = kind == "u64"
        body = f"{remote} mov.b64 d20, {{r15, r16}}; {_expect((8 if wide else 4) * THREADS)}"
        mnemonic = f"red.{_RELAXED}.{operation}.{kind}"
        line = f"{mnemonic} [r13], {'d20' if wide else 'r15'}, [r14];"
        yield _case(f"red.async {operation} {kind}", body + line + WAIT)


def _copies() -> Iterator[Case]:
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    body = f"""
    add.u32 r14, r12, {BARRIER}; add.u32 r15, r12, 8192;
    {_expect(4096)}
    @p1 {copy} [r15], [r1], 4096, [r14];{WAIT}"""
    yield _case("cp.async.bulk to another CTA", body)
    for operation, kind in (("add", "u32"), ("max", "s32"), ("xor", "b32"), ("inc", "u32")):
        mnemonic = (
            "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
            f".{operation}.{kind}"
        )
        yield _case(f"{mnemonic}", body.replace(copy, mnemonic))
    arrive = f"""
    add.u32 r14, r12, {BARRIER};
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r14];{WAIT}"""
    yield _case("mbarrier.arrive of another CTA", arrive, arrivals=THREADS)


def _multicasts() -> Iterator[Case]:
    for mask in (0b1111, 0b0101, 0b1000):
        # All blocks listed get the box; the others' barriers are completed by hand.
        boxes = Boxes("float16", (64, 64), (16, 32), (5, 8), 64)
        own_copy = f"""
        mov.u32 r10, %cluster_ctarank;
        mov.b32 r11, {mask}; shr.u32 r11, r11, r10; and.b32 r11, r11, 1;
        mul.lo.u32 r11, r11, {boxes.size_bytes};
        @p1 mbarrier.arrive.expect_tx.shared.b64 _, [r1+{BARRIER}], r11;
        {CLUSTER_SYNC}
        setp.eq.and.u32 p3, r10, 1, p1;
        mov.b16 h1, {mask};
        """
        load = (
            "@p3 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            f".multicast::cluster [r1], [d8, {boxes.coordinates}], [r1+{BARRIER}], h1;"
        )
        yield staged(
            f"tensor multicast {mask:#06b}",
            own_copy + load + WAIT,
            partial(boxes.arguments),
            maps=[1],
            num_args=2,
            blocks=_BLOCKS,
            cluster=_CLUSTER,
        )


GROUPS = (
    Group(
        "clusters",
        "clusters: mapa, st.async, red.async, multicast",
        (*_addresses(), *_stores(), *_copies(), *_multicasts()),
    ),
)
