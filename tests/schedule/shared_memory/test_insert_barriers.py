"""Barriers stand where accesses meet, and nowhere else: stages of a buffer are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from aotc.ir.core import Op, Value, operand, result
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import gpu
from aotc.ir.effects import Effect, Resource, orders, reads, starts, writes
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import I32, Type
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import blocked, nvmma_shared, wgmma_accumulator, wgmma_operand_a
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers, rule_of
from aotc.target import TARGETS
from tests.support.checks import check
from tests.support.every_op import SAMPLES, ops_of, sample_kernel
from tests.support.own_ops import own_ops

_KERNEL = """
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
#1 = #ll<register=[[128],[256]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [512]>
#2 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64],[128],[256]] : [512]>
kernel @k(%x: *fp32 {{divisibility = 16}}, %n: i32) {{num_warps = 4}} {{
  %i = tile.arange {{start = 0, end = 512, layout = #0}} : tile<512xi32, #0>
  %xs = tile.splat(%x) {{shape = [512], layout = #0}} : tile<512x*fp32, #0>
  %at = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
  %c0 = arith.constant {{value = 0, type = i32}} : i32
  %c1 = arith.constant {{value = 1, type = i32}} : i32
{body}
  scf.return
}}
"""
_BUFFER = """
  %b = gpu.shared_alloc {{element = fp32, shape = [512], layout = #2, num_stages = {stages}}} : shared<512xfp32, #2, {stages}>
"""


def with_barriers(body: str) -> str:
    kernel = parse_kernel(_KERNEL.format(body=body))
    schedule = Schedule(TARGETS["sm_80"])
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    return print_kernel(kernel)


def pipeline(stages: int, ahead: int, first: int = 0) -> str:
    """Return a loop copying `ahead` stages ahead of the stage read, after the read."""
    early = "".join(
        f"""
  %e{k} = gpu.shared_stage(%b, %first) {{ahead = {k}}} : shared<512xfp32, #2>
  gpu.async_copy(%at, %e{k}) {{vector = 4}}
  gpu.async_commit"""
        for k in range(ahead)
    )
    return f"""{_BUFFER.format(stages=stages)}
  %first = arith.constant {{value = {first}, type = i32}} : i32
{early}
  %end = scf.for(%c0, %n, %c1, %first) (%k: i32, %index: i32) {{
    gpu.async_wait {{pending = {ahead - 1}}}
    %s = gpu.shared_stage(%b, %index) : shared<512xfp32, #2>
    %v = gpu.shared_load(%s) {{layout = #1, vector = 1}} : tile<512xfp32, #1>
    %t = gpu.shared_stage(%b, %index) {{ahead = {ahead}}} : shared<512xfp32, #2>
    gpu.async_copy(%at, %t) {{vector = 4}}
    gpu.async_commit
    %next = gpu.next_stage(%index) {{num_stages = {stages}}} : i32
    scf.yield(%next)
  }} : i32
  gpu.async_wait {{pending = 0}}
"""


@pytest.mark.parametrize(("stages", "first"), [(2, 0), (3, 0), (3, 2), (5, 1)])
def test_enough_stages_need_one_barrier(stages: int, first: int) -> None:
    text = with_barriers(pipeline(stages, stages - 1, first))
    assert text.count("gpu.barrier") == 1
    check("// CHECK: gpu.async_wait\n// CHECK: gpu.barrier\n// CHECK: gpu.shared_load", text)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_stage_too_few_needs_two(stages: int) -> None:
    """The copy goes to the stage read just before it."""
    text = with_barriers(pipeline(stages, stages).replace(f"ahead = {stages}}}", "ahead = 0}"))
    assert text.count("gpu.barrier") == 2


def test_a_slot_to_spare_needs_one() -> None:
    assert with_barriers(pipeline(4, 2)).count("gpu.barrier") == 1


def test_stores_alternate_between_two_slots() -> None:
    """Like tiles stored to shared memory from registers."""
    body = """{buffer}
  %end = scf.for(%c0, %n, %c1, %c0) (%k: i32, %index: i32) {{
    %v = gpu.load(%at) {{vector = 4}} : tile<512xfp32, #0>
    %s = gpu.shared_stage(%b, %index) : shared<512xfp32, #2>
    gpu.shared_store(%v, %s) {{vector = 4}}
    %w = gpu.shared_load(%s) {{layout = #1}} : tile<512xfp32, #1>
    %next = {next} : i32
    scf.yield(%next)
  }} : i32
"""
    turning = "gpu.next_stage(%index) {num_stages = 2}"
    text = with_barriers(body.format(buffer=_BUFFER.format(stages=2), next=turning))
    assert text.count("gpu.barrier") == 1
    # An unanalysable index may be any stage's.
    unknown = "arith.xor(%index, %k)"
    text = with_barriers(body.format(buffer=_BUFFER.format(stages=2), next=unknown))
    assert text.count("gpu.barrier") == 2


def test_a_barrier_that_only_what_came_before_a_loop_needs_stands_ahead_of_it() -> None:
    """The loop's own barrier orders its iterations; the previous run may have read any stage."""
    body = f"""{_BUFFER.format(stages=2)}
  scf.for(%c0, %n, %c1) (%program: i32) {{
    %end = scf.for(%c0, %n, %c1, %c0) (%k: i32, %index: i32) {{
      %v = gpu.load(%at) {{vector = 4}} : tile<512xfp32, #0>
      %s = gpu.shared_stage(%b, %index) : shared<512xfp32, #2>
      gpu.shared_store(%v, %s) {{vector = 4}}
      %w = gpu.shared_load(%s) {{layout = #1}} : tile<512xfp32, #1>
      %next = gpu.next_stage(%index) {{num_stages = 2}} : i32
      scf.yield(%next)
    }} : i32
    scf.yield()
  }}
"""
    text = with_barriers(body)
    assert text.count("gpu.barrier") == 2
    outer, inner = "scf.for gpu.barrier", "scf.for gpu.shared_store gpu.barrier gpu.shared_load"
    check("\n".join(f"// CHECK: {op}" for op in f"{outer} {inner}".split()), text)


def test_bytes_are_used_again_only_after_all_copies_have_landed() -> None:
    body = (
        pipeline(3, 2)
        + """
  %c = gpu.shared_alloc {element = fp32, shape = [512], layout = #2} : shared<512xfp32, #2>
  %v2 = gpu.load(%at) {vector = 4} : tile<512xfp32, #0>
  gpu.shared_store(%v2, %c) {vector = 4}
  %w2 = gpu.shared_load(%c) {layout = #1} : tile<512xfp32, #1>
"""
    )
    text = with_barriers(body)
    assert "shared_bytes = 6144" in text
    after = text[text.index("pending = 0") :]
    check("// CHECK: gpu.barrier\n// CHECK: gpu.shared_store", after)
    # While copies may be in flight, their bytes are taken.
    late = body.replace("  gpu.async_wait {pending = 0}\n", "") + "  gpu.async_wait {pending = 0}\n"
    assert "shared_bytes = 8192" in with_barriers(late)


# ---- products by warpgroups -------------------------------------------------------------------


def products(first: str, *, stages: int = 3, ahead: int = 1, pending: int = 1) -> str:
    """Return a loop multiplying its copies; `first` is an op before its wait for copies."""
    acc_layout, stored = wgmma_accumulator((64, 16), (1, 1)), nvmma_shared((16, 16), 16, 32)
    a = wgmma_operand_a((64, 16), (1, 1), 16)
    layout = blocked((16, 16), (1, 2), (4, 8), (4, 1), (1, 0))
    return f"""
#10 = {acc_layout.to_text()}
#11 = {stored.to_text()}
#12 = {a.to_text()}
#13 = {layout.to_text()}
kernel @k(%x: *bf16 {{divisibility = 16}}, %n: i32) {{num_warps = 4}} {{
  %xs = tile.splat(%x) {{shape = [16, 16], layout = #13}} : tile<16x16x*bf16, #13>
  %v = arith.constant {{value = 1.0, type = tile<16x16xbf16, #13>}} : tile<16x16xbf16, #13>
  %a = arith.constant {{value = 1.0, type = tile<64x16xbf16, #12>}} : tile<64x16xbf16, #12>
  %c0 = arith.constant {{value = 0, type = i32}} : i32
  %c1 = arith.constant {{value = 1, type = i32}} : i32
  %acc0 = arith.constant {{value = 0.0, type = tile<64x16xfp32, #10>}} : tile<64x16xfp32, #10>
  %b = gpu.shared_alloc {{element = bf16, shape = [16, 16], layout = #11, num_stages = {stages}}} : shared<16x16xbf16, #11, {stages}>
  %p, %end = scf.for(%c0, %n, %c1, %acc0, %c0) (%k: i32, %acc: tile<64x16xfp32, #10>, %index: i32) {{
    %s = gpu.shared_stage(%b, %index) : shared<16x16xbf16, #11>
    {first}
    gpu.async_wait {{pending = 0}}
    %q = gpu.wgmma(%a, %s, %acc) : tile<64x16xfp32, #10>
    %t = gpu.shared_stage(%b, %index) {{ahead = {ahead}}} : shared<16x16xbf16, #11>
    gpu.async_copy(%xs, %t) {{vector = 2}}
    gpu.async_commit
    %w = gpu.wgmma_wait(%q) {{pending = {pending}}} : tile<64x16xfp32, #10>
    %next = gpu.next_stage(%index) {{num_stages = {stages}}} : i32
    scf.yield(%w, %next)
  }} : tile<64x16xfp32, #10>, i32
  %d = gpu.wgmma_wait(%p) : tile<64x16xfp32, #10>
  gpu.async_wait {{pending = 0}}
  scf.return
}}
"""


def products_with_barriers(text: str) -> str:
    kernel = parse_kernel(text)
    schedule = Schedule(TARGETS["sm_90a"])
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    return print_kernel(kernel)


def test_writers_fence_before_the_barrier_ahead_of_a_product() -> None:
    text = products_with_barriers(products(""))
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert (loop.count("gpu.barrier"), loop.count("gpu.proxy_fence")) == (1, 1)
    check(
        "// CHECK: gpu.async_wait\n// CHECK-NEXT: gpu.proxy_fence\n"
        "// CHECK-NEXT: gpu.barrier\n// CHECK-NEXT: gpu.wgmma(",
        loop,
    )


def test_stores_are_fenced_too() -> None:
    """Two stages: the store goes to the stage read by the product before last."""
    text = products("gpu.shared_store(%v, %s) {vector = 2}", stages=2)
    lines = [line for line in text.splitlines() if "async" not in line and "%t =" not in line]
    text = products_with_barriers("\n".join(lines))
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    check(
        "// CHECK: gpu.barrier\n// CHECK: gpu.shared_store\n// CHECK: gpu.proxy_fence\n"
        "// CHECK-NEXT: gpu.barrier\n// CHECK-NEXT: gpu.wgmma(",
        loop,
    )
    assert loop.count("gpu.barrier") == 2


@pytest.mark.parametrize(("stages", "ahead"), [(2, 1), (3, 2), (3, 0), (1, 0)])
def test_nobody_writes_what_a_product_in_flight_reads(stages: int, ahead: int) -> None:
    with pytest.raises(IRError, match="writes what a dot in flight reads"):
        products_with_barriers(products("", stages=stages, ahead=ahead))


def test_a_product_that_was_waited_for_frees_its_slot_at_the_barrier() -> None:
    text = products("", stages=2, ahead=1, pending=0)
    assert products_with_barriers(text).count("gpu.barrier") == 1


def test_a_buffer_lives_until_the_product_that_reads_it_is_done() -> None:
    """The bytes of the ring are not given away between the loop and the last wait."""
    drain = "  %d = gpu.wgmma_wait(%p)"
    other = """
  %c = gpu.shared_alloc {element = bf16, shape = [16, 16], layout = #11, num_stages = 3} : shared<16x16xbf16, #11, 3>
  %one = gpu.shared_stage(%c, %c0) : shared<16x16xbf16, #11>
  gpu.shared_store(%v, %one) {vector = 2}
"""
    after = "  gpu.async_wait {pending = 0}\n  scf.return"
    text = products("")
    assert after in text
    wait, late = "gpu.async_wait {pending = 0}\n", text.replace(after, f"{other}  scf.return")
    late = late.replace(drain, f"  {wait}{drain}")
    assert "shared_bytes = 1536" in products_with_barriers(late)
    early = text.replace(after, "  scf.return").replace(drain, f"  {wait}{other}{drain}")
    assert "shared_bytes = 3072" in products_with_barriers(early)


def test_counting_stands_between_barriers() -> None:
    text = with_barriers("""
  %b = gpu.shared_alloc {element = i32, shape = [512], layout = #2} : shared<512xi32, #2>
  gpu.shared_store(%i, %b) {vector = 1}
  gpu.shared_count(%b, %i, _)
  %v = gpu.shared_load(%b) {layout = #1, vector = 1} : tile<512xi32, #1>
""")
    assert text.count("gpu.barrier") == 2
    check(
        "// CHECK: gpu.shared_store\n// CHECK-NEXT: gpu.barrier\n// CHECK-NEXT: gpu.shared_count\n"
        "// CHECK-NEXT: gpu.barrier\n// CHECK-NEXT: {{.*}} = gpu.shared_load",
        text,
    )


def test_a_gather_reads_what_was_stored_and_is_read_before_the_next_store() -> None:
    text = with_barriers("""
  %b = gpu.shared_alloc {element = i32, shape = [512], layout = #2} : shared<512xi32, #2>
  gpu.shared_store(%i, %b) {vector = 1}
  %v = gpu.shared_gather(%b, %i) {axis = 0} : tile<512xi32, #0>
  %w = gpu.shared_gather(%b, %v) {axis = 0} : tile<512xi32, #0>
  gpu.shared_store(%w, %b) {vector = 1}
""")
    assert text.count("gpu.barrier") == 2
    check(
        "// CHECK: gpu.shared_store\n// CHECK-NEXT: gpu.barrier\n"
        "// CHECK-NEXT: {{.*}} = gpu.shared_gather\n// CHECK-NEXT: {{.*}} = gpu.shared_gather\n"
        "// CHECK-NEXT: gpu.barrier\n// CHECK-NEXT: gpu.shared_store",
        text,
    )


# ---- ops unknown to this pass -----------------------------------------------------------------


def with_op(make: Callable[[Value], Op]) -> str:
    """Return a kernel with a store to a buffer, then an op on it."""
    body = (
        _BUFFER.format(stages=1)
        + """
  %v = arith.constant {value = 1.0, type = tile<512xfp32, #0>} : tile<512xfp32, #0>
  gpu.shared_store(%v, %b) {vector = 2}
"""
    )
    kernel = parse_kernel(_KERNEL.format(body=body))
    store = next(op for op in kernel.walk() if isinstance(op, gpu.SharedStore))
    Builder.after_op(store)(make(store.buffer))
    schedule = Schedule(TARGETS["sm_90a"])
    allocate_shared(kernel, schedule)
    insert_barriers(kernel, schedule)
    return print_kernel(kernel)


def test_a_new_op_is_ordered_by_what_it_declares() -> None:
    with own_ops():

        class Flip(Op, opcode="test.flip", effects=(reads(Resource.SHARED, of="source"),)):
            source: Value = operand()

        check(
            """
            // CHECK: gpu.shared_store
            // CHECK-NEXT: gpu.barrier
            // CHECK-NEXT: test.flip
            """,
            with_op(Flip),
        )

        class Twice(
            Op,
            opcode="test.twice",
            effects=(
                reads(Resource.SHARED, of="buffer", proxy="async"),
                starts(Resource.STORES),
            ),
        ):
            buffer: Value = operand()

        check(
            """
            // CHECK: gpu.shared_store
            // CHECK-NEXT: gpu.proxy_fence
            // CHECK-NEXT: gpu.barrier
            // CHECK-NEXT: test.twice
            """,
            with_op(Twice),
        )


def test_a_new_op_that_reads_and_writes_is_ordered_as_a_write() -> None:
    with own_ops():

        class Bump(
            Op,
            opcode="test.bump",
            effects=(reads(Resource.SHARED, of="buffer"), writes(Resource.SHARED, of="buffer")),
        ):
            buffer: Value = operand()

        body = with_op(Bump)
        assert body.count("gpu.barrier") == 1


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        (
            (reads(Resource.SHARED, of="buffer", proxy="async"),),
            "no barrier is known .* read shared",
        ),
        ((writes(Resource.SHARED),), "no barrier is known .* write shared"),
        ((orders(Resource.SHARED),), "no barrier is known .* order shared"),
        ((writes(Resource.MBARRIER, of="buffer"),), "no barrier is known .* write mbarrier"),
        (None, "accesses a buffer, but declares no effect on it"),
        ((reads(Resource.GLOBAL),), "accesses a buffer, but declares no effect on it"),
    ],
)
def test_a_new_op_with_an_effect_that_nothing_orders_is_refused(
    effects: tuple[Effect, ...] | None, message: str
) -> None:
    with own_ops():

        class Peek(Op, opcode="test.peek", pure=effects is None, effects=effects):
            buffer: Value = operand()
            out: Value = result()

            def infer(self) -> Sequence[Type]:
                return (I32,)

        with pytest.raises(IRError, match=message):
            with_op(Peek)


def test_every_op_class_is_ordered_or_known_to_need_nothing() -> None:
    """No sample of an op that may reach the pass is refused."""
    loads = ("gpu.sync_tma_load", "gpu.sync_bulk_load")
    expanded = (*loads, "gpu.staged_tma_store", "gpu.staged_bulk_store")
    of_producers = ("gpu.beside",)  # mbarriers order those with consumers
    for opcode in SAMPLES:
        refused = [op for op in ops_of(sample_kernel(opcode), opcode) if _is_refused(op)]
        assert bool(refused) == (opcode in (*expanded, *of_producers)), opcode


def _is_refused(op: Op) -> bool:
    try:
        rule_of(op)
    except IRError:
        return True
    return False
