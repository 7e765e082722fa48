"""Access layouts: threads hold boxes of tiles transposed between two accesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import translate_request
from aotc.frontend import translate
from aotc.ir.core import Op
from aotc.ir.dialects import tile
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.layout.access import choose_layouts
from aotc.target import TARGETS
from tests.support.repeated_kernels import repeated

SOURCE = """\
import triton
import triton.language as tl

@triton.jit
def k(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * N + j[None, :])
    OUT
"""
TURNED = "tl.store(out_ptr + j[:, None] * M + i[None, :], tl.trans({}))"
STRAIGHT = "tl.store(out_ptr + i[:, None] * N + j[None, :], x)"


def layouts(
    tmp_path: Path,
    out: str,
    kind: str,
    shape: tuple[int, int],
    warps: int,
    out_kind: str = "",
) -> dict[type[Op], LinearLayout]:
    path = tmp_path / "k.py"
    path.write_text(SOURCE.replace("OUT", out))
    signature = {"x_ptr": f"*{kind}:16", "out_ptr": f"*{out_kind or kind}:16"}
    kernel = translate(str(path), "k", signature, {"M": shape[0], "N": shape[1]}).kernel
    kernel.num_warps = warps
    layout_of = choose_layouts(kernel, AxisAnalysis(kernel), TARGETS["sm_90a"])
    return {type(op): layout for op, layout in layout_of.items()}


def box(layout: LinearLayout) -> tuple[int, int]:
    """Return rows and columns of the box in a thread's first registers."""
    rows, columns = layout.shape
    elements = set(layout.coords_table("register", lane=0))
    height = next(row for row in range(rows + 1) if (row, 0) not in elements)
    return height, next(column for column in range(columns + 1) if (0, column) not in elements)


@pytest.mark.parametrize(
    ("kind", "shape", "warps", "box_shape"),
    [
        ("bf16", (64, 64), 4, (4, 8)),
        ("bf16", (64, 64), 8, (2, 8)),
        ("fp32", (64, 64), 4, (4, 4)),
        ("i8", (128, 64), 4, (4, 16)),
        ("i8", (64, 64), 4, (4, 8)),
        ("bf16", (16, 16), 4, (1, 2)),  # two elements a thread
        ("bf16", (8, 16), 4, (1, 1)),
        ("fp32", (256, 2), 1, (2, 2)),
    ],
)
def test_what_is_transposed_is_held_in_boxes(
    tmp_path: Path, kind: str, shape: tuple[int, int], warps: int, box_shape: tuple[int, int]
) -> None:
    layout_of = layouts(tmp_path, TURNED.format("x"), kind, shape, warps)
    assert box(layout_of[tile.Load]) == box_shape


def test_both_accesses_have_boxes(tmp_path: Path) -> None:
    layout_of = layouts(tmp_path, TURNED.format("(x * 2 + x)"), "bf16", (64, 64), 4)
    assert box(layout_of[tile.Load]) == box(layout_of[tile.Store]) == (4, 8)


def test_what_is_not_transposed_is_not(tmp_path: Path) -> None:
    layout_of = layouts(tmp_path, STRAIGHT, "bf16", (64, 64), 4)
    assert box(layout_of[tile.Load]) == (1, 8)


@pytest.mark.parametrize(
    ("kind", "out_kind", "width"),
    [
        ("bf16", "fp32", 4),
        ("fp8e4nv", "bf16", 8),
        ("fp8e4nv", "fp32", 4),
        ("i8", "i64", 4),  # a word is loaded
        ("fp32", "bf16", 8),
        ("bf16", "bf16", 8),
    ],
)
def test_loads_are_no_wider_than_what_is_stored_at_once(
    tmp_path: Path, kind: str, out_kind: str, width: int
) -> None:
    out = STRAIGHT.replace("x)", "x.to(out_ptr.dtype.element_ty))")
    layout_of = layouts(tmp_path, out, kind, (64, 64), 4, out_kind)
    assert box(layout_of[tile.Load]) == box(layout_of[tile.Store]) == (1, width)


PRODUCT = """\
import triton
import triton.language as tl

@triton.jit
def k(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * N + j[None, :])
    acc = tl.dot(x, tl.full((N, M), 1.0, tl.float8e4nv))
    tl.store(out_ptr + i[:, None] * M + tl.arange(0, M)[None, :], acc.to(tl.bfloat16))
"""


def test_operands_of_dots_do_not_decide_how_results_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(PRODUCT)
    signature = {"x_ptr": "*fp8e4nv:16", "out_ptr": "*bf16:16"}
    kernel = translate(str(path), "k", signature, {"M": 64, "N": 64}).kernel
    kernel.num_warps = 4
    layout_of = choose_layouts(kernel, AxisAnalysis(kernel), TARGETS["sm_90a"])
    assert {type(op): box(layout) for op, layout in layout_of.items()} == {
        tile.Load: (1, 16),
        tile.Store: (1, 8),
    }


@pytest.mark.parametrize(
    ("kind", "box_shape"), [("bf16", (8, 1)), ("fp8e4nv", (16, 1)), ("fp32", (1, 1))]
)
def test_operands_loaded_one_by_one_are_held_in_runs_to_store(
    tmp_path: Path, kind: str, box_shape: tuple[int, int]
) -> None:
    path = tmp_path / "k.py"
    text = PRODUCT.replace("x_ptr, ", "x_ptr, s, t, ").replace(
        "* N + j[None, :]", "* s + j[None, :] * t"
    )
    path.write_text(text.replace("tl.float8e4nv", "x.dtype"))
    signature = {"x_ptr": f"*{kind}:16", "out_ptr": "*bf16:16", "s": "i32", "t": "i32"}
    kernel = translate(str(path), "k", signature, {"M": 64, "N": 32}).kernel
    kernel.num_warps = 4
    layout_of = choose_layouts(kernel, AxisAnalysis(kernel), TARGETS["sm_90a"])
    assert [box(layout) for op, layout in layout_of.items() if isinstance(op, tile.Load)] == [
        box_shape
    ]


TURNED_PRODUCT = (
    "acc = tl.dot(tl.full((16, N), 1.0, x.dtype), x.T)\n"
    "    tl.store(out_ptr + tl.arange(0, 16)[:, None] * M + i[None, :], acc.to(x.dtype))"
)


@pytest.mark.parametrize(("kind", "box_shape"), [("bf16", (1, 8)), ("fp8e4nv", (4, 16))])
def test_what_dots_take_transposed_is_held_in_boxes_if_it_is_exchanged(
    tmp_path: Path, kind: str, box_shape: tuple[int, int]
) -> None:
    layout_of = layouts(tmp_path, TURNED_PRODUCT, kind, (128, 64), 4)
    assert box(layout_of[tile.Load]) == box_shape


@pytest.mark.parametrize("count", [20, 60])
def test_loads_that_are_added_up_do_not_each_lead_to_all_the_sums(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    queries: list[Trait] = []

    def counting(cls: type[Op], *traits: Trait) -> bool:
        queries.extend(traits)
        return not cls.traits.isdisjoint(traits)

    kernel = translate_request(repeated("loads", count)).kernel
    infos = AxisAnalysis(kernel)
    monkeypatch.setattr(Op, "has", classmethod(counting))
    choose_layouts(kernel, infos, TARGETS["sm_90a"])
    assert 0 < len(queries) < 12 * count
