"""Launch expressions evaluate to the kernel's values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.core import Kernel
from aotc.ir.dialects import scf
from aotc.ir.expression import evaluate, parse
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.launch_text import LaunchText
from aotc.schedule.analysis.polynomial import Polynomial

TEXT = """\
kernel @k(%n: i32, %m: i32, %s: i32 {source = "x.shape[1]"}) {num_warps = 1} {
  %0 = arith.constant {value = LOWER, type = i32} : i32
  %step = arith.constant {value = STEP, type = i32} : i32
  %63 = arith.constant {value = 63, type = i32} : i32
  %64 = arith.constant {value = 64, type = i32} : i32
  %up = arith.add(%n, %63) : i32
  %blocks = arith.div(%up, %64) : i32
  scf.for(%0, UPPER, %step) (%i: i32) {
    scf.yield
  }
  scf.return
}
"""
NAMES = ("n", "m", "x.shape[1]")


def made(lower: int = 0, step: int = 1, upper: str = "%n") -> tuple[Kernel, AffineAnalysis]:
    text = TEXT.replace("LOWER", str(lower)).replace("STEP", str(step)).replace("UPPER", upper)
    kernel = parse_kernel(text)
    return kernel, AffineAnalysis(kernel)


@given(
    st.lists(st.tuples(st.lists(st.sampled_from(NAMES), max_size=2), st.integers(-4, 4))),
    st.fixed_dictionaries({name: st.integers(-9, 9) for name in NAMES}),
)
def test_a_polynomial_has_its_value(
    terms: list[tuple[list[str], int]], values: dict[str, int]
) -> None:
    kernel, analysis = made()
    symbols = {
        name: analysis.symbol(arg) for name, arg in zip(NAMES, kernel.body.args, strict=True)
    }
    total = Polynomial()
    for names, factor in terms:
        term = Polynomial.constant(factor)
        for name in names:
            term = term * symbols[name]
        total = total + term
    text = LaunchText(kernel, analysis)
    expected = total.evaluate(
        lambda symbol: values[NAMES[kernel.body.args.index(analysis.sources[symbol])]]  # type: ignore[arg-type]
    )
    assert evaluate(parse(text.of(total)), values) == expected
    assert evaluate(parse(f"7 * {text.factor(total)}"), values) == 7 * expected


@pytest.mark.parametrize("upper", ["%n", "%up", "%blocks"])
@pytest.mark.parametrize("step", [1, 3, 16])
@pytest.mark.parametrize("factor", [1, 16])
@pytest.mark.parametrize("box", [1, 16, 64])
def test_no_block_of_a_loop_reaches_the_end(upper: str, step: int, factor: int, box: int) -> None:
    kernel, analysis = made(step=step, upper=upper)
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    start = analysis[loop.induction].offset * Polynomial.constant(factor)
    end = LaunchText(kernel, analysis).end_of_boxes(start, box)
    assert end is not None
    for n in (-70, -63, -1, 0, 1, 63, 64, 65, 200):
        last = {"%n": n, "%up": n + 63, "%blocks": int((n + 63) / 64)}[upper]
        starts = range(0, last, step)
        holds = all(evaluate(parse(guard), {"n": n}) for guard in end.guards)
        # Where a quotient is below zero nothing is promised, and nothing is needed.
        assert holds == (len(starts) > 0)
        if starts:
            assert evaluate(parse(end.text), {"n": n}) == factor * starts[-1] + box


def test_blocks_that_begin_at_one_place_end_behind_it() -> None:
    kernel, analysis = made()
    start = analysis.symbol(kernel.body.args[1]) + Polynomial.constant(2)
    end = LaunchText(kernel, analysis).end_of_boxes(start, 16)
    assert end == ("m + 18", ())


@pytest.mark.parametrize(("lower", "upper"), [(1, "%n"), (0, "%0")])
def test_of_other_loops_nothing_is_known(lower: int, upper: str) -> None:
    kernel, analysis = made(lower=lower, upper=upper)
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    start = analysis[loop.induction].offset
    end = LaunchText(kernel, analysis).end_of_boxes(start, 16)
    assert (end is None) == (lower == 1)
