"""Assembly in the source of a kernel: emitted ops, results, and errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aotc.verify.interpreter.run import InterpretError, run
from tests.frontend.conftest import RNG, I, Sources, X, evaluate

ADD = "tl.inline_asm_elementwise('add.s32 $0, $1, $2;', '=r,r,r', [{}], tl.int32, True, 1)"


def call(
    asm: str = "mov.b32 $0, $1;",
    constraints: str = "=r,r",
    args: str = "[x]",
    dtype: str = "tl.int32",
    *,
    is_pure: bool = True,
    pack: int | str = 1,
) -> str:
    """Return the source of a call to `tl.inline_asm_elementwise`."""
    return (
        f"tl.inline_asm_elementwise(asm={asm!r}, constraints={constraints!r}, args={args}, "
        f"dtype={dtype}, is_pure={is_pure}, pack={pack})"
    )


def body(expression: str) -> str:
    return f"x = tl.load(p + tl.arange(0, 8))\nr = {expression}"


def text(sources: Sources, expression: str, p: str = "*i32") -> str:
    return sources.body(body(expression), {"p": p, "n": "i32"}, params="p, n")


def message(sources: Sources, expression: str, p: str = "*i32") -> str:
    return sources.body_error(body(expression), {"p": p, "n": "i32"}, params="p, n").render()


# ---- emitted ops ------------------------------------------------------------------------------


def test_pure_assembly_is_an_op_that_may_go(sources: Sources) -> None:
    ir = text(sources, call())
    assert 'asm.inline(%x) {text = "mov.b32 $0, $1;", constraints = "=r,r", ' in ir
    assert "dtypes = [i32], pack = 1} : tile<8xi32>" in ir


def test_other_assembly_stays(sources: Sources) -> None:
    assert "asm.volatile(%x)" in text(sources, call(is_pure=False))


def test_arguments_are_broadcast(sources: Sources) -> None:
    ir = text(sources, ADD.format("x[:, None], x[None, :]"))
    assert ": tile<8x8xi32>" in ir.split("asm.inline")[1]
    ir = text(sources, ADD.format("x, n"))
    assert ": tile<8xi32>" in ir.split("asm.inline")[1]


def test_numbers_are_scalars_of_their_type(sources: Sources) -> None:
    assert "asm.inline(%0, %n)" in sources.body(
        f"r = {ADD.format('7, n')}\ntl.store(p, r)", {"p": "*i32", "n": "i32"}, params="p, n"
    )


def test_without_arguments_the_result_is_a_scalar(sources: Sources) -> None:
    ir = text(sources, call("mov.u64 $0, %globaltimer;", "=l", "[]", "tl.int64", is_pure=False))
    assert "asm.volatile()" in ir
    assert "pack = 1} : i64" in ir


def test_a_tuple_of_types_gives_a_tuple(sources: Sources) -> None:
    ir = text(
        sources,
        call("mov.b32 $0, $2; mov.b32 $1, $2;", "=r,=f,r", "(x,)", "(tl.int32, tl.float32)")
        + "\na, b = r\ntl.store(p + tl.arange(0, 8), a + b.to(tl.int32))",
    )
    assert ": tile<8xi32>, tile<8xfp32>" in ir
    ir = text(sources, call(dtype="[tl.int32]") + "[0]\ntl.store(p + tl.arange(0, 8), r)")
    assert "dtypes = [i32]" in ir


def test_constants_make_up_the_text(sources: Sources) -> None:
    ir = sources.text(
        """
        NAME: tl.constexpr = "add"

        @triton.jit
        def k(p, KIND: tl.constexpr):
            x = tl.load(p)
            r = tl.inline_asm_elementwise(
                f"{NAME}.{KIND} $0, $1, 1;", "=r," + "r", [x], dtype=KIND2(), is_pure=True, pack=1)
            tl.store(p, r)

        @triton.jit
        def KIND2():
            return tl.int32
        """.replace("dtype=KIND2()", "dtype=tl.int32"),
        {"p": "*i32"},
        {"KIND": "s32"},
    )
    assert '"add.s32 $0, $1, 1;"' in ir


# ---- results ----------------------------------------------------------------------------------


def test_one_float_at_a_time(sources: Sources) -> None:
    asm = call("tanh.approx.f32 $0, $1;", "=f,f", dtype="tl.float32")
    actual = evaluate(sources, asm, X, "fp32", (4, 8))
    assert np.allclose(actual, np.tanh(X), atol=2e-3)


def test_two_halves_share_a_register(sources: Sources) -> None:
    x = X.astype(np.float16)
    asm = call("fma.rn.f16x2 $0, $1, $1, $2;", "=r,r,r", "[x, x]", "tl.float16", pack=2)
    actual = evaluate(sources, asm, x, "fp16", (4, 8))
    assert np.array_equal(actual, (x.astype(np.float64) ** 2 + x).astype(np.float16))


def test_two_bfloats_share_a_register(sources: Sources) -> None:
    x = X.astype(ml_dtypes.bfloat16)
    asm = call("fma.rn.bf16x2 $0, $1, $1, $2;", "=r,r,r", "[x, x]", "tl.bfloat16", pack=2)
    actual = evaluate(sources, asm, x, "bf16", (4, 8))
    expected = (x.astype(np.float64) ** 2 + x.astype(np.float64)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(actual, expected)


def test_four_bytes_share_a_register(sources: Sources) -> None:
    x = RNG.integers(0, 256, (4, 8)).astype(np.uint8)
    asm = call("lop3.b32 $0, $1, 0x0f0f0f0f, 0, 0xc0;", "=r,r", dtype="tl.uint8", pack=4)
    assert np.array_equal(evaluate(sources, asm, x, "u8", (4, 8)), x & 15)


def test_a_narrow_element_is_alone_below_zeros(sources: Sources) -> None:
    x = RNG.integers(-128, 128, (4, 8)).astype(np.int8)
    actual = evaluate(sources, call(), x, "i32", (4, 8))
    assert np.array_equal(actual, x.astype(np.uint8).astype(np.int32))
    half = X.astype(np.float16)
    asm = call("cvt.f32.f16 $0, $1;", "=f,h", dtype="tl.float32")
    assert np.array_equal(evaluate(sources, asm, half, "fp32", (4, 8)), half.astype(np.float32))


def test_wide_elements_take_a_register_each(sources: Sources) -> None:
    asm = call(
        "{ .reg .b32 t; mov.b32 t, $2; add.s32 $0, t, 1; add.s32 $1, $3, 2; }", "=&r,=r,r,r", pack=2
    )
    actual = evaluate(sources, asm, I, "i32", (4, 8))
    assert np.array_equal(actual, I + np.tile([1, 2], 16).reshape(4, 8))


def test_bytes_to_two_results(sources: Sources) -> None:
    x = RNG.integers(0, 256, (4, 8)).astype(np.uint8)
    asm = "{ and.b32 $0, $2, 0x0f0f0f0f; shr.u32 $1, $2, 4; and.b32 $1, $1, 0x0f0f0f0f; }"
    nibbles = call(asm, "=&r,=r,r", dtype="(tl.uint8, tl.uint8)", pack=4)
    for index, expected in ((0, x & 15), (1, x >> 4)):
        assert np.array_equal(evaluate(sources, f"{nibbles}[{index}]", x, "u8", (4, 8)), expected)


def test_a_group_that_is_not_full_repeats_the_last(sources: Sources) -> None:
    text = f"""
    @triton.jit
    def k(p):
        x = tl.load(p)
        tl.store(p, {call("add.u32 $0, $1, 0x01010101;", dtype="tl.uint8", pack=4)})
    """
    x = np.array([41, 7], np.uint8)
    run(sources.translate(text, {"p": "*u8"}).kernel, (1,), [x])
    assert x.tolist() == [42, 7]


def test_wide_registers(sources: Sources) -> None:
    asm = call("mul.wide.s32 $0, $1, $1;", "=l,r", dtype="tl.int64") + " // 2"
    actual = evaluate(sources, f"({asm}).to(tl.int32)", I, "i32", (4, 8))
    assert np.array_equal(actual, I * I // 2)
    asm = call("add.f64 $0, $1, $1;", "=d,d", "[x.to(tl.float64)]", "tl.float64")
    assert np.array_equal(evaluate(sources, asm, X, "fp64", (4, 8)), 2 * X.astype(np.float64))


def test_an_input_may_share_the_register_of_an_output(sources: Sources) -> None:
    asm = call("add.s32 $0, $0, $2;", "=r,0,r", "[x, x]")
    assert np.array_equal(evaluate(sources, asm, I, "i32", (4, 8)), 2 * I)


def test_predicates_and_labels(sources: Sources) -> None:
    asm = "{ .reg .pred p; setp.lt.s32 p, $1, 0; mov.b32 $0, $1; @!p bra done; neg.s32 $0, $1; done: }"
    actual = evaluate(sources, call(asm, "=&r,r"), I, "i32", (4, 8))
    assert np.array_equal(actual, np.abs(I))


def test_truth_values_are_bytes(sources: Sources) -> None:
    asm = call("xor.b32 $0, $1, 1;", args="[x > 0]", dtype="tl.int1")
    assert np.array_equal(evaluate(sources, asm, I, "i32", (4, 8)), (I <= 0).astype(np.int32))


def test_inside_of_a_reduction(sources: Sources) -> None:
    add = call("add.s32 $0, $1, $2;", "=r,r,r", "[a, b]")
    prelude = f"@triton.jit\ndef add(a, b):\n    return {add}\n"
    actual = evaluate(sources, "tl.reduce(x, 1, add)", I, "i32", (4,), prelude)
    assert np.array_equal(actual, I.sum(1))


@pytest.mark.parametrize(
    ("asm", "constraints", "reason"),
    [
        ("mov.u32 $0, %smid;", "=r,r", "reads %smid"),
        ("ld.global.b32 $0, [$1];", "=r,l", "is not known to do nothing but compute"),
        ("banana.b32 $0, $1;", "=r,r", "is not known to do nothing but compute"),
        ("add.s32 $0, %r99, $1;", "=r,r", "'%r99' is not declared"),
    ],
)
def test_what_has_no_meaning_by_itself(
    sources: Sources, asm: str, constraints: str, reason: str
) -> None:
    args = "[x.to(tl.int64)]" if "l" in constraints else "[x]"
    with pytest.raises(InterpretError, match="cannot be emulated: .*" + reason):
        evaluate(sources, call(asm, constraints, args), I, "i32", (4, 8))


# ---- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        (call(constraints="=r,r,r"), ["expected 1 input constraints", "i32", "got 2"]),
        (call(constraints="=r,=r,r"), ["expected 1 output constraints", "got 2"]),
        (call(pack=2), ["expected 2 output constraints", "got 1"]),
        (call(constraints="r,=r"), ["outputs come first"]),
        (call(constraints="=q,r"), ["'q' is no output constraint", "h, r, l, f, d"]),
        (call(constraints="=r,m"), ["'m' is no input constraint"]),
        (call(constraints="=r,3"), ["'3' is no input constraint"]),
        (call(constraints="=h,r"), ["'h' of 16 bits cannot hold i32", "use 'r'"]),
        (call(constraints="=d,r"), ["'d' of 64 bits cannot hold i32", "use 'r'"]),
        (call(constraints="=r,~{memory},r"), ["overwritten comes last"]),
        (call(constraints="=r,r,~memory"), ["overwritten comes last"]),
        (call(constraints="=r,0,0", args="[x, x]"), ["two inputs share the register of output 0"]),
        (call(constraints="=r,+r"), ["'+r' is no input constraint"]),
        (call(constraints="=,r"), ["'' is no output constraint"]),
        (call(constraints=""), ["expected 1 output constraints", "got 0"]),
        (call(pack=3), ["pack must be a power of two, got 3"]),
        (call(pack=0), ["pack must be a power of two, got 0"]),
        (call(pack="n"), ["must be known at compile time"]),
        (call("mov.b32 $0, $2;"), ["names the operand $2, but there are 2"]),
        (call("mov.b32 $0, $x;"), ["a single $ stands", "$$"]),
        (call(dtype="3"), ["must be a dtype", "tl.float32"]),
        (call(dtype="p.dtype"), ["must be a scalar dtype"]),
        (call(dtype="()"), ["must return at least one value"]),
        (call(args="x"), ["must be a list or a tuple", "args=[x]"]),
        (call(args="['a']"), ["expected a number or a tile", "'a'"]),
        (call(constraints="=r,r,r", args="[x, tl.arange(0, 4)]"), ["do not broadcast"]),
        (call(args="[x > 0]", dtype="tl.int8", pack=4), ["truth values cannot be packed"]),
        (call().replace("'mov.b32 $0, $1;'", "x"), ["the assembly", "must be a string"]),
        (call().replace("'=r,r'", "x"), ["the constraints", "must be a string"]),
        (call().replace(", pack=1", ""), ["missing the argument 'pack'"]),
    ],
)
def test_mistakes(sources: Sources, expression: str, parts: list[str]) -> None:
    shown = message(sources, expression)
    for part in parts:
        assert part in shown, shown


# ---- immediates -------------------------------------------------------------------------------


def test_an_immediate_is_written_into_the_text(sources: Sources) -> None:
    ir = text(sources, call("shf.l.clamp.b32 $0, $2, ${3}, $1; // $$", "=r, n, r,r", "[3, x, n]"))
    assert 'text = "shf.l.clamp.b32 $0, ${1}, ${2}, 3; // $$", constraints = "=r,r,r"' in ir


@pytest.mark.parametrize(
    ("constraints", "args", "expected"),
    [
        ("=r,n", "[x]", "an argument of tl.inline_asm_elementwise with the constraint 'n'"),
        ("=r,r,n", "[x]", "expected a constraint for each of 1 arguments beside 'n', got 2"),
    ],
)
def test_an_immediate_is_known_while_compiling(
    sources: Sources, constraints: str, args: str, expected: str
) -> None:
    assert expected in message(sources, call("mov.b32 $0, $1;", constraints, args))
