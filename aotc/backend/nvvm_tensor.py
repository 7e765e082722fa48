"""Instructions of tensor copies, mbarriers and the async proxy.

Sections are of the PTX ISA manual, version 8.8. Instructions issued by one thread are collected in
a branch of `nvvm_issue`; a tensor map is given by its generic address.

Invariant: everything here is `sideeffect`, so LLVM keeps the order in which rules emit it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from aotc.backend.emitter import Emitter
from aotc.backend.nvvm_issue import NEW_LINE, Issue, Issuer, issue
from aotc.backend.nvvm_memory import Address
from aotc.ir.dialects.descriptor import BITWISE, ReduceKind
from aotc.ir.types import BF16, ScalarType


@dataclass(frozen=True, slots=True)
class TensorCopy:
    """One tensor copy: the box of a tensor map at `coords`, i32 operands, innermost first.

    With a `condition`, a warp-uniform i1, it is issued only where the condition is true.
    """

    tensor: str
    coords: Sequence[str]
    buffer: Address
    condition: str = ""


def _box(asm: Issue, copy: TensorCopy) -> str:
    tensor = asm.operand("l", "ptr", copy.tensor)
    coords = ", ".join(asm.operand("r", "i32", coord) for coord in copy.coords)
    return f"[{tensor}, {{{coords}}}]"


# ---- copies -----------------------------------------------------------------------------------


def tensor_load(
    emit: Emitter,
    copy: TensorCopy,
    barrier: Address,
    policy: str,
    issuer: Issuer,
    ctas: int = 0,
) -> None:
    """Start to copy a box to shared memory; its bytes complete at an mbarrier.

    `policy` is the operand of an L2 cache policy, or "". With a bit mask `ctas`, the box is
    multicast to these CTAs of the cluster, and its bytes complete at the mbarrier of each.

    Source: PTX ISA 9.7.9.27.5.2 `cp.async.bulk.tensor`.
    """
    asm, hint = issue(emit, issuer), ".L2::cache_hint" if policy else ""
    text = f"cp.async.bulk.tensor.{len(copy.coords)}d.shared::cluster.global.tile"
    text += f".mbarrier::complete_tx::bytes{'.multicast::cluster' if ctas else ''}"
    text += f"{hint} {asm.address(copy.buffer)}, {_box(asm, copy)}"
    text += f", {asm.address(barrier)}"
    if ctas:
        text += f", {asm.operand('h', 'i16', str(ctas))}"
    if policy:
        text += f", {asm.operand('l', 'i64', policy)}"
    asm.add(f"{text};", copy.condition)


def bulk_load(
    emit: Emitter,
    source: Address,
    target: Address,
    size_bytes: str,
    barrier: Address,
    policy: str,
    issuer: Issuer,
    condition: str,
) -> None:
    """Start to copy `size_bytes`, an i32, from global to shared memory; else as `tensor_load`.

    Source: PTX ISA 9.7.9.25.4.1 `cp.async.bulk`.
    """
    asm, hint = issue(emit, issuer), ".L2::cache_hint" if policy else ""
    text = f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{hint} "
    text += f"{asm.address(target)}, {asm.global_address(source)}, "
    text += f"{asm.number(size_bytes)}, {asm.address(barrier)}"
    if policy:
        text += f", {asm.operand('l', 'i64', policy)}"
    asm.add(f"{text};", condition)


def bulk_store(
    emit: Emitter,
    target: Address,
    source: Address,
    size_bytes: str,
    issuer: Issuer,
    condition: str,
    *,
    reduction: str = "",
) -> None:
    """Start to copy `size_bytes`, an i32, from shared to global memory; else as `tensor_store`.

    `reduction` comes from `bulk_reduction`.

    Source: PTX ISA 9.7.9.25.4.1 `cp.async.bulk`, 9.7.9.25.4.2 `cp.reduce.async.bulk`.
    """
    asm = issue(emit, issuer)
    text = "cp.reduce.async" if reduction else "cp.async"
    text += f".bulk.global.shared::cta.bulk_group{reduction} "
    text += f"{asm.global_address(target)}, {asm.address(source)}, {asm.number(size_bytes)}"
    asm.add(f"{text};", condition)


def bulk_reduction(kind: ReduceKind | Literal[""], element: ScalarType) -> str:
    """Return the operation and the type of a bulk reduction, as in its mnemonic, "" for a copy.

    Source: PTX ISA 9.7.9.25.4.2 `cp.reduce.async.bulk`.
    """
    if not kind:
        return ""
    if kind in BITWISE:
        return f".{kind}.b{element.bits}"
    if element.is_float:
        keeps_subnormals = kind == "add" and element.bits == 16
        name = "bf16" if element == BF16 else f"f{element.bits}"
        return f".{kind}{'.noftz' if keeps_subnormals else ''}.{name}"
    return f".{kind}.{'s' if element.is_signed else 'u'}{element.bits}"


def tensor_store(emit: Emitter, copy: TensorCopy, issuer: Issuer, reduction: str = "") -> None:
    """Start to copy a box from shared memory, or to combine it by `reduction`: "add", "min", ….

    Source: PTX ISA 9.7.9.27.5.2 `cp.async.bulk.tensor`, 9.7.9.27.5.3 `cp.reduce.async.bulk.tensor`.
    """
    asm = issue(emit, issuer)
    text = "cp.reduce.async" if reduction else "cp.async"
    text += f".bulk.tensor.{len(copy.coords)}d.global.shared::cta"
    text += f".{reduction}.tile.bulk_group" if reduction else ".tile.bulk_group"
    asm.add(f"{text} {_box(asm, copy)}, {asm.address(copy.buffer)};", copy.condition)


def commit_stores(emit: Emitter, issuer: Issuer) -> None:
    """Close a commit group of the stores and reductions started since the last one.

    Source: PTX ISA 9.7.9.25.4.1 `cp.async.bulk.commit_group`.
    """
    issue(emit, issuer).add("cp.async.bulk.commit_group;")


def wait_stores(emit: Emitter, num_pending: int, *, written: bool) -> None:
    """Wait until all but the newest `num_pending` groups have read shared memory, or are written.

    Every thread executes it; threads without groups continue at once. A branch for the issuing
    thread would reconverge its warp where register pressure is highest, at the cost of spills.

    Source: PTX ISA 9.7.9.25.4.2 `cp.async.bulk.wait_group`.
    """
    read = "" if written else ".read"
    text = f"cp.async.bulk.wait_group{read} {num_pending};"
    emit.effect(f'call void asm sideeffect "{text}", ""()')


def proxy_fence(emit: Emitter, *, whole: bool) -> None:
    """Order this thread's generic-proxy accesses before later async-proxy accesses.

    Source: PTX ISA 9.7.13.4 `fence.proxy.async`.
    """
    space = "" if whole else ".shared::cta"
    emit.effect(f'call void asm sideeffect "fence.proxy.async{space};", ""()')


def tensor_prefetch(emit: Emitter, tensor: str, coords: Sequence[str], issuer: Issuer) -> None:
    """Start to bring a box to the L2 cache; `coords` are i32 operands, innermost first.

    Source: PTX ISA 9.7.9.27.5.4 `cp.async.bulk.prefetch.tensor`.
    """
    asm = issue(emit, issuer)
    where = f"[{asm.operand('l', 'ptr', tensor)}, "
    where += f"{{{', '.join(asm.operand('r', 'i32', coord) for coord in coords)}}}]"
    asm.add(f"cp.async.bulk.prefetch.tensor.{len(coords)}d.L2.global.tile {where};")


def prefetch_maps(emit: Emitter, tensors: Sequence[str], issuer: Issuer) -> None:
    """Prefetch the tensor maps among a kernel's parameters.

    Source: PTX ISA 9.7.9.16 `prefetch`.
    """
    asm = issue(emit, issuer)
    for tensor in tensors:
        asm.add(f"prefetch.tensormap [{asm.operand('l', 'ptr', tensor)}];")


# ---- maps in memory ---------------------------------------------------------------------------


def generic_address(emit: Emitter, pointer: str) -> str:
    """Convert a global address to a generic one.

    Source: PTX ISA 9.7.9.20 `cvta`.
    """
    return emit.value(f"addrspacecast ptr addrspace(1) {pointer} to ptr")


def acquire_map(emit: Emitter, tensor: str) -> None:
    """Make a tensor map in global memory, written by the host or a kernel, visible to copies.

    Source: PTX ISA 9.7.13.4 `fence.proxy.tensormap`.
    """
    text = "fence.proxy.tensormap::generic.acquire.sys [$0], 128;"
    emit.effect(f'call void asm sideeffect "{text}", "l"(ptr {tensor})')


def acquire_made_map(emit: Emitter, tensor: str, is_issuer: str) -> None:
    """Make a tensor map of another warp of the GPU visible to copies.

    Warps with a true `is_issuer`, a warp-uniform i1 or "", acquire it.

    Source: PTX ISA 9.7.13.4 `fence.proxy.tensormap`.
    """
    text = "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;"
    if not is_issuer:
        emit.effect(f'call void asm sideeffect "{text}", "l"(ptr {tensor})')
        return
    text = f"@$1 {text}"
    emit.effect(f'call void asm sideeffect "{text}", "l,b"(ptr {tensor}, i1 {is_issuer})')


@dataclass(frozen=True, slots=True)
class MapFields:
    """Fields of a tensor map: operands for the tensor, innermost axis first, and its box.

    `address` is a generic pointer, `extents` are i32 and `strides_bytes` i64, of all axes but the
    innermost. `element`, `swizzle` and `fill` are codes of `tensormap.replace`.
    """

    address: str
    extents: Sequence[str]
    strides_bytes: Sequence[str]
    box: Sequence[int]
    element: int
    swizzle: int
    fill: int

    def edits(self) -> Iterator[tuple[str, str, str]]:
        """Yield each field, its register's letter and type, and its value; first the rank."""
        yield "rank", "r", str(len(self.box) - 1)
        yield "global_address", "l", self.address
        yield "elemtype", "r", str(self.element)
        yield "swizzle_mode", "r", str(self.swizzle)
        yield "fill_mode", "r", str(self.fill)
        for axis, (extent, box) in enumerate(zip(self.extents, self.box, strict=True)):
            yield f"global_dim {axis}", "r", extent
            yield f"box_dim {axis}", "r", str(box)
            yield f"element_stride {axis}", "r", "1"
        for axis, stride in enumerate(self.strides_bytes):
            yield f"global_stride {axis}", "l", stride


_PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"


def make_map(
    emit: Emitter, fields: MapFields, template: Address, slot: str, lane: str, is_issuer: str
) -> None:
    """Make a tensor map in shared memory, publish it at `slot`, a generic address, and acquire it.

    Warps with a true `is_issuer`, a warp-uniform i1 or "", do so; `lane` is an i32. All threads of
    a warp clear, copy and fence; one of them edits.

    Source: PTX ISA 9.7.9.27.1.3 `tensormap.replace`, 9.7.13.16 `tensormap.cp_fenceproxy`, 9.7.13.4
    `fence.proxy.tensormap`.
    """
    operands: dict[tuple[str, str, str], int] = {}

    def operand(letter: str, kind: str, value: str) -> str:
        return f"${operands.setdefault((letter, kind, value), len(operands))}"

    template_operand = f"{operand('r', 'i32', template.base)}"
    lines = [
        "{",
        ".reg .pred one; .reg .b32 at;",
        *([f"@!{operand('b', 'i1', is_issuer)} bra.uni done;"] if is_issuer else []),
        f"shl.b32 at, {operand('r', 'i32', lane)}, 2;",
        f"add.u32 at, at, {template_operand};",
        f"st.shared.b32 [at+{template.offset_bytes}], 0;",
        "bar.warp.sync 0xffffffff;",
        f"setp.ne.u32 one, {operand('r', 'i32', lane)}, 0;",
        "@one bra others;",
    ]
    for field, letter, value in fields.edits():
        name, _, axis = field.partition(" ")
        kind = "i32" if letter == "r" else ("ptr" if name == "global_address" else "i64")
        is_constant = value.isdecimal() and letter == "r"
        text = value if is_constant else operand(letter, kind, value)
        bits = 32 if letter == "r" else 64
        ordinal = f"{axis}, " if axis else ""
        lines.append(
            f"tensormap.replace.tile.{name}.shared::cta.b1024.b{bits} "
            f"[{template_operand}+{template.offset_bytes}], {ordinal}{text};"
        )
    slot_operand = operand("l", "ptr", slot)
    lines += [
        "others: bar.warp.sync 0xffffffff;",
        f"{_PUBLISH} [{slot_operand}], [{template_operand}+{template.offset_bytes}], 128;",
        f"fence.proxy.tensormap::generic.acquire.gpu [{slot_operand}], 128;",
        *(["done:"] if is_issuer else []),
        "}",
    ]
    constraints = ",".join(letter for letter, _, _ in operands)
    arguments = ", ".join(f"{kind} {value}" for _, kind, value in operands)
    text = NEW_LINE.join(lines)
    emit.effect(f'call void asm sideeffect "{text}", "{constraints}"({arguments}) #0')


# ---- mbarriers --------------------------------------------------------------------------------


def mbarrier_init(
    emit: Emitter, barriers: Sequence[Address], count: int, issuer: Issuer, expected_bytes: int = 0
) -> None:
    """Initialize mbarriers for `count` arrivals per phase, visible to the async proxy.

    With `expected_bytes` the thread also arrives at each, and has its phase expect so many.

    Source: PTX ISA 9.7.13.15.9 `mbarrier.init`, 9.7.13.4 `fence.mbarrier_init`.
    """
    asm = issue(emit, issuer)
    for barrier in barriers:
        asm.add(f"mbarrier.init.shared::cta.b64 {asm.address(barrier)}, {count};")
        if expected_bytes:
            asm.add(f"{_ARRIVE_EXPECT} {asm.address(barrier)}, {expected_bytes};")
    emit.effect('call void asm sideeffect "fence.mbarrier_init.release.cluster;", ""()')


def mbarrier_expect(
    emit: Emitter, barrier: Address, num_bytes: str, issuer: Issuer, *, arrive: bool
) -> None:
    """Make an mbarrier's phase expect the bytes of copies, an i32, and optionally arrive.

    Source: PTX ISA 9.7.13.15.11 `mbarrier.expect_tx`, 9.7.13.15.13 `mbarrier.arrive`.
    """
    asm = issue(emit, issuer)
    opcode = _ARRIVE_EXPECT if arrive else _EXPECT
    barrier_operand = asm.address(barrier)
    asm.add(f"{opcode} {barrier_operand}, {asm.number(num_bytes)};")


def mbarrier_arrive(
    emit: Emitter,
    barrier: Address,
    issuer: Issuer,
    condition: str = "",
    num_ctas: int = 1,
    cta: str = "",
) -> None:
    """Arrive at an mbarrier, in the first `num_ctas` CTAs of the cluster.

    With a `cta`, an i32 operand, arrive in the CTA of this rank instead. With a `condition`, a
    warp-uniform i1, arrive only where it is true.

    Source: PTX ISA 9.7.13.15.13 `mbarrier.arrive`, 9.7.9.23 `mapa`.
    """
    asm = issue(emit, issuer)
    if num_ctas == 1 and not cta:
        asm.add(f"mbarrier.arrive.shared::cta.b64 _, {asm.address(barrier)};", condition)
        return
    base = asm.operand("r", "i32", barrier.base)
    ranks = [asm.operand("r", "i32", cta)] if cta else map(str, range(num_ctas))
    for rank in ranks:
        # Cluster scope would wait for all writes of the thread, and none of them matter.
        text = (
            f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, {base}, {rank}; "
            f"mbarrier.arrive.shared::cluster.b64 _, [there+{barrier.offset_bytes}]; }}"
        )
        asm.add(text, condition)


_ARRIVE_EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _,"
_EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"


def mbarrier_wait(emit: Emitter, barrier: Address, parity: str) -> None:
    """Wait until the phase with this parity, an i32 operand, has completed.

    Source: PTX ISA 9.7.13.15.16 `mbarrier.try_wait`.
    """
    text = (
        "{ .reg .pred done; again: "
        f"mbarrier.try_wait.parity.shared::cta.b64 done, [$0+{barrier.offset_bytes}], $1; "
        "@!done bra again; }"
    )
    arguments = f"i32 {barrier.base}, i32 {parity}"
    emit.effect(f'call void asm sideeffect "{text}", "r,r"({arguments}) #0')
