"""Shapes as text, and a kernel's launches expanded from them."""

from __future__ import annotations

import random

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import Integer, parse
from aotc.package.archive.index import (
    Choice,
    Guard,
    Kernel,
    Param,
    TypeVariable,
    Variant,
    null_test,
)
from aotc.package.tuning.shapes import Launch, launches, parse_shapes


def kernel(grid_rank: int = 1) -> Kernel:
    """A matmul with an optional bias, two dtypes and a choice; fp16 is built causal only."""
    grid = (Integer(1),) * grid_rank
    combinations = [("bf16", True), ("bf16", False), ("fp16", True)]
    return Kernel(
        "matmul",
        bytes(32),
        tuple(
            Variant("sm_90a", "f", b"", 128, types=(dtype,), choices=(causal,), grid=grid)
            for dtype, causal in combinations
            for _ in range(2)
        ),
        params=(
            Param("a_ptr", "pointer", "T"),
            Param("x", "tensor", "T", rank=2),
            Param("bias_ptr", "pointer", "T"),
            Param("M", "scalar", "i32"),
            Param("N", "scalar", "i64"),
            Param("stride", "scalar", "i32"),
            Param("alpha", "scalar", "fp32"),
        ),
        type_variables=(TypeVariable("T", ("bf16", "fp16")),),
        choices=(Choice("CAUSAL", (True, False)),),
        guards=(Guard(null_test("bias_ptr", is_null=True), "bias_ptr is None"),),
        constants=(("BLOCK", 64),),
    )


HEAD = '[[shape]]\nkernel = "matmul"\n'
REST = 'stride = "N + BLOCK"\n"x.shape[0]" = "M"\n"x.shape[1]" = 32\n'
ONE = 'types = { T = "bf16" }\nchoices = { CAUSAL = true }\n'


def expand(text: str, grid_rank: int = 1, **defaults: object) -> tuple[Launch, ...]:
    return launches(parse_shapes(text, "s.toml"), kernel(grid_rank), defaults)  # type: ignore[arg-type]


def test_lists_cross_and_what_is_left_out_takes_all_that_is_built() -> None:
    launches = expand(f"{HEAD}M = [1, 17]\nN = [4096, 1]\n{REST}")
    assert len(launches) == 2 * 2 * 3
    assert {(launch.types["T"], launch.choices["CAUSAL"]) for launch in launches} == {
        ("bf16", True),
        ("bf16", False),
        ("fp16", True),
    }
    assert {(launch.key["M"], launch.key["N"]) for launch in launches} == {
        (m, n) for m in (1, 17) for n in (4096, 1)
    }
    first = launches[0]
    assert list(first.key) == ["x.shape[0]", "x.shape[1]", "M", "N", "stride"]
    assert all(launch.key["stride"] == launch.key["N"] + 64 for launch in launches)
    assert all(launch.key["x.shape[0]"] == launch.key["M"] for launch in launches)
    assert first.scalars == {"alpha": 1.0}


def test_zipped_lists_go_in_step_with_their_weights() -> None:
    launches = expand(
        f'{HEAD}{ONE}{REST}zip = ["M", "N", "weight"]\nM = [1, 1, 8]\nN = [2, 5, 7]\nweight = [3, 2, 1.5]'
    )
    assert [(launch.key["M"], launch.key["N"], launch.weight) for launch in launches] == [
        (1, 2, 3.0),
        (1, 5, 2.0),
        (8, 7, 1.5),
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("3..7", [3, 4, 5, 6, 7]),
        ("1..4096 log 5", [1, 8, 64, 512, 4096]),
        ("1..9 x3", [1, 5, 9]),
        ("0..64 step 16", [0, 16, 32, 48, 64]),
        ("5..5", [5]),
        ("1..3 log 9", [1, 2, 3]),
        ("7..9 x1", [7]),
        ("-2..0", [-2, -1, 0]),
    ],
)
def test_ranges(text: str, values: list[int]) -> None:
    launches = expand(f'{HEAD}{ONE}{REST}M = "{text}"\nN = 1')
    assert [launch.key["M"] for launch in launches] == values


def test_equal_launches_of_two_tables_add_their_weights() -> None:
    n = random.randint(1, 1 << 20)
    table = f"{HEAD}{ONE}{REST}M = [1, 3]\nN = {n}\n"
    launches = expand(f"{table}weight = 2\n{table.replace('[1, 3]', '3')}weight = 5\n")
    assert [(launch.key["M"], launch.weight) for launch in launches] == [(1, 2.0), (3, 7.0)]


def test_sizes_grids_and_pointers_that_are_none() -> None:
    text = (
        f'{HEAD}{ONE}{REST}M = 5\nN = 3\nalpha = 0.5\n"a_ptr.size" = "M * N"\nnone = ["bias_ptr"]\n'
    )
    (launch,) = expand(f'{text}grid = ["cdiv(M, 2)", "N"]', grid_rank=0)
    assert launch.grid == (3, 3)
    assert launch.sizes == {"a_ptr": 15}
    assert launch.null_pointers == ("bias_ptr",)
    assert launch.scalars == {"alpha": 0.5}


def test_the_manifest_says_what_a_shape_leaves_out() -> None:
    text = f'{HEAD}{ONE}"x.shape[0]" = 1\n"x.shape[1]" = 1\nM = 5\nN = 3'
    defaults = {"stride": parse("N * 2"), "alpha": (0.25, 4.0), "M": (1, 2), "gone": (1,)}
    (launch,) = expand(text, **defaults)
    assert (launch.key["stride"], launch.key["M"], launch.scalars["alpha"]) == (6, 5, 0.25)


def test_shapes_of_other_kernels_are_not_for_this_one() -> None:
    text = '[[shape]]\nkernel = ["norm", "gemv"]\nanything = 1\n'
    assert expand(text) == ()
    assert parse_shapes(text, "s.toml").kernels == ("norm", "gemv")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("M = 1\nN = 1\nQ = 1\n" + REST, "expected an argument of matmul or an option, got 'Q'"),
        ("M = 1\n" + REST, "expected arguments with values in 'N + BLOCK', 'N' has none"),
        ("M = 1\nN = 1\nstride = 1\n", "expected a value for 'x.shape[0]' of matmul"),
        ("M = 1.5\nN = 1\n" + REST, "expected an integer for 'M', got 1.5"),
        ("M = [1, 1]\nN = 1\n" + REST, "expected each value once, got 1 again"),
        ("M = []\nN = 1\n" + REST, "expected at least one value for 'M'"),
        ('M = "9..1"\nN = 1\n' + REST, "expected a range such as 1..4096 log 5, got '9..1'"),
        ('M = "0..9 log 3"\nN = 1\n' + REST, "from 1 on, got '0..9 log 3'"),
        ('M = "1..100000"\nN = 1\n' + REST, "'1..100000' are 100000 values"),
        ('M = "1 +"\nN = 1\n' + REST, "expected a range or an expression"),
        ('M = "1 // 0"\nN = 1\n' + REST, "cannot evaluate '1 // 0'"),
        ('M = "N"\nN = "M"\n' + REST, "has none"),
        (
            'M = [1, 2]\nN = [1]\nzip = ["M", "N"]\n' + REST,
            "lists of one length to zip: M has 2, N has 1",
        ),
        ('M = 1\nN = 1\nzip = ["K"]\n' + REST, "expected an argument with a list to zip, got 'K'"),
        ("M = 1\nN = 1\nweight = 0\n" + REST, "expected a weight above 0"),
        ("M = 1\nN = 1\nweight = [1, 2]\n" + REST, "expected one weight"),
        (
            'M = 1\nN = 1\ntypes = { T = "fp64" }\n' + REST,
            "expected T to be one of bf16, fp16, got fp64",
        ),
        ("M = 1\nN = 1\nchoices = { CAUSAL = 1 }\n" + REST, "expected CAUSAL to be one of"),
        ("M = 1\nN = 1\nchoices = { CASUAL = true }\n" + REST, "did you mean 'CAUSAL'"),
        (
            'M = 1\nN = 1\nnone = ["a_ptr"]\n' + REST,
            "expected a pointer of matmul that may be None",
        ),
        ('M = 1\nN = 1\ngrid = ["1"]\n' + REST, "expected no grid, matmul has its own"),
        ('M = "1..4096"\nN = "1..4096"\n' + REST, "expected at most 4096 launches of matmul"),
    ],
)
def test_mistakes_have_a_place(lines: str, message: str) -> None:
    with pytest.raises(ManifestError) as raised:
        expand(HEAD + lines)
    error = raised.value
    assert message in f"{error.message}; {error.remedy}"
    assert error.loc is not None
    assert error.loc.line >= 1


def test_a_grid_that_the_caller_gives_is_asked_for() -> None:
    with pytest.raises(ManifestError, match="expected the grid of matmul"):
        expand(f"{HEAD}M = 1\nN = 1\n{REST}", grid_rank=0)


def test_all_mistakes_of_a_file_are_reported() -> None:
    text = '[[shape]]\nkernel = "a"\nweight = 0\n[[shape]]\nkernel = "b"\nM = "3..1"\n'
    with pytest.raises(ManifestError) as raised:
        parse_shapes(text, "s.toml")
    assert len(raised.value.others) == 1
