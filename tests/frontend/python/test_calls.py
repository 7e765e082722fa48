from __future__ import annotations

import pytest

from aotc.ir.diagnostics import CompileError
from tests.frontend.conftest import Sources


def test_constants_stay_constants_inside(sources: Sources) -> None:
    text = """
    @triton.jit
    def f(p, n, m=2, *, k: tl.constexpr = 1):
        tl.store(p + tl.arange(0, n * m * k), 1)

    @triton.jit
    def k(p):
        f(p, 4)
        f(p, m=4, n=4, k=2)
    """
    ir = sources.text(text, {"p": "*i32"})
    assert "tile<8x*i32>" in ir
    assert "tile<32x*i32>" in ir


def test_functions_as_arguments(sources: Sources) -> None:
    text = """
    @triton.jit
    def twice(x):
        return x * 2

    @triton.jit
    def apply(f: tl.constexpr, x):
        return f(x)

    @triton.jit
    def k(p, x, F: tl.constexpr = twice):
        tl.store(p, apply(twice, x))
        tl.store(p, apply(F, x))
    """
    ir = sources.text(text, {"p": "*fp32", "x": "fp32"})
    assert ir.count("arith.mul") == 2


def test_starred_arguments_and_parameters(sources: Sources) -> None:
    text = """
    @triton.jit
    def total(first, *rest):
        for x in rest:
            first += x
        return first

    @triton.jit
    def k(p, n):
        args = (n, n, n)
        tl.store(p, total(n, *args))
    """
    assert sources.text(text, {"p": "*i32", "n": "i32"}).count("arith.add(") == 3


def test_constexpr_functions(sources: Sources) -> None:
    text = """
    @triton.constexpr_function
    def log2(n):
        bits = 0
        while n > 1:
            n //= 2
            bits += 1
        return bits

    @triton.jit
    def k(p, N: tl.constexpr):
        tl.store(p + tl.arange(0, 2 ** log2(N)), 1)
    """
    assert "tile<64x*i32>" in sources.text(text, {"p": "*i32"}, {"N": 100})
    wrong = text.replace("log2(N)", "log2(tl.program_id(0))")
    assert (
        "takes constants, got a run-time int32"
        in sources.error(wrong, {"p": "*i32"}, {"N": 4}).message
    )


def test_plain_functions_are_refused(sources: Sources) -> None:
    error = sources.error("def f(x):\n    return x\n@triton.jit\ndef k():\n    f(1)\n")
    assert error.message == "f is a plain Python function, which a kernel cannot call"
    assert "@triton.jit" in error.remedy


def test_decorators_are_seen_through(sources: Sources) -> None:
    text = """
    import something

    @something.entry(fast=True)
    @triton.autotune(configs=[], key=[])
    @triton.jit(do_not_specialize=["n"])
    def k(p, n):
        tl.store(p, other(n))

    def other(n):
        return n + 1
    other = triton.jit(other)
    """
    assert "arith.add" in sources.text(text, {"p": "*i32", "n": "i32"})


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("isinstance(n, tl.tensor)", "True"),
        ("isinstance(1, tl.tensor)", "False"),
        ("isinstance(B, tl.constexpr)", "False"),
        ("isinstance(B, int)", "True"),
        ("hasattr(n, 'sum')", "True"),
        ("hasattr(n, 'nothing')", "False"),
        ("hasattr(tl, 'dot')", "True"),
        ("hasattr(tl, 'nothing')", "False"),
        ("getattr(tl, 'cdiv')(7, 2)", "4"),
        ("getattr(n, 'dtype')", "int32"),
        ("getattr(tl, 'nothing', B)", "8"),
        ("tl.float16 == tl.float8e4b8", "False"),
        ("tl.float8e4b8 != p.dtype.element_ty", "True"),
        ("len((1, 2, 3))", "3"),
        ("min(3, 1, 2) + max(1, 2)", "3"),
        ("float('inf')", "inf"),
        ("int(2.9)", "2"),
        ("tl.constexpr(3) + 1", "4"),
        ("tl.cdiv(7, 2)", "4"),
        ("(7 // -2, -7 % 3)", "(-4, 2)"),
        ("B.value", "8"),
        ("[1] * 2 + [B]", "(1, 1, 8)"),
        ("(1, 2, 3)[1:]", "(2, 3)"),
        ("[i * B for i in (1, 2)]", "(8, 16)"),
        ("[i * j for i in (1, 2) for j in (3, 4)]", "(3, 4, 6, 8)"),
        ("[i + j for i in (1, 2) if i > 1 for j in (B, i) if j != 8]", "(4)"),
        ("[j for i in ((1, 2), (3,)) for j in i]", "(1, 2, 3)"),
        ("[[i * j for j in (1, 2)] for i in (3, 4)]", "((3, 6), (4, 8))"),
        ("[name.upper() for name in 'a,b'.split(',')]", "('A', 'B')"),
        ("'bf16'.startswith('bf') and 'bf16'.removeprefix('bf')", "16"),
        ("'{}-{}'.format(B, 'x'.upper())", "8-X"),
        ("'-'.join(['a', 'b']).replace('-', '+')", "a+b"),
        ("f'{B}_{tl.int8}'", "8_int8"),
        ("B == 8 and 'yes'", "yes"),
        ("None is None", "True"),
        ("1 < B <= 8", "True"),
        ("B in (4, 8)", "True"),
        ("0xFFFFFFFFFF", "1099511627775"),
        ("n.dtype", "int32"),
        ("p.dtype.element_ty", "fp16"),
        ("p.type.element_ty == tl.float16", "True"),
        ("p.dtype.is_ptr()", "True"),
        ("tl.arange(0, B).shape", "(8)"),
        ("tl.arange(0, B)[:, None].shape[1]", "1"),
        ("tl.arange(0, B).type.is_block()", "True"),
        ("tl.arange(0, B).numel", "8"),
        ("tl.bfloat16.primitive_bitwidth", "16"),
        ("tl.int64.is_int_signed()", "True"),
        ("T == tl.bfloat16", "True"),
        ("T == 'bf16'", "True"),
        ("tl.pointer_type(tl.int8)", "pointer<int8>"),
    ],
)
def test_constants(sources: Sources, expression: str, printed: str) -> None:
    text = f"@triton.jit\ndef k(p, n, B: tl.constexpr, T: tl.constexpr):\n    tl.static_print({expression})\n"
    translation = sources.translate(text, {"p": "*fp16", "n": "i32"}, {"B": 8, "T": "bf16"})
    assert translation.prints == (printed,)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("[i for i in (1, 2) if n > i]", "a condition"),
        ("[i for i in n]", "a comprehension goes over a tuple"),
        ("'bf16'.encode()", "has no attribute 'encode'"),
        ("'{}'.format(n)", "a run-time"),
    ],
)
def test_no_constants(sources: Sources, expression: str, message: str) -> None:
    error = sources.body_error(f"tl.static_print({expression})", {"n": "i32"}, params="n")
    assert message in str(error)


def test_variables_of_a_comprehension_are_its_own(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(p):
        i: tl.constexpr = 5
        pairs: tl.constexpr = [i * j for i in (1, 2) for j in (3, 4)]
        tl.static_print(i, pairs[3])
        j
    """
    error = sources.error(text, {"p": "*i32"})
    assert "j is not defined" in str(error)
    assert sources.translate(text.replace("        j\n", ""), {"p": "*i32"}).prints == ("5 8",)


def test_a_function_may_call_itself_where_shapes_end_that(sources: Sources) -> None:
    text = sources.text(
        """
        @triton.jit
        def eighths(x):
            if x.shape[0] == 8:
                parts = (x,)
            else:
                left, right = tl.split(x.reshape(x.shape[0] // 2, 2))
                parts = eighths(left) + eighths(right)
            return parts

        @triton.jit
        def k(p):
            parts = eighths(tl.arange(0, 64))
            for part in tl.static_range(8):
                tl.store(p + part * 8 + tl.arange(0, 8), parts[part])
        """,
        {"p": "*i32"},
    )
    assert text.count("tile.split") == 7
    assert text.count("tile.store") == 8


def test_a_function_may_call_itself_where_a_constant_ends_that(sources: Sources) -> None:
    text = sources.text(
        """
        @triton.jit
        def power(x, N: tl.constexpr):
            if N == 0:
                return 1
            return x * power(x, N - 1)

        @triton.jit
        def k(p, n):
            tl.store(p, power(n, 30))
        """,
        {"p": "*i32", "n": "i32"},
    )
    assert text.count("arith.mul") == 30


_APPLY = """
import triton.language.extra.libdevice as device
from lib.functions import double

@triton.jit
def negate(x):
    return -x

@triton.jit
def largest(a, b):
    return tl.maximum(a, b)

NUMBER = tl.constexpr(3)

@triton.jit
def k(p, F: tl.constexpr, COMBINE: tl.constexpr = "largest"):
    x = tl.load(p + tl.arange(0, 8))
    if F != "nothing":
        x = F(x)
    tl.store(p, tl.reduce(x, 0, COMBINE))
"""


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("negate", "arith.neg"),
        ("double", "arith.mul"),
        ("tl.sigmoid", "arith.exp"),
        ("device.tanh", "libdevice"),
        ("lib/functions.py:double", "arith.mul"),
        ("nothing", "tile.reduce"),
    ],
)
def test_a_constant_may_name_a_function(sources: Sources, name: str, op: str) -> None:
    sources.write("@triton.jit\ndef double(x):\n    return x * 2\n", "lib/functions.py")
    text = sources.text(_APPLY, {"p": "*fp32"}, {"F": name})
    assert op in text
    assert "arith.max" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("negat", "did you mean 'negate'?"),
        ("NUMBER", "'NUMBER' is called, so it must name a function; it is 3"),
        ("a b", "'a b' cannot be called: it is no name of a function"),
        ("lib/none.py:double", "none.py"),
        ("lib/functions.py:triple", "triple"),
    ],
)
def test_a_constant_that_names_no_function(sources: Sources, name: str, message: str) -> None:
    sources.write("@triton.jit\ndef double(x):\n    return x * 2\n", "lib/functions.py")
    with pytest.raises(CompileError) as caught:
        sources.translate(_APPLY, {"p": "*fp32"}, {"F": name})
    assert message in caught.value.render()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("getattr(tl, 'cidv')", "unknown name tl.cidv"),
        ("getattr(tl, n)", "getattr() takes the name as a constant string, got int32"),
        ("getattr(n, 'nothing')", "int32 has no attribute 'nothing'"),
        ("tl.float8e4b8 < tl.float16", "aotc does not have tl.float8e4b8 yet"),
    ],
)
def test_what_reflection_refuses(sources: Sources, expression: str, message: str) -> None:
    error = sources.body_error(f"x = {expression}", {"n": "i32"}, params="n")
    assert error.message == message


def test_logical_methods(sources: Sources) -> None:
    body = "x = (n > 1).logical_and(n < 9)\ntl.store(p, x.logical_or(n == 20))"
    text = sources.body(body, {"p": "*i1", "n": "i32"}, params="p, n")
    assert "arith.and" in text
    assert "arith.or" in text


def test_limits_of_torch_in_a_kernel(sources: Sources) -> None:
    text = sources.text(
        """
        import torch
        @triton.jit
        def k(p):
            tl.store(p, torch.finfo(torch.float16).max)
        """,
        {"p": "*fp32"},
    )
    assert "65504" in text
