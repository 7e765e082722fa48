"""Loads selected for bulk copies, their remarks, and equal results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc import frontend
from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, tma
from aotc.ir.passes import Observer, Pipeline
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import TILE_TO_GPU, schedule_kernel
from aotc.schedule.tensor_maps.bulk_loads import bulk_loads
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.checks import check
from tests.support.descriptors import PRELUDE
from tests.support.row_kernels import COPIED, MASKED, NOT_COPIED, NUM_ROWS, Rows, lengths

BARRIERS_COME_WITH = "insert_barriers"


def translated(
    folder: Path, case: Rows, num_stages: int | None = 3, *, warp_specialize: bool = False
) -> Kernel:
    """Return the tile IR of a kernel."""
    path = folder / "kernel.py"
    path.write_text(PRELUDE + case.source, encoding="utf-8")
    constants = {"BLOCK": case.block, "STAGES": num_stages, "WS": warp_specialize}
    return frontend.translate(str(path), "k", case.types, {**constants, **case.constants}).kernel


def bulked(kernel: Kernel, config: Config | None = None, target: str = "sm_90a") -> Schedule:
    """Run the passes before the one under test; return their schedule."""
    schedule = Schedule(TARGETS[target], config or Config())
    names = [pass_.__name__ for pass_ in TILE_TO_GPU.passes]
    first = TILE_TO_GPU.passes[: names.index("bulk_loads")]
    kernel.num_warps, kernel.num_ctas = schedule.config.num_warps, schedule.config.num_ctas
    Pipeline((*first, bulk_loads)).run(kernel, schedule)
    verify(kernel)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    return schedule


def remarks(schedule: Schedule) -> list[str]:
    """Return the remarks on bulk copies, without locations."""
    texts = [remark.partition(": ")[2] for remark in schedule.remarks]
    return [text for text in texts if "bulk copies" in text]


def num_fetches(kernel: Kernel) -> int:
    return sum(isinstance(op, tma.SyncBulkLoad) for op in kernel.walk())


def output(kernel: Kernel, case: Rows, n: int, *, check_races: bool = True) -> np.ndarray:
    """Interpret a kernel; return its output."""
    arrays = case.arguments(n)
    args = [arrays[info.name] for info in kernel.params]
    run(kernel, (NUM_ROWS,), args, check_races=check_races)
    return arrays["out_ptr"]


# ---- selected loads ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", COPIED.values(), ids=COPIED)
def test_it_computes_what_it_computed(tmp_path: Path, case: Rows) -> None:
    kernel = translated(tmp_path, case)
    schedule = bulked(kernel)
    size_bytes = case.block * {"i8": 1, "fp8e5": 1, "fp16": 2, "fp64": 8}.get(case.element, 4)
    assert remarks(schedule) == [f"x_ptr is loaded by bulk copies of {size_bytes} bytes"]
    assert num_fetches(kernel) == 1
    unit = case.block if case is COPIED["whole"] else 1
    for length in lengths(case.block):
        n = length - length % unit
        actual = output(kernel, case, n, check_races=False)  # barriers come later
        np.testing.assert_array_equal(actual, case.expected(case.arguments(n)))


@pytest.mark.parametrize(("case", "why"), NOT_COPIED.values(), ids=NOT_COPIED)
def test_what_is_no_run_is_loaded_as_before(tmp_path: Path, case: Rows, why: str) -> None:
    kernel = translated(tmp_path, case)
    schedule = bulked(kernel)
    assert num_fetches(kernel) == 0
    (remark,) = [text for text in remarks(schedule) if text.startswith("x_ptr")]
    assert remark.startswith(f"x_ptr is not loaded by bulk copies: {why}")


def test_a_condition_that_does_not_hold_copies_nothing(tmp_path: Path) -> None:
    case = COPIED["a condition"]
    kernel = translated(tmp_path, case)
    bulked(kernel)
    arrays = case.arguments(2 * case.block, m=1)
    run(kernel, (NUM_ROWS,), [arrays[info.name] for info in kernel.params], check_races=False)
    np.testing.assert_array_equal(arrays["out_ptr"][0], case.expected(arrays)[0])
    assert not arrays["out_ptr"][1].any()


WRITES = "tl.store(out_ptr + row * BLOCK + cols, x.to(tl.float32))"


def test_a_promise_lets_iterations_write(tmp_path: Path) -> None:
    promised = translated(tmp_path, Rows(MASKED.format("0.0"), turn=WRITES))
    bulked(promised)
    assert num_fetches(promised) == 1
    kernel = translated(
        tmp_path, Rows(MASKED.format("0.0"), turn=WRITES), None, warp_specialize=True
    )
    schedule = bulked(kernel)
    assert num_fetches(kernel) == 0
    assert remarks(schedule)[0].endswith(
        "may be the same memory; num_stages of tl.range promises that it is not"
    )


NESTED = """def k(x_ptr, out_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in tl.range(0, 4, num_stages=STAGES):
        total = tl.zeros([BLOCK], tl.int32)
        for start in tl.range(0, n, BLOCK, num_stages=2):
            total += tl.load(x_ptr + row * n + start + cols, mask=start + cols < n, other=0)
        tl.store(out_ptr + row * BLOCK + cols, total)
"""


@pytest.mark.parametrize(("num_stages", "copied"), [(None, 0), (2, 1)])
def test_every_loop_around_has_to_promise(
    tmp_path: Path, num_stages: int | None, copied: int
) -> None:
    """An outer iteration's stores precede the next one's loads."""
    path = tmp_path / "kernel.py"
    path.write_text(PRELUDE + NESTED, encoding="utf-8")
    signature = {"x_ptr": "*i32:16", "out_ptr": "*i32:16", "n": "i32:16"}
    constants = {"BLOCK": 512, "STAGES": num_stages}
    kernel = frontend.translate(str(path), "k", signature, constants).kernel
    bulked(kernel)
    assert num_fetches(kernel) == copied
    x = np.random.default_rng(3).integers(-99, 99, (4, 528), np.int32)
    out = np.zeros((4, 512), np.int32)
    run(kernel, (1,), [x, out, 528], check_races=False)
    expected = x[:, :512].copy()
    expected[:, :16] += x[:, 512:]
    np.testing.assert_array_equal(out, expected)


# ---- selected loops ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_stages", "asks", "config", "target", "copied"),
    [
        (3, False, Config(), "sm_90a", True),
        (3, False, Config(), "sm_100a", True),
        (3, False, Config(), "sm_120a", True),
        (None, True, Config(), "sm_90a", True),
        (None, False, Config(warp_specialize=True), "sm_90a", True),
        (3, False, Config(warp_specialize=False), "sm_90a", True),
        (None, False, Config(), "sm_90a", False),
        (1, True, Config(), "sm_90a", False),
        (None, True, Config(num_stages=1), "sm_90a", False),
        (3, True, Config(), "sm_80", False),
        (3, True, Config(num_ctas=2), "sm_90a", False),
    ],
)
def test_somebody_has_to_ask(
    tmp_path: Path, num_stages: int | None, asks: bool, config: Config, target: str, copied: bool
) -> None:  # fmt: skip
    kernel = translated(tmp_path, COPIED["masked"], num_stages, warp_specialize=asks)
    schedule = bulked(kernel, config, target)
    assert num_fetches(kernel) == int(copied)
    assert len(remarks(schedule)) == int(copied)


@pytest.mark.parametrize(("block", "copied"), [(512, False), (1024, True)])
def test_small_tiles_are_not_worth_it(tmp_path: Path, block: int, copied: bool) -> None:
    kernel = translated(tmp_path, Rows(MASKED.format("0.0"), block=block))
    bulked(kernel)
    assert num_fetches(kernel) == int(copied)


def test_products_have_their_operands_copied_otherwise(tmp_path: Path) -> None:
    product = "tl.sum(tl.dot(tl.reshape(x, [32, 32]), tl.reshape(x, [32, 32])))"
    case = Rows("tl.load(x_ptr + start + cols)", turn=f"total += {product}")
    kernel = translated(tmp_path, case)
    bulked(kernel)
    assert num_fetches(kernel) == 0


def test_rings_of_all_loops_have_room(tmp_path: Path) -> None:
    """The second of two loads finds shared memory taken."""
    case = Rows(
        MASKED.format("0.0"),
        turn="total += tl.load(x_ptr + start + cols, mask=start + cols < n, other=1.0)",
        block=16384,
    )
    kernel = translated(tmp_path, case, 4)
    schedule = bulked(kernel, Config(num_warps=8))
    assert num_fetches(kernel) == 1
    assert "no room for 4 stages of 32768 bytes" in remarks(schedule)[1]
    schedule_kernel(translated(tmp_path, case, 4), Schedule(TARGETS["sm_90a"], Config(8)))


# ---- the text ---------------------------------------------------------------------------------

TEXT = """\
// CHECK: [[AT:%.*]] = arith.addptr(%x,
// CHECK: [[LEFT:%.*]] = arith.min({{%.*}}, {{%.*}}) : i64
// CHECK: [[SOME:%.*]] = arith.max([[LEFT]], {{%.*}}) : i64
// CHECK: [[ROWS:%.*]] = arith.cast([[SOME]]) {dtype = i32} : i32
// CHECK: [[BYTES:%.*]] = arith.mul([[ROWS]], {{%.*}}) : i32
// CHECK: [[BUFFER:%.*]] = gpu.shared_alloc {element = fp32, shape = [1024], layout = #1} :
// CHECK: gpu.sync_bulk_load([[AT]], [[BUFFER]], [[BYTES]]) {eviction = "evict_last"}
// CHECK: %v = gpu.masked_shared_load([[BUFFER]], %inside, _) {layout = #0, vector = 4} :
// CHECK-NOT: gpu.load
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [1024]>
"""


def test_the_length_is_clamped(tmp_path: Path) -> None:
    layout = (
        "#ll<register=[[1],[2],[512]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [1024]>"
    )
    text = TEXT.splitlines()[:-1]
    source = f"""\
#0 = {layout}
kernel @k(%x: *fp32 {{divisibility = 16}}, %n: i32 {{divisibility = 16}}) {{num_warps = 4}} {{
  %zero = arith.constant {{value = 0, type = i32}} : i32
  %step = arith.constant {{value = 1024, type = i32}} : i32
  %cols = tile.arange {{start = 0, end = 1024, layout = #0}} : tile<1024xi32, #0>
  %all = tile.splat(%x) {{shape = [1024], layout = #0}} : tile<1024x*fp32, #0>
  %end = tile.splat(%n) {{shape = [1024], layout = #0}} : tile<1024xi32, #0>
  scf.for(%zero, %n, %step) {{num_stages = 2}} (%i: i32) {{
    %from = tile.splat(%i) {{shape = [1024], layout = #0}} : tile<1024xi32, #0>
    %at = arith.add(%from, %cols) : tile<1024xi32, #0>
    %inside = arith.compare(%at, %end) {{predicate = "lt"}} : tile<1024xi1, #0>
    %ptr = arith.addptr(%all, %at) : tile<1024x*fp32, #0>
    %v = gpu.load(%ptr, %inside, _) {{vector = 4, eviction = "evict_last"}} : tile<1024xfp32, #0>
    gpu.store(%ptr, %v, %inside) {{vector = 4}}
    scf.yield()
  }}
  scf.return
}}
"""
    kernel = parse_kernel(source.replace("gpu.store(%ptr, %v, %inside) {vector = 4}", ""))
    bulk_loads(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    check("\n".join(text), print_kernel(kernel))
    written = parse_kernel(source)
    bulk_loads(written, Schedule(TARGETS["sm_90a"]))
    assert num_fetches(written) == 0


# ---- code after the loop ----------------------------------------------------------------------


@pytest.mark.parametrize("warp_specialize", [None, False])
@pytest.mark.parametrize("name", ["other", "carried", "rows"])
def test_every_pass_keeps_what_it_computes(
    tmp_path: Path, name: str, warp_specialize: bool | None
) -> None:
    case = COPIED[name]
    n = 2 * case.block + 64
    expected, has_barriers = case.expected(case.arguments(n)), True

    def compare(after: str, kernel: Kernel) -> None:
        nonlocal has_barriers
        planned = after == "plan_conversions"
        has_barriers = after == BARRIERS_COME_WITH or (has_barriers and not planned)
        actual = output(kernel, case, n, check_races=has_barriers)
        np.testing.assert_array_equal(actual, expected, f"after {after}")

    config = Config(4, warp_specialize=warp_specialize)
    schedule = Schedule(TARGETS["sm_90a"], config)
    observer = Observer(verify_each=True, on_pass=compare)
    kernel = schedule_kernel(translated(tmp_path, case), schedule, observer)
    assert any(isinstance(op, tma.BulkLoad) for op in kernel.walk())
    assert kernel.producer_warps == (0 if warp_specialize is False else 1)
    assert any(isinstance(op, gpu.MaskedSharedLoad) for op in kernel.walk())


# ---- rows beside tensor loads -----------------------------------------------------------------

BESIDE = """def k(x, y, row_ptr, out_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    rows = tl.arange(0, 64)
    acc = tl.zeros([64, 64], tl.float32)
    a = x.load([0, 0])
    for start in tl.range(0, n, 64, num_stages=STAGES):
        row = tl.load(row_ptr + start + rows{mask})
        p = tl.dot(a, x.load([start, 0]).T) * (row * 0.5)[None, :]
        acc = tl.dot(p.to(tl.bfloat16), y.load([start, 0]), acc)
    tl.store(out_ptr + rows[:, None] * 64 + rows, acc)
"""
BESIDE_TYPES = {
    **dict.fromkeys(("x", "y"), "tensordesc<bf16[64,64]>"),
    **dict.fromkeys(("row_ptr", "out_ptr"), "*fp32:16"),
    "n": "i32",
}


@pytest.mark.parametrize(
    ("mask", "types", "num_stages", "count"),
    [
        pytest.param("", {}, 2, 1, id="a row"),
        pytest.param(", mask=start + rows < n, other=0.0", {}, 2, 0, id="masked"),
        pytest.param("", {"row_ptr": "*fp32"}, 2, 0, id="not aligned"),
        pytest.param("", {}, 1, 0, id="one stage"),
    ],
)
def test_a_row_beside_tensor_loads_is_copied(
    tmp_path: Path, mask: str, types: dict[str, str], num_stages: int, count: int
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(PRELUDE + BESIDE.format(mask=mask), encoding="utf-8")
    constants = {"BLOCK": 64, "STAGES": num_stages}
    kernel = frontend.translate(str(path), "k", BESIDE_TYPES | types, constants).kernel
    bulked(kernel)
    assert num_fetches(kernel) == count
    loads = [op for op in kernel.walk() if isinstance(op, gpu.Load)]
    assert len(loads) == 1 - count
