"""Instructions for clusters, and for grids in a stream: programmatic dependent launch.

The latter are LLVM intrinsics assumed to access all memory, so no access moves across them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.backend.emitter import Emitter
from aotc.backend.nvvm_issue import NEW_LINE
from aotc.backend.nvvm_memory import Access, Address


def cta_rank(emit: Emitter) -> str:
    """Return the index of this CTA in its cluster, an i32.

    Source: PTX ISA 10.17 `%cluster_ctarank`.
    """
    name = "llvm.nvvm.read.ptx.sreg.cluster.ctarank"
    return emit.thread_value(emit.call_text("i32", name, []))


def cluster_barrier(emit: Emitter) -> None:
    """Wait for all threads of the cluster; warps need not be converged.

    Source: PTX ISA 9.7.13.3 `barrier.cluster`.
    """
    emit.effect(emit.call_text("void", "llvm.nvvm.barrier.cluster.arrive", []))
    cluster_wait(emit)


def relaxed_cluster_arrive(emit: Emitter) -> None:
    """Arrive at the barrier of the cluster, without waiting for accesses of the thread.

    Waiting threads see its mbarriers, fenced after their initialization, and nothing else.

    Source: PTX ISA 9.7.13.3 `barrier.cluster`.
    """
    emit.effect(emit.call_text("void", "llvm.nvvm.barrier.cluster.arrive.relaxed", []))


def cluster_wait(emit: Emitter) -> None:
    """Wait until all threads of the cluster have arrived.

    Source: PTX ISA 9.7.13.3 `barrier.cluster`.
    """
    emit.effect(emit.call_text("void", "llvm.nvvm.barrier.cluster.wait", []))


def store_to_cta(
    emit: Emitter,
    address: Address,
    cta: str,
    value: str,
    bits: int,
    predicate: str,
    barrier: Address | None = None,
) -> None:
    """Store a word, an integer of 32 or 64 bits, to an address of another CTA of the cluster.

    With a `barrier` it is asynchronous: its bytes complete at this mbarrier of the other CTA.

    Source: PTX ISA 9.7.9.11 `st`, 9.7.9.12 `st.async`, 9.7.9.23 `mapa`.
    """
    operands = {"there": address} if barrier is None else {"there": address, "barrier": barrier}
    other, word, condition = (f"${len(operands) + index}" for index in range(3))
    mapped = " ".join(
        f"@{condition} mapa.shared::cluster.u32 {name}, ${index}, {other};"
        for index, name in enumerate(operands)
    )
    store, completes = f"st.shared::cluster.b{bits}", ""
    if barrier is not None:
        store = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b{bits}"
        completes = f", [barrier+{barrier.offset_bytes}]"
    text = (
        f"{{ .reg .b32 {', '.join(operands)}; {mapped} "
        f"@{condition} {store} [there+{address.offset_bytes}], {word}{completes}; }}"
    )
    bases = ", ".join(f"i32 {operand.base}" for operand in operands.values())
    arguments = f"{bases}, i32 {cta}, i{bits} {value}, i1 {predicate}"
    constraints = ",".join(["r"] * (len(operands) + 1) + ["r" if bits == 32 else "l", "b"])
    emit.effect(f'call void asm sideeffect "{text}", "{constraints}"({arguments})')


def in_cta(emit: Emitter, address: Address, cta: str) -> Address:
    """Return the same place in the shared memory of the CTA of rank `cta`, an i32 operand.

    Source: PTX ISA 9.7.9.23 `mapa`.
    """
    text = 'asm "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"'
    base = emit.value(f"call i32 {text}(i32 {address.base}, i32 {cta})")
    return replace(address, space="shared::cluster", base=base)


def send(
    emit: Emitter, address: Address, access: Access, words: Sequence[str], barrier: Address
) -> None:
    """Store words to another CTA of the cluster, asynchronously; their bytes complete at a mbarrier there.

    Source: PTX ISA 9.7.9.12 `st.async`.
    """
    letter, count = ("l" if access.bits == 64 else "r"), len(words)
    vector = f".v{count}" if count > 1 else ""
    shown = ", ".join(f"${index + 2}" for index in range(count))
    text = (
        f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.b{access.bits} "
        f"[$0+{address.offset_bytes}], {{{shown}}}, [$1+{barrier.offset_bytes}];"
    )
    constraints = ["r", "r", *[letter] * count]
    arguments = [f"i32 {address.base}", f"i32 {barrier.base}"]
    arguments += [f"i{access.bits} {word}" for word in words]
    if access.predicate:
        text = f"@${len(constraints)} {text}"
        constraints.append("b")
        arguments.append(f"i1 {access.predicate}")
    asm = f'"{text}", "{",".join(constraints)}"({", ".join(arguments)})'
    emit.effect(f"call void asm sideeffect {asm}")


def count_in(emit: Emitter, counter: Address, predicate: str) -> None:
    """Count the CTA in at a grid barrier and wait for all others, if the predicate holds.

    The thread's own accesses, and all accesses it has seen, are ordered before later ones of the
    threads it waits for.

    Source: PTX ISA 9.7.13.5 `atom`, 9.7.13.4 `fence`, 10.6 `%ctaid`.
    """
    lines = (
        "{ .reg .pred more; .reg .b32 x, y, count, old, now;",
        "@!$1 bra done;",
        "mov.u32 count, %nctaid.x; mov.u32 y, %nctaid.y; mul.lo.u32 count, count, y;",
        "mov.u32 y, %nctaid.z; mul.lo.u32 count, count, y;",
        "mov.u32 x, %ctaid.x; mov.u32 y, %ctaid.y; or.b32 x, x, y;",
        "mov.u32 y, %ctaid.z; or.b32 x, x, y; setp.eq.u32 more, x, 0;",
        "sub.u32 count, 0x80000001, count; selp.b32 count, count, 1, more;",
        "fence.acq_rel.gpu;",
        f"atom.relaxed.gpu.global.add.u32 old, [$0+{counter.offset_bytes}], count;",
        f"again: ld.relaxed.gpu.global.u32 now, [$0+{counter.offset_bytes}];",
        "xor.b32 now, now, old; setp.ge.s32 more, now, 0; @more bra again;",
        "fence.acq_rel.gpu;",
        "done: }",
    )
    arguments = f"ptr addrspace(1) {counter.base}, i1 {predicate}"
    text = NEW_LINE.join(lines)
    emit.effect(f'call void asm sideeffect "{text}", "l,b"({arguments}) #0')


def wait_for_grids(emit: Emitter) -> None:
    """Wait until the grids this one depends on have ended and their writes are visible.

    Source: PTX ISA 9.7.13.13 `griddepcontrol`.
    """
    emit.effect(emit.call_text("void", "llvm.nvvm.griddepcontrol.wait", []))


def launch_dependents(emit: Emitter) -> None:
    """Let dependent grids start once all CTAs of this one have executed this or ended.

    Source: PTX ISA 9.7.13.13 `griddepcontrol`.
    """
    emit.effect(emit.call_text("void", "llvm.nvvm.griddepcontrol.launch.dependents", []))
