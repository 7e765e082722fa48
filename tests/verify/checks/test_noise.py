"""Noise: the set of inexact ops; each is perturbed by the hardware's error, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel, Op
from aotc.ir.text import parse_kernel
from aotc.verify.arrays import Array
from aotc.verify.checks.noise import inexact_ops, is_inexact, noisy_rules
from aotc.verify.interpreter.run import RULES, Interpreter

_TEXT = """\
kernel @k(%x: *fp32, %y: *fp32) {{num_warps = 4}} {{
  %i = tile.arange {{start = 0, end = 64}} : tile<64xi32>
  %xs = tile.splat(%x) {{shape = [64]}} : tile<64x*fp32>
  %ys = tile.splat(%y) {{shape = [64]}} : tile<64x*fp32>
  %p = arith.addptr(%xs, %i) : tile<64x*fp32>
  %q = arith.addptr(%ys, %i) : tile<64x*fp32>
  %a = tile.load(%p, _, _) : tile<64xfp32>
{body}
  tile.store(%q, %out, _)
  scf.return
}}
"""
_SUM = """\
  %s = tile.reduce(%a) {axis = 0} (%l: fp32, %r: fp32) {
    %t = arith.OP(%l, %r) : fp32
    scf.yield(%t)
  } : fp32
  %out = tile.splat(%s) {shape = [64]} : tile<64xfp32>"""


def _kernel(body: str) -> Kernel:
    return parse_kernel(_TEXT.format(body=body))


def _unary(opcode: str, extra: str = "") -> Kernel:
    return _kernel(f"  %out = arith.{opcode}(%a){extra} : tile<64xfp32>")


def _inexact(kernel: Kernel) -> list[str]:
    return [op.opcode for op in inexact_ops(kernel)]


def _run(
    kernel: Kernel,
    x: Array,
    ops: list[Op],
    seed: int,
    *,
    upwards: bool,
    start: float = 0.0,
    apart: int = 0,
) -> Array:
    y = np.full_like(x, start)
    rules = noisy_rules(RULES, seed, ops, upwards=upwards, apart=apart)
    Interpreter(kernel, [x, y], rules=rules).run((1,))
    return y


def _exact(kernel: Kernel, x: Array) -> Array:
    return _run(kernel, x, [], 0, upwards=True)


X = np.random.default_rng(1).uniform(0.5, 4.0, 64).astype(np.float32)


@pytest.mark.parametrize(
    ("opcode", "extra", "steps"),
    [
        ("exp", "", 9.0),  # a step of the operand, up to 4, is 4 of the result
        ("exp2", "", 2.5),
        ("log", "", 2.5),
        ("rsqrt", "", 2.5),
        ("sin", "", 2.5),
        ("libdevice", ' {symbol = "__nv_tanhf", dtype = fp32}', 5.5),
    ],
)
def test_an_approximation_moves_by_its_error(opcode: str, extra: str, steps: float) -> None:
    kernel = _unary(opcode, extra)
    (op,) = inexact_ops(kernel)
    exact = _exact(kernel, X)
    step = np.spacing(np.abs(exact)) * 2  # a step of the value's magnitude is one or two of these
    up = _run(kernel, X, [op], 1, upwards=True)
    error_steps = (up - exact) / step
    assert (np.abs(error_steps) > 0.2).all()
    assert (np.abs(error_steps) <= steps).all()
    assert (up >= exact).all()
    downward = _run(kernel, X, [op], 2, upwards=False) - exact
    assert (downward > 0).any()
    assert (downward < 0).any()


def test_a_narrow_overflow_may_stay_finite() -> None:
    kernel = _unary("exp2", "")
    (op,) = inexact_ops(kernel)
    x = np.array([128.0, 128.5, 127.0, np.inf], np.float32)
    up = _run(kernel, np.tile(x, 16), [op], 1, upwards=True)[:4]
    assert np.isfinite(up).tolist() == [True, False, True, False]
    assert up[0] > 0.999 * 2.0**128


def test_a_quotient_by_an_overflow_may_be_tiny() -> None:
    """A sigmoid is 0 where its exponential is infinite; its factor may be large."""
    kernel = _kernel(
        "  %e = arith.exp(%a) : tile<64xfp32>\n  %out = arith.div(%a, %e) : tile<64xfp32>"
    )
    (division,) = [op for op in inexact_ops(kernel) if op.opcode == "arith.div"]
    x = np.full(64, 90.0, np.float32)
    x[::2] = np.inf
    assert (_exact(kernel, x)[1::2] == 0.0).all()
    perturbed = _run(kernel, x, [division], 0, upwards=True)
    assert (perturbed[1::2] == np.float32(90.0 * 2.0**-126)).all()
    assert np.isnan(perturbed[::2]).all()


@pytest.mark.parametrize("opcode", ["neg", "abs", "floor", "ceil", "sqrt_rn"])
def test_exact_ops_are_not_perturbed(opcode: str) -> None:
    assert _inexact(_unary(opcode)) == []


def test_libdevice_has_exact_functions() -> None:
    assert _inexact(_unary("libdevice", ' {symbol = "__nv_rintf", dtype = fp32}')) == []


def test_a_product_is_inexact_if_it_may_be_contracted_with_a_sum() -> None:
    product = "  %out = arith.mul(%a, %a) : tile<64xfp32>"
    assert _inexact(_kernel(product)) == []
    chain = "  %b = arith.mul(%a, %a) : tile<64xfp32>\n  %out = arith.add(%b, %a) : tile<64xfp32>"
    assert _inexact(_kernel(chain)) == ["arith.mul"]


def test_a_sum_is_moved_in_a_reduction_and_nowhere_else() -> None:
    kernel = _kernel(_SUM.replace("OP", "add"))
    assert _inexact(kernel) == ["tile.reduce"]
    exact = _exact(kernel, X)
    perturbed = _run(kernel, X, inexact_ops(kernel), 1, upwards=True)
    relative = (perturbed - exact) / exact
    # Six levels of a tree, each off by up to a step.
    assert (relative > 2 * 2.0**-23).all()
    assert (relative < 14 * 2.0**-23).all()
    alone = _kernel("  %out = arith.add(%a, %a) : tile<64xfp32>")
    assert _inexact(alone) == []


def test_a_maximum_is_the_same_in_any_order() -> None:
    assert _inexact(_kernel(_SUM.replace("OP", "max"))) == []


_PRODUCT = """\
  %l = tile.reshape(%a) {shape = [8, 8]} : tile<8x8xfp32>
  %r = tile.trans(%l) {order = [1, 0]} : tile<8x8xfp32>
  %zero = arith.constant {value = 0.0, type = tile<8x8xfp32>} : tile<8x8xfp32>
  %d = tile.dot(%l, %r, %zero) {input_precision = "ieee"} : tile<8x8xfp32>
  %out = tile.reshape(%d) {shape = [64]} : tile<64xfp32>"""


_SCALED = """\
  %b = arith.mul(%a, %a) : tile<64xfp32>
  %t = arith.add(%b, %a) : tile<64xfp32>
{between}
  %out = arith.sub(%c, %a) : tile<64xfp32>"""


@pytest.mark.parametrize(
    ("between", "sums"),
    [
        ("  %c = arith.mul(%t, %a) : tile<64xfp32>", ["arith.add"]),
        (
            """\
  %lo = arith.constant {value = 0, type = i32} : i32
  %hi = arith.constant {value = 3, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %d, %c = scf.for(%lo, %hi, %one, %t, %a) (%k: i32, %e: tile<64xfp32>, %f: tile<64xfp32>) {
    scf.yield(%f, %e)
  } : tile<64xfp32>, tile<64xfp32>""",
            ["arith.add"],
        ),
        ("  %c = arith.max(%t, %a) : tile<64xfp32>", []),
    ],
    ids=["scaled", "carried", "compared"],
)
def test_a_scaled_or_carried_sum_may_round_either_way(between: str, sums: list[str]) -> None:
    inexact = _inexact(_kernel(_SCALED.format(between=between)))
    assert [name for name in inexact if name == "arith.add"] == sums


def test_a_product_with_overflowing_terms_is_unknown_unless_infinite() -> None:
    kernel = _kernel(_PRODUCT)
    x = np.ones((8, 8), np.float32)
    x[0, :2] = 3e19, 3e19
    x[1, :2] = 3e19, -3e19
    x[2, 0] = np.inf
    exact = _exact(kernel, x.reshape(-1)).reshape(8, 8)
    assert (exact[0, 0], exact[0, 1], exact[2, 3], exact[3, 3]) == (np.inf, 6, np.inf, 8)
    perturbed = _run(kernel, x.reshape(-1), inexact_ops(kernel), 1, upwards=True).reshape(8, 8)
    # Upwards it is NaN, and at random each infinity: no maximum hides all.
    assert np.isnan(perturbed[:2, :2]).all()
    for seed, infinity in ((1, np.inf), (2, -np.inf)):
        either = _run(kernel, x.reshape(-1), inexact_ops(kernel), seed, upwards=False)
        assert (either.reshape(8, 8)[:2, :2] == infinity).all()
    assert (perturbed[2, 2:] == np.inf).all()
    assert np.all(np.abs(perturbed[3:, 3:] - 8) < 1e-4)


def test_noise_does_not_overflow_sums() -> None:
    """Twice the largest number and a negative infinity: NaN or infinite, as the order will have it."""
    kernel = _kernel(_SUM.replace("OP", "add"))
    x = np.full(64, -1.0, np.float32)
    x[[5, 27]] = np.finfo(np.float32).max
    x[12] = -np.inf
    (op,) = inexact_ops(kernel)
    assert np.isnan(_exact(kernel, x)).all()
    runs = [_run(kernel, x, [op], 1, upwards=True)]
    runs += [_run(kernel, x, [op], seed, upwards=False) for seed in (1, 2)]
    assert any((run == -np.inf).all() for run in runs)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_infinite_term_may_meet_an_opposite_overflow(sign: float) -> None:
    """An infinity comes first; terms of the other sign overflow among themselves in another order."""
    kernel = _kernel(_SUM.replace("OP", "add"))
    x = np.zeros(64, np.float32)
    x[0], x[5:7] = sign * np.inf, -sign * 3e38
    assert (_exact(kernel, x) == sign * np.inf).all()
    assert np.isnan(_run(kernel, x, inexact_ops(kernel), 1, upwards=True)).all()
    for terms in ((-sign * 1e38, -sign * 2e38), (sign * 3e38, sign * 3e38), (3e38, -3e38)):
        x[5:7] = terms
        assert (_run(kernel, x, inexact_ops(kernel), 1, upwards=True) == sign * np.inf).all()
    x[5:7] = 3e38, 3e38
    x[7:9] = -sign * np.inf, sign * np.inf
    with np.errstate(invalid="ignore"):
        assert np.isnan(_run(kernel, x, inexact_ops(kernel), 1, upwards=False)).all()


def test_an_overflow_hidden_by_a_maximum_is_seen() -> None:
    """A sum that overflows to either side: NaN and negatives are 0 after the maximum."""
    kernel = _kernel(
        _PRODUCT.replace("tile.reshape(%d)", "tile.reshape(%m)").replace(
            "  %out", "  %m = arith.max(%d, %zero) : tile<8x8xfp32>\n  %out"
        )
    )
    x = np.ones((8, 8), np.float32)
    x[0, :2] = 3e19, 3e19
    x[1, :2] = -3e19, -3e19
    assert _exact(kernel, x.reshape(-1)).reshape(8, 8)[0, 1] == 0
    (op,) = inexact_ops(kernel)
    runs = [_run(kernel, x.reshape(-1), [op], seed, upwards=False) for seed in (1, 2)]
    assert {run.reshape(8, 8)[0, 1] for run in runs} == {0.0, np.inf}


@pytest.mark.parametrize(
    ("apart", "expected"), [(0, {np.inf}), (1, {-np.inf}), (2, {np.inf})], ids=str
)
def test_opposite_overflows_may_meet(apart: int, expected: set[float]) -> None:
    """A product of two sums, each overflowing in some order."""
    sums = [
        _SUM.replace("OP", "add")
        .replace("%s =", f"%s{number} =")
        .replace("(%s)", f"(%s{number})")
        .replace("%l", f"%l{number}")
        .replace("%r:", f"%r{number}:")
        .replace("%r)", f"%r{number})")
        .replace("%t", f"%t{number}")
        .replace("%out", f"%out{number}")
        for number in (1, 2)
    ]
    product = "  %out = arith.mul(%out1, %out2) : tile<64xfp32>"
    kernel = _kernel("\n".join([*sums, product]))
    x = np.ones(64, np.float32)
    x[[5, 27]] = np.finfo(np.float32).max
    x[[6, 28]] = -np.finfo(np.float32).max
    ops = [op for op in inexact_ops(kernel) if op.opcode == "tile.reduce"]
    assert len(ops) == 2
    runs = [_run(kernel, x, ops, seed, upwards=False, apart=apart) for seed in (1, 2)]
    assert {run[0] for run in runs} == expected


def test_an_infinite_sum_with_an_opposite_overflow_may_be_nan() -> None:
    """A product of -3e39, an infinity, and an infinity added after: NaN if the product comes first."""
    kernel = _kernel(
        _PRODUCT.replace("tile.reshape(%d)", "tile.reshape(%s)").replace(
            "  %out", "  %s = arith.add(%d, %l) : tile<8x8xfp32>\n  %out"
        )
    )
    x = np.ones((8, 8), np.float32)
    x[0, :2] = 3e19, np.inf
    x[1, 0] = -1e20
    assert _exact(kernel, x.reshape(-1)).reshape(8, 8)[0, 1] == np.inf
    perturbed = _run(kernel, x.reshape(-1), inexact_ops(kernel)[:1], 1, upwards=True)
    assert np.isnan(perturbed.reshape(8, 8)[0, 1])


def test_division_of_integers_is_exact() -> None:
    body = """\
  %j = arith.div(%i, %i) : tile<64xi32>
  %out = arith.cast(%j) {dtype = fp32} : tile<64xfp32>"""
    assert not any(is_inexact(op) for op in _kernel(body).walk())


# ---- assembly ---------------------------------------------------------------------------------


def _assembly(text: str, opcode: str = "inline", constraint: str = "f") -> Kernel:
    attributes = f'text = "{text}", constraints = "={constraint},f", dtypes = [fp32], pack = 1'
    return _kernel(f"  %out = asm.{opcode}(%a) {{{attributes}}} : tile<64xfp32>")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ex2.approx.ftz.f32 $0, $1;", 2.0**-20),
        ("div.full.f32 $0, $1, 0f40400000;", 2.0**-20),
        ("add.f32 $0, $1, $1;", 2.0**-20),
        ("tanh.approx.f32 $0, $1;", 2.0**-10),
    ],
)
@pytest.mark.parametrize("opcode", ["inline", "volatile"])
def test_approximate_assembly_moves_its_floats(opcode: str, text: str, error: float) -> None:
    kernel = _assembly(text, opcode)
    assert _inexact(kernel) == [f"asm.{opcode}"]
    exact, perturbed = _exact(kernel, X), _run(kernel, X, inexact_ops(kernel), 1, upwards=True)
    assert np.all(perturbed > exact)
    assert np.all(perturbed - exact <= error * exact + np.spacing(exact))


@pytest.mark.parametrize("text", ["add.rn.f32 $0, $1, $1;", "mov.b32 $0, $1;", "neg.f32 $0, $1;"])
def test_other_assembly_is_exact(text: str) -> None:
    assert _inexact(_assembly(text)) == []


def test_integers_of_assembly_are_exact() -> None:
    attributes = 'text = "cvt.rni.s32.f32 $0, $1; // .approx", constraints = "=r,f"'
    kernel = _kernel(
        f"  %n = asm.inline(%a) {{{attributes}, dtypes = [i32], pack = 1}} : tile<64xi32>\n"
        "  %out = arith.cast(%n) {dtype = fp32} : tile<64xfp32>"
    )
    assert _inexact(kernel) == []


def test_a_sum_of_sums_is_inexact_if_a_product_in_it_is() -> None:
    first = "  %s = arith.OP(%a, %a) : tile<64xfp32>\n  %t = arith.add(%s, %a) : tile<64xfp32>\n"
    kernel = first + "  %out = arith.sub(%t, %a) : tile<64xfp32>"
    assert _inexact(_kernel(kernel.replace("OP", "mul"))) == ["arith.mul", "arith.add"]
    assert _inexact(_kernel(kernel.replace("OP", "add"))) == []
    last = first + "  %out = arith.neg(%t) : tile<64xfp32>"
    assert _inexact(_kernel(last.replace("OP", "mul"))) == ["arith.mul"]


def test_a_sum_rounding_either_way_shows_where_the_next_cancels() -> None:
    """0.1 * 0.1 + 4 - 4: contracted or not, the rest is a multiple of a step of 4."""
    kernel = _kernel("""\
  %c = arith.constant {value = 4.0, type = tile<64xfp32>} : tile<64xfp32>
  %s = arith.mul(%a, %a) : tile<64xfp32>
  %t = arith.add(%s, %c) : tile<64xfp32>
  %out = arith.sub(%t, %c) : tile<64xfp32>""")
    x = np.random.default_rng(2).uniform(0.1, 0.2, 64).astype(np.float32)
    x[:8] = 0.125
    exact = _exact(kernel, x)
    up = _run(kernel, x, inexact_ops(kernel), 1, upwards=True)
    assert (up[8:] - exact[8:] >= 2.0**-21).all()
    assert (up[:8] == exact[:8]).all()  # 2**-6 + 4 needs no rounding


_ATOMIC = """\
kernel @k(%x: *fp32, %y: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 64} : tile<64xi32>
  %zero = arith.constant {value = 0, type = tile<64xi32>} : tile<64xi32>
  %xs = tile.splat(%x) {shape = [64]} : tile<64x*fp32>
  %ys = tile.splat(%y) {shape = [64]} : tile<64x*fp32>
  %p = arith.addptr(%xs, %i) : tile<64x*fp32>
  %q = arith.addptr(%ys, %zero) : tile<64x*fp32>
  %a = tile.load(%p, _, _) : tile<64xfp32>
  %was = tile.atomic_rmw(%q, %a, _) {kind = "add"} : tile<64xfp32>
  scf.return
}
"""


@pytest.mark.parametrize(
    ("addends", "is_open"),
    [
        ((-3e38, -3e38, np.inf), True),  # NaN as written, infinite if an infinity comes first
        ((3e38, -3e38, 3e38), True),
        ((3e38, 3e38, -np.inf, 200.0), True),
        ((-3e38, np.inf), False),
        ((np.inf, -np.inf), False),
        ((1e38, 1e38, 1.0), False),
    ],
)
def test_an_atomic_sum_that_overflows_in_some_order_is_unknown(
    addends: tuple[float, ...], is_open: bool
) -> None:
    kernel = parse_kernel(_ATOMIC)
    x = np.zeros(64, np.float32)
    x[5 : 5 + len(addends)] = addends
    exact = _exact(kernel, x)[0]
    runs = [_run(kernel, x, inexact_ops(kernel), seed, upwards=False)[0] for seed in (1, 2)]
    runs.append(_run(kernel, x, inexact_ops(kernel), 3, upwards=True)[0])
    same = [
        run == exact or (np.isnan(run) and np.isnan(exact)) or abs(run - exact) < 1e-5 * abs(exact)
        for run in runs
    ]
    assert all(same) is not is_open, (exact, runs)


@pytest.mark.parametrize("upwards", [True, False])
def test_an_atomic_sum_moves_by_a_step_of_the_sum(upwards: bool) -> None:
    """Each addition is rounded to a step, however small the addend."""
    kernel = parse_kernel(_ATOMIC)
    x = np.zeros(64, np.float32)
    x[3:9] = 0.3
    ops = inexact_ops(kernel)
    exact = _run(kernel, x, [], 0, upwards=True, start=9129953.0)[0]
    perturbed = _run(kernel, x, ops, 1, upwards=upwards, start=9129953.0)[0]
    assert 1.0 <= abs(perturbed - exact) <= 6.0
    if upwards:
        assert perturbed > exact


def test_an_atomic_sum_of_whole_numbers_is_exact() -> None:
    kernel = parse_kernel(_ATOMIC)
    x = np.arange(64, dtype=np.float32)
    ops = inexact_ops(kernel)
    assert _run(kernel, x, ops, 1, upwards=True, start=1e6)[0] == 1e6 + x.sum()


def test_a_product_may_be_fused_into_one_of_its_sums() -> None:
    """As a softmax does: `fma(x, c, -m)` where m is the largest of the rounded `x * c`."""
    kernel = _kernel(
        """\
  %c = arith.constant {value = 4099.7, type = tile<64xfp32>} : tile<64xfp32>
  %m = arith.mul(%a, %c) : tile<64xfp32>
  %n = arith.neg(%m) : tile<64xfp32>
  %out = arith.add(%m, %n) : tile<64xfp32>"""
    )
    assert _inexact(kernel) == ["arith.mul", "arith.add"]
    ops = inexact_ops(kernel)
    product = X * np.float32(4099.7)
    fused = X.astype(np.float64) * float(np.float32(4099.7)) - product
    perturbation = _run(kernel, X, ops, 1, upwards=True) - _exact(kernel, X)
    assert (np.abs(fused) <= 2 * np.abs(perturbation)).all()
    assert (np.abs(perturbation) <= 2.0**-22 * product).all()


def test_a_product_used_by_one_sum_is_perturbed_once() -> None:
    kernel = _kernel(
        """\
  %m = arith.mul(%a, %a) : tile<64xfp32>
  %out = arith.add(%m, %a) : tile<64xfp32>"""
    )
    assert _inexact(kernel) == ["arith.mul"]


def test_early_cancellation_shows_the_loss_of_late_cancellation() -> None:
    """As 1 + t - 1 is, where the tree adds 1 and -1 first; whole numbers are the same in any order."""
    kernel = _kernel(_SUM.replace("OP", "add"))
    tiny = np.float32(1.8125 * 2.0**-24)
    x = np.zeros(64, np.float32)
    x[0], x[32], x[1] = 1.0, -1.0, tiny
    assert _exact(kernel, x)[0] == tiny
    lost = abs(float(np.float32(np.float32(1.0) + tiny) - np.float32(1.0)) - float(tiny))
    perturbations = [
        abs(float(_run(kernel, x, inexact_ops(kernel), seed, upwards=seed < 2)[0]) - float(tiny))
        for seed in range(6)
    ]
    assert min(perturbations) > lost / 2  # bounds are four times the perturbation
    assert max(perturbations) < 2.0**-21
    x[1] = 3.0
    assert _run(kernel, x, inexact_ops(kernel), 0, upwards=True)[0] == 3.0
