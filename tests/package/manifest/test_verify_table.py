"""`[kernel.verify]` as read, and each mistake at its location."""

from __future__ import annotations

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import evaluate
from aotc.package.manifest.read import parse
from aotc.package.manifest.spec import KernelSpec, ManifestExpression
from tests.support.verify_subjects import manifest_text


def _spec(verify: str, name: str = "gather", **options: str) -> KernelSpec:
    text = manifest_text(name, verify=verify, **options)  # type: ignore[arg-type]
    return parse(text, "kernels.toml").kernels[0]


def test_everything_it_may_say() -> None:
    spec = _spec(
        "n = [1, 100]\n"
        'stride_x = "n + BLOCK"\n'
        'index_ptr = { low = 2, high = "n * 2" }\n'
        "x_ptr = { low = -1.5, high = 1.5 }\n"
        "out_ptr = { low = 0, high = 1, distinct = false }\n"
        'grid = ["cdiv(n, BLOCK)"]\n'
        "tolerance = 1e-3\nmax_programs = 64"
    ).verify
    assert spec.values == {"n": (1, 100)}
    assert evaluate(spec.expressions["stride_x"].root, {"n": 3, "BLOCK": 16}) == 19
    assert spec.ranges["x_ptr"].low == -1.5
    high = spec.ranges["index_ptr"].high
    assert isinstance(high, ManifestExpression)
    assert evaluate(high.root, {"n": 4}) == 8
    assert (spec.tolerance, spec.max_programs) == (1e-3, 64)
    assert spec.grid is not None
    assert len(spec.grid) == 1


def test_what_addresses_are_of_and_whether_arguments_may_be_one_memory() -> None:
    lines = 'out_ptrs = { pointers_to = "fp16", count = "n + 1" }\nin_place = false'
    spec = _spec(lines, "grouped_pointers").verify
    pointees = spec.pointees["out_ptrs"]
    assert pointees.element == "fp16"
    assert isinstance(pointees.count, ManifestExpression)
    assert evaluate(pointees.count.root, {"n": 4}) == 5
    assert not spec.in_place
    assert _spec("", "grouped_pointers").verify.in_place


def test_which_tensors_maps_in_memory_are_of() -> None:
    line = 'out_ptrs = { maps_of = "fp16", shape = ["n", 64], count = 2 }'
    maps = _spec(line, "grouped_pointers").verify.pointees["out_ptrs"]
    assert (maps.element, maps.count, maps.shape[1]) == ("fp16", 2, 64)
    assert isinstance(maps.shape[0], ManifestExpression)
    assert evaluate(maps.shape[0].root, {"n": 4}) == 4
    single = _spec('out_ptrs = { maps_of = "fp16", shape = [8] }', "grouped_pointers").verify
    assert single.pointees["out_ptrs"].count == 1


def test_how_large_buffers_are() -> None:
    sizes = _spec('"x_ptr.size" = "n * stride_x + BLOCK"\n"out_ptr.size" = 7').verify.sizes
    assert isinstance(sizes["x_ptr"], ManifestExpression)
    assert evaluate(sizes["x_ptr"].root, {"n": 3, "stride_x": 5, "BLOCK": 16}) == 31
    assert sizes["out_ptr"] == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"x_ptrs.size" = 3', "expected an argument of gather or an option, got 'x_ptrs.size'"),
        ('"n.size" = 3', "expected an argument of gather or an option, got 'n.size'"),
        ('"x_ptr.size" = -1', "expected elements or an expression for 'x_ptr.size', got"),
        ('"x_ptr.size" = true', "expected elements or an expression for 'x_ptr.size', got"),
        ('"x_ptr.size" = "m"', "m"),
        ('x_ptr.size = "n"', "expected a key in quotes, got a table 'x_ptr' with a size"),
    ],
)
def test_a_mistake_about_sizes(line: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        _spec(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('out_ptrs = { pointers_to = "fp61", count = 1 }', "expected a type for 'pointers_to'"),
        ('out_ptrs = { pointers_to = "fp16" }', "for 'count', got none"),
        ('out_ptrs = { maps_of = "fp16" }', "expected 1 to 5 extents for 'shape', got none"),
        ('out_ptrs = { maps_of = "fp16", shape = [] }', "expected 1 to 5 extents"),
        ('out_ptrs = { maps_of = "fp16", shape = 8 }', "expected 1 to 5 extents"),
        ('out_ptrs = { maps_of = "fp16", shape = [8, 0] }', "a positive integer or an expression"),
        ('out_ptrs = { maps_of = "fp61", shape = [8] }', "expected a type for 'maps_of'"),
        ('out_ptrs = { maps_of = "fp16", shape = ["m"] }', "m"),
        ('out_ptrs = { pointers_to = "fp16", count = 0 }', "for 'count', got the integer 0"),
        ('rows_ptr = { pointers_to = "fp16", count = 1 }', r"\*i64 or \*u64 to hold addresses"),
        ("rows_ptr = { low = 0, high = 3, distinct = 1 }", "expected true or false for 'distinct'"),
        (
            "rows_ptr = { low = 0, high = 3, multiple_of = 0 }",
            "expected a positive integer for 'multiple_of'",
        ),
        (
            "rows_ptr = { low = 0, high = 3, distinct = true, multiple_of = 2 }",
            "expected 'distinct' or 'multiple_of', got both",
        ),
        (
            "rows_ptr = { low = 0, high = 3, cumulative = 1 }",
            "expected true or false for 'cumulative'",
        ),
        (
            "rows_ptr = { low = 0, high = 3, distinct = true, cumulative = true }",
            "expected 'distinct' or 'cumulative', got both",
        ),
        ("in_place = 1", "expected true or false for 'in_place'"),
    ],
)
def test_a_mistake_about_addresses(line: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        _spec(line, "grouped_pointers")


def test_without_it_there_is_nothing_to_say() -> None:
    spec = _spec("").verify
    assert (spec.values, spec.expressions, spec.ranges, spec.grid) == ({}, {}, {}, None)
    assert (spec.tolerance, spec.max_programs) == (0.0, None)


def test_floats_may_be_written_as_integers() -> None:
    assert _spec("factor = [1, 0.5]", "scale_rows").verify.values == {"factor": (1.0, 0.5)}


_TENSOR = """[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels/descriptor_copy.py:scale_rows_kernel"
[kernel.signature]
x = "tensordesc<bf16[32,64]>"
scales = "tensordesc<fp32[32]>"
out = "tensordesc<fp16[32,64]>"
[kernel.constants]
BLOCK_M = 32
BLOCK_N = 64
[kernel.verify]
"""


def test_extents_of_tensors() -> None:
    lines = '"x.shape[0]" = [1, 33]\n"scales.shape[0]" = "x.shape[0]"\n'
    spec = parse(_TENSOR + lines, "kernels.toml").kernels[0].verify
    assert spec.values == {"x.shape[0]": (1, 33)}
    assert evaluate(spec.expressions["scales.shape[0]"].root, {"x.shape[0]": 33}) == 33


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"x.shape[0]" = [0]', "expected a value of i32, 1 to 2147483647, for 'x.shape[0]', got"),
        ('"x.shape[2]" = [1]', "got 'x.shape[2]'\n"),
        ('"x.shape[2]" = [1]', "help: did you mean 'x.shape[1]'?"),
        ("x = [1]", "expected a scalar or a pointer, 'x' is a tensor descriptor"),
        ("x = [1]", "help: give its extents: x.shape[0], x.shape[1]"),
        ("y = [1]", "there are x.shape[0], x.shape[1], scales.shape[0], out.shape[0], out.shape"),
        ('"x.shape[0]" = "x.shape[0] + 1"', "expected an expression over the other arguments"),
    ],
)
def test_a_mistake_about_tensors(line: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(_TENSOR + line + "\n", "kernels.toml")
    assert message in caught.value.render()


@pytest.mark.parametrize(
    ("line", "message", "marked"),
    [
        ("m = [1]", "expected an argument of gather or an option, got 'm'", "m"),
        ("index_prt = 1", "help: did you mean 'index_ptr'?", "index_prt"),
        ("BLOCK = [4]", "got 'BLOCK'", "BLOCK"),
        ("n = []", "expected at least one value for 'n'", "[]"),
        ("n = [1, 1]", "expected each value once, got 1 again", "1"),
        ("n = [1, 0.5]", "expected a value of i32, -2147483648 to 2147483647, for 'n'", "0.5"),
        ("n = [true]", "got the boolean true", "true"),
        ("n = [3000000000]", "got the integer 3000000000", "3000000000"),
        ("n = 5", "expected a list of values for 'n', got the integer 5", "5"),
        ('n = "n + 1"', "an expression over the other arguments, got `n` itself", "n"),
        ('n = "stride_y"', "`stride_y` is unknown", "stride_y"),
        ('n = "x_ptr"', "expected an integer argument, `x_ptr` is not one", "x_ptr"),
        ("x_ptr = [1]", "expected a range for the pointer 'x_ptr', got a list", "[1]"),
        ("x_ptr = { low = 1 }", "expected 'low' and 'high', got no 'high'", "x_ptr"),
        ("x_ptr = { low = 1, hi = 2 }", "got the unknown key 'hi'", "hi"),
        ("x_ptr = { low = 2, high = 2 }", "which is not in the range, got 2 and 2", "2"),
        ("x_ptr = { low = nan, high = 2 }", "expected a number or an expression", "nan"),
        ("tolerance = -1", "expected a number from 0 for 'tolerance'", "-1"),
        ("max_programs = 0", "expected an integer from 1 to 65536 for 'max_programs'", "0"),
        ("max_programs = 1.5", "got the number 1.5", "1.5"),
        ("grid = []", "expected 1 to 3 grid expressions, got 0", "[]"),
    ],
)
def test_a_mistake_is_told_in_its_place(line: str, message: str, marked: str) -> None:
    with pytest.raises(ManifestError) as caught:
        _spec(line)
    error = caught.value
    assert message in error.render()
    assert error.loc is not None
    text = manifest_text("gather", verify=line).splitlines()[error.loc.line - 1]
    assert text[error.loc.col :].startswith(marked)


def test_a_grid_is_said_once() -> None:
    with pytest.raises(ManifestError, match="expected no grid to verify with, the kernel has one"):
        _spec('grid = ["1"]', grid='["n"]')


def test_a_promised_multiple_is_one() -> None:
    with pytest.raises(ManifestError, match="expected a multiple of 16, as promised, got 8"):
        _spec("n = [16, 8]", types="n = i32:16")
    assert _spec("n = [16, 8]", types="n = i32:16?").verify.values == {"n": (16, 8)}


def test_an_expression_gives_integers() -> None:
    with pytest.raises(ManifestError, match="expected a list of values for 'factor'"):
        _spec('factor = "n_rows"', "scale_rows")
