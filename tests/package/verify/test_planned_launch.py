"""`aotc verify` with launches by the runtime's C code: right records pass, wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc.ir.expression import Binary, parse, to_text
from aotc.package.archive.elf import check_cubin
from aotc.package.archive.file import read
from aotc.package.archive.index import Archive, Kernel, Param, TensorMap, Variant
from aotc.package.builder.run import BuildOptions, build
from aotc.package.manifest.read import load
from aotc.package.verify import planned_launch as planned_module
from aotc.package.verify import variants as verify
from aotc.package.verify.planned_launch import PlannedLauncher, launcher_of_record, stand_in_cubin
from aotc.package.verify.subjects import load_subjects, subjects_of_archive
from aotc.package.verify.variants import verify_variant
from tests.support.listeners import Silent

pytestmark = pytest.mark.usefixtures("one_worker")

_KERNELS = """import triton
import triton.language as tl

from aotc.language import grid_barrier


@triton.jit
def copy_blocks(x, out, scale, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    col = tl.program_id(1) * COLS
    out.store([row, col], x.load([row, col]) * scale)


@triton.jit
def add_rows(x_ptr, y_ptr, out_ptr, n_rows, n_cols, stride, COLS: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = cols < n_cols
    x = tl.load(x_ptr + row * stride + cols, mask=inside, other=0.0)
    y = tl.load(y_ptr + row * stride + cols, mask=inside, other=0.0)
    tl.store(out_ptr + row * stride + cols, x - y, mask=inside)


@triton.jit
def turn_blocks(x_ptr, y_ptr, out_ptr, counter_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + pid * BLOCK + i, tl.load(x_ptr + pid * BLOCK + i) * 3)
    grid_barrier(counter_ptr)
    following = (pid + 1) % tl.num_programs(0)
    tl.store(out_ptr + pid * BLOCK + i, tl.load(y_ptr + following * BLOCK + i))


@triton.jit
def add_groups(x_ptr, rows_ptr, out_ptr, num_groups, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK, BLOCK), tl.int32)
    for group in range(num_groups):
        rows = tl.load(rows_ptr + group)
        tensor = tl.make_tensor_descriptor(x_ptr, [rows, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
        x_ptr += BLOCK * BLOCK
        total += tensor.load([0, 0])
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i[:, None] * BLOCK + i[None, :], total)
"""
_MANIFEST = """
[package]
name = "planned"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernel.py:copy_blocks"
grid = ["cdiv(x.shape[0], ROWS)", "cdiv(x.shape[1], COLS)"]
[kernel.signature]
x = "tensordesc<fp32[ROWS,COLS]>"
out = "tensordesc<fp32[ROWS,COLS]>"
scale = "fp32"
[kernel.constants]
ROWS = 16
COLS = 32
[[kernel]]
source = "kernel.py:add_rows"
grid = ["n_rows", "cdiv(n_cols, COLS)"]
[kernel.signature]
x_ptr = "*fp32:16"
y_ptr = "*fp32:16"
out_ptr = "*fp32:16"
n_rows = "i32"
n_cols = "i32"
stride = "i32:16?"
[kernel.constants]
COLS = 64
[kernel.configs]
num_warps = [1]
[[kernel]]
source = "kernel.py:turn_blocks"
[kernel.signature]
x_ptr = "*i32:16"
y_ptr = "*i32:16"
out_ptr = "*i32:16"
counter_ptr = "*i32"
[kernel.constants]
BLOCK = 128
[kernel.verify]
counter_ptr = { low = 0, high = 1 }
in_place = false
[[kernel]]
source = "kernel.py:add_groups"
grid = ["2"]
signature = { x_ptr = "*i32:16", rows_ptr = "*i32", out_ptr = "*i32:16", num_groups = "i32" }
constants = { BLOCK = 32 }
[kernel.verify]
rows_ptr = { low = 1, high = 32 }
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    (folder / "kernel.py").write_text(_KERNELS)
    path = folder / "kernels.toml"
    path.write_text(_MANIFEST)
    return path


@pytest.fixture(scope="module")
def archive(manifest: Path) -> Archive:
    result = build(
        load(str(manifest)), BuildOptions(manifest.parent, 1, with_ptx=True), Silent(), cache=None
    )
    assert not result.failures
    return read(manifest.parent / "planned.aotc")


@pytest.mark.emulated
def test_a_manifest_is_verified(manifest: Path) -> None:
    results = [verify_variant(subject) for subject in load_subjects(str(manifest))]
    assert [(outcome.label, outcome.status) for outcome in results] == [
        ("copy_blocks sm_90a", "verified"),
        ("add_rows sm_90a stride:16 num_warps=1", "verified"),
        ("add_rows sm_90a num_warps=1", "verified"),
        ("turn_blocks sm_90a", "verified"),
        ("add_groups sm_90a", "verified"),
    ]


@pytest.mark.emulated
def test_an_archive_is_verified(archive: Archive) -> None:
    subjects = subjects_of_archive(archive, "planned.aotc")
    # The memory of the grid barrier must be 0; the archive does not state it.
    results = [verify_variant(item) for item in subjects if item.kernel != "turn_blocks"]
    assert [item.status for item in results] == ["verified"] * 4


Plant = Callable[[Kernel, Variant], tuple[Kernel, Variant]]


def _in_variant(**changes: Callable[[Variant], object]) -> Plant:
    def plant(kernel: Kernel, variant: Variant) -> tuple[Kernel, Variant]:
        return kernel, replace(variant, **{n: f(variant) for n, f in changes.items()})  # type: ignore[arg-type]

    return plant


def _in_map(**changes: Callable[[TensorMap], object]) -> Plant:
    def plant(kernel: Kernel, variant: Variant) -> tuple[Kernel, Variant]:
        maps = [
            replace(tensor_map, **{n: f(tensor_map) for n, f in changes.items()})  # type: ignore[arg-type]
            for tensor_map in variant.tensor_maps
        ]
        return kernel, replace(variant, tensor_maps=tuple(maps))

    return plant


def _in_guards(change: Callable[[str], str]) -> Plant:
    def plant(kernel: Kernel, variant: Variant) -> tuple[Kernel, Variant]:
        guards = [
            replace(g, expression=parse(change(to_text(g.expression)))) for g in kernel.guards
        ]
        return replace(kernel, guards=tuple(guards)), variant

    return plant


def _in_params(**changes: Callable[[Param], object]) -> Plant:
    def plant(kernel: Kernel, variant: Variant) -> tuple[Kernel, Variant]:
        params = [
            replace(param, **{n: f(param) for n, f in changes.items()})  # type: ignore[arg-type]
            for param in kernel.params
        ]
        return replace(kernel, params=tuple(params)), variant

    return plant


def _swapped_params(first: int, second: int) -> Plant:
    def plant(kernel: Kernel, variant: Variant) -> tuple[Kernel, Variant]:
        params = list(variant.cubin_params)
        former, latter = params[first], params[second]
        params[first] = replace(former, index=latter.index)
        params[second] = replace(latter, index=former.index)
        return kernel, replace(variant, cubin_params=tuple(params))

    return plant


def _lhs(expression: object) -> object:
    assert isinstance(expression, Binary)
    return expression.lhs


PLANTED: dict[str, tuple[str, Plant]] = {
    "box transposed": ("copy_blocks", _in_map(box=lambda m: m.box[::-1])),
    "box too high": ("copy_blocks", _in_map(box=lambda m: (m.box[0], 2 * m.box[1]))),
    "extents transposed": ("copy_blocks", _in_map(dims=lambda m: m.dims[::-1])),
    "stride in elements": ("copy_blocks", _in_map(strides=lambda m: (_lhs(m.strides[0]),))),
    "no swizzle": ("copy_blocks", _in_map(swizzle=lambda m: 3 * m.param)),
    "another swizzle": ("copy_blocks", _in_map(swizzle=lambda m: 4 - m.param)),
    "NaN outside": ("copy_blocks", _in_map(oob_fill=lambda m: 1, dims=lambda m: m.dims)),
    "another tensor's address": ("copy_blocks", _in_map(address=lambda m: parse("out"))),
    "maps swapped": ("copy_blocks", _in_variant(tensor_maps=lambda v: v.tensor_maps[::-1])),
    "grid transposed": ("copy_blocks", _in_variant(grid=lambda v: v.grid[::-1])),
    "grid rounded down": ("add_rows", _in_variant(grid=lambda v: (v.grid[0], parse("n_cols // 64")))),
    "grid of pointers transposed": ("add_rows", _in_variant(grid=lambda v: v.grid[::-1])),
    "too few threads": ("add_rows", _in_variant(num_threads=lambda v: 2 * v.num_threads)),
    "a cluster": ("add_rows", _in_variant(cluster=lambda v: (2, 1, 1))),
    "pointers swapped": ("add_rows", _swapped_params(0, 1)),
    "counts swapped": ("add_rows", _swapped_params(3, 4)),
    "a weaker guard": ("add_rows", _in_guards(lambda text: text.replace("stride % 16", "stride % 2"))),
    "less shared memory": ("copy_blocks", _in_variant(dynamic_shared_bytes=lambda v: 16)),
}  # fmt: skip


IN_MANIFEST: dict[str, tuple[str, Plant]] = {
    "no cooperative launch": ("turn_blocks", _in_variant(cooperative=lambda v: False)),
    "a cooperative launch": ("add_rows", _in_variant(cooperative=lambda v: True)),
    "less scratch memory": ("add_groups", _in_variant(scratch_bytes=lambda v: parse("128"))),
    "another dtype": ("turn_blocks", _in_params(element=lambda p: "fp32")),
}  # fmt: skip


@pytest.mark.emulated
@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_record_is_found(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The launcher's record differs from the compiled kernel."""
    kernel_name, plant = PLANTED[name]

    def planted(kernel: Kernel, *rest: Any) -> PlannedLauncher:
        changed, variant = plant(kernel, kernel.variants[0])
        return launcher_of_record(replace(changed, variants=(variant,)), *rest)

    subject = subjects_of_archive(archive, "planned.aotc", [kernel_name])[0]
    assert verify_variant(subject).status == "verified"
    monkeypatch.setattr(verify, "launcher_of_record", planted)
    assert verify_variant(subject).status == "wrong"


@pytest.mark.emulated
@pytest.mark.parametrize("name", IN_MANIFEST)
def test_a_record_that_lost_what_the_kernel_needs_is_found(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kernel_name, plant = IN_MANIFEST[name]

    def planted(kernel: Kernel, *rest: Any) -> PlannedLauncher:
        changed, variant = plant(kernel, kernel.variants[0])
        return launcher_of_record(replace(changed, variants=(variant,)), *rest)

    subject = load_subjects(str(manifest), [kernel_name])[0]
    monkeypatch.setattr(planned_module, "launcher_of_record", planted)
    assert verify_variant(subject).status == "wrong"


@pytest.mark.emulated
def test_a_promise_that_no_guard_asks_for_is_found(manifest: Path) -> None:
    """Launches that keep it are right, but the launcher takes others, too."""
    subject = load_subjects(str(manifest), ["add_rows"])[0]
    assert subject.expanded is not None
    expansion, variant = subject.expanded
    indices = [
        index
        for index in variant.guards
        if "stride" not in to_text(expansion.guards[index].expression)
    ]
    assert len(indices) == len(variant.guards) - 1
    alone = replace(variant, guards=tuple(indices))
    guards = tuple(expansion.guards[index].expression for index in indices)
    expanded = replace(expansion, variants=(alone,)), alone
    result = verify_variant(replace(subject, guards=guards, expanded=expanded))
    assert result.status == "wrong"
    assert "the launcher takes stride = " in result.findings[-1].detail


def test_a_stand_in_is_a_cubin() -> None:
    for target, symbol in (("sm_80", "k"), ("sm_90a", "a_long_name"), ("sm_120", "x")):
        check_cubin(stand_in_cubin(target, symbol), target, symbol)
