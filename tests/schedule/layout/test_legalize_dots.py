"""Products rewritten for the target: sums into accumulators, fp8 to fp16, tf32x3 to three."""

from __future__ import annotations

import pytest

from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.legalize_dots import legalize_dots
from aotc.target import TARGETS
from tests.support.checks import check, without_checks


def run(text: str, target: str = "sm_90a") -> None:
    kernel = parse_kernel(without_checks(text))
    legalize_dots(kernel, Schedule(TARGETS[target]))
    verify(kernel)
    check(text, print_kernel(kernel))


def with_operands(dtype: str, body: str) -> str:
    """Return a kernel with operands %a and %b, accumulators %zero and %c."""
    return f"""
kernel @k(%p: *fp32, %x: fp32, %n: i32, %s: {dtype}) {{num_warps = 4}} {{
  %a = tile.splat(%s) {{shape = [16, 16]}} : tile<16x16x{dtype}>
  %b = tile.splat(%s) {{shape = [16, 16]}} : tile<16x16x{dtype}>
  %c = tile.splat(%x) {{shape = [16, 16]}} : tile<16x16xfp32>
  %zero = arith.constant {{value = 0.0, type = tile<16x16xfp32>}} : tile<16x16xfp32>
  %ps = tile.splat(%p) {{shape = [16, 16]}} : tile<16x16x*fp32>
{body}
  scf.return
}}
"""


DOT = "tile.dot(%a, %b, %zero) : tile<16x16xfp32>"


@pytest.mark.parametrize("operands", ["%d, %c", "%c, %d"])
def test_a_sum_becomes_the_accumulator(operands: str) -> None:
    run(
        with_operands(
            "fp16",
            f"""
  // CHECK: %c = tile.splat
  // CHECK: [[SUM:%[0-9a-z_]+]] = tile.dot(%a, %b, %c)
  // CHECK-NOT: arith.add
  // CHECK: tile.store({{{{.*}}}}, [[SUM]], _)
  %d = {DOT}
  %e = arith.add({operands}) : tile<16x16xfp32>
  tile.store(%ps, %e, _)""",
        )
    )


@pytest.mark.parametrize(
    "body",
    [
        # Used twice: the product would be computed twice.
        f"""
  // CHECK: tile.dot(%a, %b, %zero)
  // CHECK: arith.add
  %d = {DOT}
  %e = arith.add(%d, %c) : tile<16x16xfp32>
  %f = arith.mul(%e, %d) : tile<16x16xfp32>
  tile.store(%ps, %f, _)""",
        # The sum is in a loop, the product is not.
        f"""
  // CHECK: tile.dot(%a, %b, %zero)
  // CHECK: scf.for
  // CHECK: arith.add
  %d = {DOT}
  %e = scf.for(%n, %n, %n, %c) (%i: i32, %f: tile<16x16xfp32>) {{
    %g = arith.add(%f, %d) : tile<16x16xfp32>
    scf.yield(%g)
  }} : tile<16x16xfp32>
  tile.store(%ps, %e, _)""",
        # Something is in the accumulator already.
        """
  // CHECK: tile.dot(%a, %b, %c)
  // CHECK: arith.add
  %d = tile.dot(%a, %b, %c) : tile<16x16xfp32>
  %e = arith.add(%d, %c) : tile<16x16xfp32>
  tile.store(%ps, %e, _)""",
        # The user wants partial sums apart from the accumulator.
        """
  // CHECK: arith.add
  %d = tile.dot(%a, %b, %zero) {max_num_imprecise_acc = 16} : tile<16x16xfp32>
  %e = arith.add(%d, %c) : tile<16x16xfp32>
  tile.store(%ps, %e, _)""",
        # A product plus itself is no product plus something.
        f"""
  // CHECK: arith.add
  %d = {DOT}
  %e = arith.add(%d, %d) : tile<16x16xfp32>
  tile.store(%ps, %e, _)""",
    ],
)
def test_a_sum_that_must_stay(body: str) -> None:
    run(with_operands("fp16", body))


FP8 = """
  %d = tile.dot(%a, %b, %c) : tile<16x16xfp32>
  tile.store(%ps, %d, _)"""


def test_fp8_is_widened_only_where_it_must_be() -> None:
    checks = """
  // CHECK: arith.cast(%a) {dtype = fp16}
  // CHECK: arith.cast(%b) {dtype = fp16}
  // CHECK: tile.dot({{.*}}) : tile<16x16xfp32>"""
    run(with_operands("fp8e5", checks + FP8), "sm_86")
    run(with_operands("fp8e5", "  // CHECK-NOT: arith.cast\n  // CHECK: tile.dot" + FP8), "sm_89")


@pytest.mark.parametrize(
    ("limit", "interval"), [("", 16), (" {max_num_imprecise_acc = 8}", 8)], ids=["none", "given"]
)
@pytest.mark.parametrize("target", ["sm_89", "sm_90a", "sm_120a"])
def test_a_sum_of_fp8_is_promoted_to_its_accumulator(
    target: str, limit: str, interval: int
) -> None:
    """Tensor cores would add to it with fewer bits than the addition in the source has."""
    text = f"""
  // CHECK: tile.dot(%a, %b, %c) {{max_num_imprecise_acc = {interval}}}
  // CHECK-NOT: arith.add
  %d = tile.dot(%a, %b, %zero){limit} : tile<16x16xfp32>
  %e = arith.add(%d, %c) : tile<16x16xfp32>
  tile.store(%ps, %e, _)"""
    run(with_operands("fp8e4nv", text), target)


def test_a_sum_of_fp8_that_is_widened_is_one_of_fp16() -> None:
    text = """
  // CHECK: [[SUM:%[0-9a-z_]+]] = tile.dot({{.*}}, %c) : tile
  // CHECK-NOT: arith.add
  // CHECK: tile.store({{.*}}, [[SUM]], _)
  %d = tile.dot(%a, %b, %zero) {max_num_imprecise_acc = 16} : tile<16x16xfp32>
  %e = arith.add(%c, %d) : tile<16x16xfp32>
  tile.store(%ps, %e, _)"""
    run(with_operands("fp8e5", text), "sm_86")


def test_tf32x3_is_three_products_apart_from_the_accumulator() -> None:
    run(
        with_operands(
            "fp32",
            """
  // CHECK: [[A:%[0-9]+]] = arith.sub(%a,
  // CHECK: [[B:%[0-9]+]] = arith.sub(%b,
  // CHECK: [[ONE:%[0-9]+]] = tile.dot([[A]], %b, {{.*}})
  // CHECK: [[TWO:%[0-9]+]] = tile.dot(%a, [[B]], [[ONE]])
  // CHECK: arith.compare([[TWO]], [[TWO]])
  // CHECK: [[KEPT:%[0-9]+]] = arith.select
  // CHECK: [[ALL:%[0-9]+]] = tile.dot(%a, %b, [[KEPT]])
  // CHECK: arith.add([[ALL]], %c)
  // CHECK-NOT: tf32x3
  %d = tile.dot(%a, %b, %c) {input_precision = "tf32x3"} : tile<16x16xfp32>
  tile.store(%ps, %d, _)""",
        )
    )


def test_bf16x6_is_six_products_of_bf16_parts() -> None:
    run(
        with_operands(
            "fp32",
            """
  // CHECK: [[A0:%[0-9]+]] = arith.cast(%a) {{.*}}bf16
  // CHECK: [[A1:%[0-9]+]] = arith.cast({{.*}}) {{.*}}bf16
  // CHECK: [[A2:%[0-9]+]] = arith.cast({{.*}}) {{.*}}bf16
  // CHECK: [[B0:%[0-9]+]] = arith.cast(%b) {{.*}}bf16
  // CHECK: [[B1:%[0-9]+]] = arith.cast({{.*}}) {{.*}}bf16
  // CHECK: [[B2:%[0-9]+]] = arith.cast({{.*}}) {{.*}}bf16
  // CHECK: [[ONE:%[0-9]+]] = tile.dot([[A2]], [[B0]], {{.*}})
  // CHECK: [[TWO:%[0-9]+]] = tile.dot([[A0]], [[B2]], [[ONE]])
  // CHECK: [[THREE:%[0-9]+]] = tile.dot([[A1]], [[B1]], [[TWO]])
  // CHECK: [[FOUR:%[0-9]+]] = tile.dot([[A1]], [[B0]], [[THREE]])
  // CHECK: [[FIVE:%[0-9]+]] = tile.dot([[A0]], [[B1]], [[FOUR]])
  // CHECK: [[KEPT:%[0-9]+]] = arith.select
  // CHECK: [[ALL:%[0-9]+]] = tile.dot([[A0]], [[B0]], [[KEPT]])
  // CHECK: arith.add([[ALL]], %c)
  // CHECK-NOT: bf16x6
  %d = tile.dot(%a, %b, %c) {input_precision = "bf16x6"} : tile<16x16xfp32>
  tile.store(%ps, %d, _)""",
        )
    )


def test_a_precision_of_fp32_says_nothing_of_other_types() -> None:
    run(
        with_operands(
            "bf16",
            """
  // CHECK: tile.dot(%a, %b, %c) : tile<16x16xfp32>
  // CHECK-NOT: tile.dot
  %d = tile.dot(%a, %b, %c) {input_precision = "tf32x3"} : tile<16x16xfp32>
  tile.store(%ps, %d, _)""",
        )
    )
