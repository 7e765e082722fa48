"""Operand loads eligible for tensor copies, by earlier writes and by uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mapping import mapped, remarks_on
from tests.support.pointer_kernels import MAPPED, Case, request

LOAD = MAPPED["carried"].load
WRITES = {
    "tl.store(a_ptr + m, 1.0, mask=in_m)": "the kernel writes through it, too",
    "tl.store(out_ptr + m, 1.0, mask=in_m)": "the kernel writes through out_ptr before",
    "tl.atomic_add(rows_ptr, 1)": "the kernel writes through rows_ptr before",
    "tl.store(rows_ptr, 1); tl.debug_barrier()": "the kernel writes through rows_ptr before",
    "tl.load(rows_ptr, volatile=True)": "a volatile load before it",
}


@pytest.mark.parametrize("field", ["setup", "turn"])
@pytest.mark.parametrize(("write", "reason"), WRITES.items(), ids=WRITES)
def test_what_may_have_been_written_before_is_left_alone(
    tmp_path: Path, write: str, reason: str, field: str
) -> None:
    kernel, schedule = mapped(request(tmp_path, replace(Case(LOAD), **{field: write})))
    (remark,) = remarks_on("a_ptr", schedule)
    assert remark.startswith(f"a_ptr is not loaded by tensor copies: {reason}")
    assert all(info.tensor is None or "a_ptr" not in info.name for info in kernel.params)


PROMISED = "start in tl.range(0, K, BK, num_stages=2)"


@pytest.mark.parametrize(
    ("field", "write", "is_mapped"),
    [
        ("turn", "tl.store(out_ptr + m, 1.0, mask=in_m)", True),
        ("turn", "tl.store(a_ptr + m, 1.0, mask=in_m)", False),
        ("turn", "tl.debug_barrier()", True),
        ("turn", "tl.store(out_ptr + m, 1.0, mask=in_m); tl.debug_barrier()", False),
        ("first", "tl.store(out_ptr + m, 1.0, mask=in_m)", False),
        ("setup", "tl.store(out_ptr + m, 1.0, mask=in_m)", False),
    ],
)
def test_a_loop_may_promise_that_its_turns_do_not_meet(
    tmp_path: Path, field: str, write: str, is_mapped: bool
) -> None:
    case = replace(Case(LOAD), loop=PROMISED, **{field: write})
    _, schedule = mapped(request(tmp_path, case))
    (remark,) = remarks_on("a_ptr", schedule)
    assert remark.startswith("a_ptr is loaded by tensor copies") == is_mapped


def test_what_is_used_otherwise_gains_nothing(tmp_path: Path) -> None:
    case = Case(LOAD.replace("tl.load", "1.0 * tl.load") + ".to(tl.float16)")
    kernel, schedule = mapped(request(tmp_path, case))
    assert not remarks_on("a_ptr", schedule)
    assert [info.tensor.address for info in kernel.params if info.tensor is not None] == ["b_ptr"]


@pytest.mark.parametrize(
    ("dtype", "is_mapped"), [("fp16", True), ("fp8e4nv", False), ("fp32", False)]
)
def test_an_operand_with_n_contiguous_is_for_products_that_take_it(
    tmp_path: Path, dtype: str, is_mapped: bool
) -> None:
    signature = {"a_ptr": f"*{dtype}:16", "b_ptr": f"*{dtype}:16"}
    case = Case(LOAD, signature=signature, block=(64, 32, 32))
    _, schedule = mapped(request(tmp_path, case))
    (remark,) = remarks_on("b_ptr", schedule)
    assert remark.startswith("b_ptr is loaded") == is_mapped
    assert remarks_on("a_ptr", schedule)[0].startswith("a_ptr is loaded")
    if not is_mapped:
        assert "its dot needs elements along K to be contiguous" in remark


def test_what_is_promised_to_be_other_memory_may_be_written_before(tmp_path: Path) -> None:
    case = replace(Case(LOAD), setup="tl.store(out_ptr + m, 1.0, mask=in_m)")
    kernel_request = request(tmp_path, case)
    signature = tuple(
        (name, f"{text} noalias" if name == "out_ptr" else text)
        for name, text in kernel_request.signature
    )
    for variant, is_mapped in (
        (kernel_request, False),
        (replace(kernel_request, signature=signature), True),
    ):
        _, schedule = mapped(variant)
        (remark,) = remarks_on("a_ptr", schedule)
        assert remark.startswith("a_ptr is loaded by tensor copies") == is_mapped
        assert ("noalias of out_ptr in the signature" in remark) != is_mapped
