"""Promises of a power of two and of a range: read, compiled, checked by every launcher, verified."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.compiler import compile_variant, translate_request
from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.manifest.argument_type import parse
from aotc.schedule.analysis.index_limits import index_limits
from aotc.stages import stage_text
from tests.support.requests import request_of

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, y_ptr, n, rows, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * (rows // 4), mask=at < n)
"""
MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:scale"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32:8"
y_ptr = "*fp32:32?"
n = "i32:2"
rows = "i32:4 in 8..4096"
[kernel.constants]
BLOCK = 128
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    return tmp_path


@pytest.mark.parametrize("divisor", [2, 4, 8, 16, 32, 4096])
def test_any_power_of_two_is_promised(divisor: int) -> None:
    for text in (f"i32:{divisor}", f"*bf16:{divisor}", f"*bf16:{divisor} noalias"):
        assert parse(text).divisor == divisor
        assert parse(text).concrete({}, {}) == text
    assert parse(f"u64:{divisor}?").is_optional


@pytest.mark.parametrize("divisor", [0, 1, 3, 6, 12, 24, 8192])
def test_no_other_number_is(divisor: int) -> None:
    with pytest.raises(ManifestError, match="expected a power of two from 2 to 4096 after ':'"):
        parse(f"i32:{divisor}")


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("i32 in 1..4096", (1, 4096)),
        ("i32:16 in 16..64", (16, 64)),
        ("i32:16? in 1..3", (1, 3)),
        ("u64 in 0..18446744073709551615", (0, 2**64 - 1)),
        ("i8  in  -128 .. 127", (-128, 127)),
        ("i32 in 7..7", (7, 7)),
    ],
)
def test_a_range_has_both_ends(text: str, bounds: tuple[int, int]) -> None:
    assert parse(text).bounds == bounds
    concrete = parse(text).without_promise().concrete({}, {})
    assert parse(concrete).bounds == bounds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i8 in 0..128", "a range LOW..HIGH within -128..127, got 0..128"),
        ("u32 in -1..4", "within 0..4294967295"),
        ("i32 in 5..4", "got 5..4"),
        ("fp32 in 0..1", "an integer dtype before a range"),
        ("*i32 in 0..1", "an integer dtype before a range"),
        ("i32=3 in 0..4", "expected a range or a fixed value"),
        ("i32:16 in 1..15", "expected a range with a multiple of 16"),
        ("i32 in 1..", "expected an argument type"),
    ],
)
def test_a_wrong_range_is_told(text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        parse(text)


def test_the_compiler_builds_on_them(folder: Path) -> None:
    types = {"x_ptr": "*fp32:8", "y_ptr": "*fp32:32", "n": "i32", "rows": "i32 in 8..4096"}
    request = request_of("k.py", "scale", tuple(types.items()), (("BLOCK", 128),), "sm_90a")
    tile = stage_text(request, "tile")
    assert "%x_ptr: *fp32 {divisibility = 8}" in tile
    assert "%rows: i32 {bounds = [8, 4096]}" in tile
    assert "i32 noundef range(i32 8, 4097) %p3" in stage_text(request, "llvm")
    ptx = stage_text(request, "ptx")
    assert "shr.s32" not in ptx, "a quotient of what is not negative is one shift"
    types["rows"] = "i32"
    unbounded = request_of("k.py", "scale", tuple(types.items()), (("BLOCK", 128),), "sm_90a")
    assert "shr.s32" in stage_text(unbounded, "ptx")


def test_a_product_within_the_range_overflows_nowhere(folder: Path) -> None:
    source = SOURCE.replace("* (rows // 4)", "").replace(
        "tl.load(x_ptr + at", "tl.load(x_ptr + rows * n + at"
    )
    (folder / "k.py").write_text(source)
    for n, is_limited in (("i32", True), ("i32 in 1..4096", False), ("i32 in 1..2147483647", True)):
        types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": n, "rows": "i32 in 8..4096"}
        request = request_of("k.py", "scale", tuple(types.items()), (("BLOCK", 128),), "sm_90a")
        limits = index_limits(translate_request(request).kernel)
        assert bool(limits) is is_limited, n


def test_a_launch_outside_is_refused(folder: Path, capsys: Any) -> None:
    assert cli.run(["build", "--no-cache", "-j", "1", "--with-ptx"], compile_variant) == 0
    (kernel,) = archives.read(Path("dist/demo.aotc")).kernels
    assert [guard.text for guard in kernel.guards] == [
        "x_ptr is 8-byte aligned",
        "y_ptr is 32-byte aligned",
        "n is a multiple of 2",
        "rows is from 8 to 4096",
        "rows is a multiple of 4",
    ]
    assert [len(variant.guards) for variant in kernel.variants] == [5, 4]
    # The launcher is asked for launches outside of each promise, and verify tells if it takes one.
    assert cli.run(["verify", "dist/demo.aotc", "-j", "1"]) == 0
    assert "2 verified" in capsys.readouterr().err


def test_values_to_verify_keep_the_promise(folder: Path) -> None:
    text = MANIFEST + "[kernel.verify]\nrows = [4]\n"
    (folder / "kernels.toml").write_text(text)
    assert cli.run(["build", "-q"]) == 1
