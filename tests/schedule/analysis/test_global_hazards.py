"""Hazards between global accesses of one program, across threads and iterations."""

from __future__ import annotations

import textwrap

import pytest

import aotc
from aotc.compiler import check_request, translate_request
from aotc.ir.core import Op
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.global_hazards import GlobalHazards
from aotc.schedule.analysis.tile_distance import Touch
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from tests.support.checks import check
from tests.support.repeated_kernels import repeated

_HEAD = "import triton\nimport triton.language as tl\n\n@triton.jit\n"
_SIGNATURE = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "n": "i32:16", "stride": "i32:16"}


def _barriers(tmp_path, body: str, **options: int) -> int:
    """Return the number of barriers in a kernel with this body."""
    path = tmp_path / "kernel.py"
    text = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(f"{_HEAD}def kernel(x_ptr, y_ptr, n, stride):\n{text}", encoding="utf-8")
    compiled_kernel = aotc.compile(f"{path}:kernel", signature=_SIGNATURE, **options)
    return compiled_kernel.asm["gpu"].count("gpu.barrier")


def test_what_was_stored_is_loaded_back_in_another_layout(tmp_path) -> None:
    """Like an attention kernel's running maximum: each iteration reads the last one's store."""
    body = """
        m, k = tl.arange(0, 64), tl.arange(0, 32)
        tl.store(y_ptr + m, tl.sum(tl.load(x_ptr + m[:, None] * 32 + k[None, :]), 1))
        back = tl.load(y_ptr + k * 2)
        tl.store(x_ptr + k, back)
    """
    assert _barriers(tmp_path, body, num_warps=2) == 1


def test_each_thread_finds_what_it_stored(tmp_path) -> None:
    body = """
        i = tl.arange(0, 1024)
        tl.store(x_ptr + i, tl.load(y_ptr + i))
        tl.store(y_ptr + i, tl.load(x_ptr + i) + 1.0)
    """
    assert _barriers(tmp_path, body) == 0


def test_threads_that_share_an_element_store_it_once_and_need_a_barrier(tmp_path) -> None:
    body = """
        i = tl.arange(0, 16)
        tl.store(x_ptr + i, tl.load(y_ptr + i))
        tl.store(y_ptr + i, tl.load(x_ptr + i) + 1.0)
    """
    assert _barriers(tmp_path, body) > 0


def test_a_scalar_is_read_by_all_before_one_thread_replaces_it(tmp_path) -> None:
    assert _barriers(tmp_path, "tl.store(x_ptr, tl.load(x_ptr) + 1.0)") == 1


@pytest.mark.parametrize("step", [1024, 2048])
def test_rows_in_place_are_apart_from_those_of_other_iterations(tmp_path, step: int) -> None:
    body = f"""
        i = tl.arange(0, 1024)
        for start in range(0, n, {step}):
            at = x_ptr + start + i
            tl.store(at, tl.load(at, mask=start + i < n) * 2.0, mask=start + i < n)
    """
    assert _barriers(tmp_path, body) == 0


def test_tiles_that_overlap_those_of_the_iteration_before_are_not(tmp_path) -> None:
    body = """
        i = tl.arange(0, 1024)
        for start in range(0, n, 512):
            at = x_ptr + start + i
            tl.store(at, tl.load(at, mask=start + i < n) * 2.0, mask=start + i < n)
    """
    assert _barriers(tmp_path, body) == 1


def test_rows_of_a_stride_are_apart(tmp_path) -> None:
    body = """
        i = tl.arange(0, 1024)
        for row in range(tl.program_id(0), n, tl.num_programs(0)):
            at = x_ptr + row * stride + i
            tl.store(at, tl.load(at) * 2.0)
    """
    assert _barriers(tmp_path, body) == 0


def test_a_shift_by_an_argument_may_be_any(tmp_path) -> None:
    body = """
        i = tl.arange(0, 1024)
        tl.store(y_ptr + i, tl.load(x_ptr + i))
        tl.store(x_ptr + i, tl.load(y_ptr + i + n))
    """
    assert _barriers(tmp_path, body) == 1


def test_masks_keep_halves_apart(tmp_path) -> None:
    body = """
        i = tl.arange(0, 1024)
        first = tl.load(x_ptr + i, mask=i < n)
        second = tl.load(x_ptr + n + i, mask=i < n)
        tl.store(x_ptr + i, first - second, mask=i < n)
        tl.store(x_ptr + n + i, first + second, mask=i < n)
    """
    assert _barriers(tmp_path, body) == 0


def test_indices_from_memory_may_be_any(tmp_path) -> None:
    body = """
        i = tl.arange(0, 1024)
        tl.store(x_ptr + i, 0.0)
        tl.store(x_ptr + tl.load(y_ptr + i).to(tl.int32), 1.0)
    """
    assert _barriers(tmp_path, body) == 1


def test_other_parameters_are_of_other_memory(tmp_path) -> None:
    body = """
        i, k = tl.arange(0, 1024), tl.arange(0, 32)
        for start in range(0, n, 1024):
            tl.store(y_ptr + i * 2, tl.load(x_ptr + start + i))
    """
    assert _barriers(tmp_path, body) == 0


@pytest.mark.parametrize(("size", "barriers"), [(16, 1), (64, 1), (128, 0)])
def test_a_kernel_runs_in_place_though_threads_share_elements(
    tmp_path, size: int, barriers: int
) -> None:
    """With 128 threads, one stores an element before a replica's thread may have loaded it."""
    body = f"""
        i = tl.program_id(0) * {size} + tl.arange(0, {size})
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2.0, mask=i < n)
    """
    assert _barriers(tmp_path, body) == barriers


def test_other_indices_are_not_in_place(tmp_path) -> None:
    body = """
        i = tl.arange(0, 16)
        tl.store(y_ptr + 15 - i, tl.load(x_ptr + i))
    """
    assert _barriers(tmp_path, body) == 0


@pytest.mark.parametrize(("index", "barriers"), [("i", 1), ("i + 1", 0), ("i * 2", 0)])
def test_a_sum_over_a_loop_is_in_place_of_its_first_tile(
    tmp_path, index: str, barriers: int
) -> None:
    body = f"""
        i = tl.arange(0, 16)
        total = tl.zeros((16,), tl.float32)
        for start in range(0, n, 16):
            total += tl.load(x_ptr + start + i)
        tl.store(y_ptr + {index}, total)
    """
    assert _barriers(tmp_path, body) == barriers


def test_blocks_of_a_cluster_that_hold_the_same_wait_for_each_other(tmp_path) -> None:
    """Ahead of the branch taken by the first CTA to store."""
    body = """
        i = tl.program_id(0) * 256 + tl.arange(0, 256)
        tl.store(y_ptr + i, tl.load(x_ptr + i) * 2.0)
    """
    path = tmp_path / "kernel.py"
    text = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(f"{_HEAD}def kernel(x_ptr, y_ptr, n, stride):\n{text}", encoding="utf-8")
    compiled_kernel = aotc.compile(
        f"{path}:kernel", signature=_SIGNATURE, target="sm_90a", num_warps=2, num_ctas=2
    )
    check(
        """
// CHECK: gpu.load
// CHECK: grid.cluster_barrier
// CHECK: scf.if
// CHECK: gpu.store
""",
        compiled_kernel.asm["gpu"],
    )


def test_pointers_from_memory_may_be_of_any(tmp_path) -> None:
    body = """
        i = tl.arange(0, 1024)
        table = y_ptr.to(tl.pointer_type(tl.int64))
        first = tl.load(table).to(tl.pointer_type(tl.float32))
        second = tl.load(table + 1).to(tl.pointer_type(tl.float32))
        tl.store(first + i * 2, 1.0)
        tl.store(x_ptr + i, tl.load(second + i))
    """
    assert _barriers(tmp_path, body) == 1


# ---- through descriptors ----------------------------------------------------------------------


def _with_descriptors(tmp_path, body: str, **options: int) -> str:
    """Return gpu IR of a kernel with descriptors of its pointers."""
    path = tmp_path / "kernel.py"
    text = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(f"{_HEAD}def kernel(x_ptr, y_ptr, n, stride):\n{text}", encoding="utf-8")
    return aotc.compile(f"{path}:kernel", signature=_SIGNATURE, map_pointers=True, **options).asm[
        "gpu"
    ]


def test_a_tensor_copy_reads_what_threads_stored(tmp_path) -> None:
    """After a fence of all memory by the storing threads, and a barrier."""
    body = """
        block = tl.make_tensor_descriptor(x_ptr, [64, 64], [64, 1], [64, 64])
        m, k = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
        tl.store(x_ptr + m * 64 + k, tl.load(y_ptr + m + k * 64))
        tl.store(y_ptr + m * 64 + k, block.load([0, 0]).T)
    """
    text = _with_descriptors(tmp_path, body)
    check(
        """
// CHECK: gpu.store
// CHECK: gpu.proxy_fence {whole = true}
// CHECK-NEXT: gpu.barrier
// CHECK: gpu.tma_load
""",
        text,
    )


def test_threads_load_what_a_tensor_copy_stored(tmp_path) -> None:
    """After the copy has written, not merely read, and a barrier."""
    body = """
        block = tl.make_tensor_descriptor(x_ptr, [64, 64], [64, 1], [64, 64])
        m, k = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
        block.store([0, 0], tl.load(y_ptr + m + k * 64))
        tl.store(y_ptr + m * 64 + k, tl.load(x_ptr + m * 64 + k))
    """
    text = _with_descriptors(tmp_path, body)
    check(
        """
// CHECK: gpu.tma_store(
// CHECK: gpu.tma_store_wait {written = true}
// CHECK: gpu.barrier
// CHECK: gpu.load
""",
        text,
    )


def _accesses(tmp_path, body: str) -> set[str]:
    """Return the opcodes of accesses compared with others."""
    kernel = parse_kernel(_with_descriptors(tmp_path, body))
    return {op.opcode for op in GlobalHazards(kernel).accesses}


def test_tensor_stores_alone_are_no_hazard(tmp_path) -> None:
    """One thread issues them all and waits as needed; any other access is compared again."""
    stores = """
        block = tl.make_tensor_descriptor(x_ptr, [64, 64], [64, 1], [64, 64])
        m, k = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
        for i in range(0, 4):
            block.store([i, 0], tl.load(y_ptr + m + k * 64))
            block.store([0, i], tl.load(y_ptr + m + k * 64))
    """
    assert "gpu.tma_store" not in _accesses(tmp_path, stores)
    loaded = stores + "    tl.store(y_ptr + m + k, tl.load(x_ptr + m + k))\n"
    assert {"gpu.tma_store", "gpu.load"} <= _accesses(tmp_path, loaded)


def test_atomics_alone_are_no_hazard(tmp_path) -> None:
    """Each access is one step, and threads ask for the order they need."""
    adds = """
        i = tl.arange(0, 64)
        tl.atomic_add(x_ptr + i, tl.load(y_ptr + i))
        tl.atomic_add(x_ptr + 63 - i, tl.load(y_ptr + i))
    """
    assert not {code for code in _accesses(tmp_path, adds) if "atomic" in code}
    loaded = adds + "    tl.store(y_ptr + i, tl.load(x_ptr + 63 - i))\n"
    assert {code for code in _accesses(tmp_path, loaded) if "atomic" in code}


def test_two_descriptors_of_one_pointer_are_of_one_tensor(tmp_path) -> None:
    body = """
        wide = tl.make_tensor_descriptor(x_ptr, [64, 64], [64, 1], [32, 64])
        tall = tl.make_tensor_descriptor(x_ptr, [64, 64], [64, 1], [64, 32])
        for i in range(0, 4):
            wide.store([i * 32, 0], tall.load([0, 0]).reshape(32, 64))
    """
    text = _with_descriptors(tmp_path, body)
    check(
        """
// CHECK: scf.for
// CHECK: gpu.barrier
// CHECK: gpu.tma_load
// CHECK: gpu.tma_store(
// CHECK: gpu.tma_store_wait {written = true}
""",
        text,
    )


@pytest.mark.parametrize("loops", [4, 8])
def test_loops_in_a_row_are_walked_one_after_the_other(
    tmp_path, monkeypatch: pytest.MonkeyPatch, loops: int
) -> None:
    """The walk is linear in loops, not in sets of accesses: double loops give four times the pairs."""
    earlier_touches: list[Touch] = []
    base = GlobalHazards._meet

    def counted(self: GlobalHazards, earlier: Touch, later: Op) -> bool:
        earlier_touches.append(earlier)
        return base(self, earlier, later)

    monkeypatch.setattr(GlobalHazards, "_meet", counted)
    loop = """
    for k in range(0, n):
        acc += tl.load(x_ptr + k * stride + i)
"""
    body = f"""\
i = tl.arange(0, 64)
acc = tl.zeros((64,), tl.float32)
for outer in range(0, n):{loops * loop}
tl.store(x_ptr + i, acc)
"""
    _barriers(tmp_path, body, num_warps=1)
    assert 0 < len(earlier_touches) <= 12 * loops**2


@pytest.mark.parametrize(
    "line",
    [
        "tl.store(x_ptr + k * n + i, v, mask=i < n)",
        "tl.store(x_ptr + k * 128 + i, v, mask=k * 128 + i < n)",
        "tl.store(x_ptr + (64 - k) * 128 + i, v + k)",
        "tl.store(x_ptr + (k * 37 % 64) * 128 + i, v + k)",
        "tl.store(y_ptr + k * n + i, tl.load(x_ptr + k * n + i))",
        "tl.store(x_ptr + k * 64 + i, v + k)",
    ],
)
def test_rows_of_accesses_answer_as_pairs_do(tmp_path, line: str) -> None:
    body = f"""
        i, v = tl.arange(0, 128), tl.load(y_ptr + tl.arange(0, 128))
        for k in tl.static_range(64):
            {line}
    """
    kernel = parse_kernel(_with_descriptors(tmp_path, body))
    by_rows, by_pairs = GlobalHazards(kernel), GlobalHazards(kernel)
    touched: list[Touch] = []
    for op in kernel.walk():
        if op in by_rows.accesses:
            expected = any(by_pairs.meet(touch, op) for touch in touched)
            assert by_rows.meet_any(reversed(touched), op) == expected
            touched.append(Touch(op))
    if "37" not in line:
        assert len(by_rows._met) <= 6 * len(touched)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("last", [0, 39])
def test_of_many_loads_the_one_at_the_same_index_is_found(tmp_path, last: int) -> None:
    """An in-place kernel with shared elements would overwrite elements not yet loaded."""
    loads = "".join(f"        v{i} = tl.load(x_ptr + {64 * i} + i)\n" for i in range(40))
    total = " + ".join(f"v{i}" for i in range(40))
    body = f"""
        i = tl.arange(0, 16)
{loads}
        tl.store(y_ptr + {{at}} + i, {total})
    """
    assert _barriers(tmp_path, body.format(at=64 * last)) == 1
    assert _barriers(tmp_path, body.format(at=64 * last + 1)) == 0


def test_pairs_of_other_memory_are_told_apart_without_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 40
    later_touches: list[object] = []
    meet = GlobalHazards.meet

    def counting(self: GlobalHazards, earlier: Touch, later: Op) -> bool:
        later_touches.append(later)
        return meet(self, earlier, later)

    monkeypatch.setattr(GlobalHazards, "meet", counting)
    request = repeated("carried", count, "sm_80")
    kernel = translate_request(request).kernel
    schedule_kernel(kernel, Schedule(check_request(request), request.config))
    assert len(later_touches) <= 10 * count


@pytest.mark.parametrize(("pointer", "count"), [("x_ptr", 1), ("y_ptr", 0)])
def test_what_loops_in_a_row_have_read_is_written_after_a_barrier(
    tmp_path, pointer: str, count: int
) -> None:
    body = f"""
        i = tl.arange(0, 16)
        v = tl.zeros((16,), tl.float32)
        for j in range(n):
            v += tl.load(x_ptr + j + i)
        for j in range(n):
            v += tl.load(x_ptr + 2 * j + i)
        tl.store({pointer} + 8 + i, v)
    """
    assert _barriers(tmp_path, body) == count


def test_a_loop_reads_what_was_written_before_after_a_barrier(tmp_path) -> None:
    body = """
        i = tl.arange(0, 16)
        v = tl.load(y_ptr + i)
        for j in range(n):
            v += tl.load(x_ptr + j + i)
        tl.store(y_ptr + 64 + i, v)
        for j in range(n):
            v += tl.load(y_ptr + j + i)
        tl.store(x_ptr + 8 + i, v)
    """
    assert _barriers(tmp_path, body) == 2
