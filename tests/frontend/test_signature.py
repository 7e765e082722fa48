from __future__ import annotations

import re
from pathlib import Path

import pytest

from aotc.frontend import heuristic_problems, kernel_parameters
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import tile
from tests.frontend.conftest import Sources

TEXT = """
@triton.jit
def k(x_ptr, n, scale, BLOCK: tl.constexpr, FLAG: tl.constexpr = False):
    offs = tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) * scale, mask=offs < n)
"""
GOOD = {"x_ptr": "*fp16:16", "n": "i32:16", "scale": "fp32"}


def test_parameters_keep_their_order_and_promises(sources: Sources) -> None:
    translation = sources.translate(TEXT, dict(reversed(GOOD.items())), {"BLOCK": 16}, num_warps=8)
    assert [(param.name, param.divisibility) for param in translation.kernel.params] == [
        ("x_ptr", 16),
        ("n", 16),
        ("scale", 1),
    ]
    assert [str(arg.type) for arg in translation.kernel.body.args] == ["*fp16", "i32", "fp32"]
    assert translation.kernel.num_warps == 8
    assert translation.kernel.name == "k"


def test_fixed_values_are_constants(sources: Sources) -> None:
    text = sources.text(TEXT, {**GOOD, "n": "i32 = 16", "scale": "fp32=0.5"}, {"BLOCK": 16})
    assert text.startswith("kernel @k(%x_ptr: *fp16 {divisibility = 16}) ")
    assert "value = 16, type = tile<16xi32>" in text


@pytest.mark.parametrize(
    ("signature", "constants", "message", "remedy"),
    [
        ({}, {"BLOCK": 16}, "parameter x_ptr of k has no type (nor have n, scale)", "signature"),
        (GOOD, {}, "parameter BLOCK of k has no value", "constants"),
        ({**GOOD, "m": "i32"}, {"BLOCK": 16}, "'m' of the signature is", ""),
        ({**GOOD, "scal": "i32"}, {"BLOCK": 16}, "no parameter of k", "'scale'"),
        (GOOD, {"BLOK": 16}, "'BLOK' of the constants is", "'BLOCK'"),
        ({**GOOD, "n": "int"}, {"BLOCK": 16}, "must be like", ""),
        ({**GOOD, "x_ptr": "*f16"}, {"BLOCK": 16}, "got '*f16'", "'*fp16'"),
        ({**GOOD, "BLOCK": "i32"}, {}, "BLOCK is a tl.constexpr parameter", "constants"),
        ({**GOOD, "n": "i8=300"}, {"BLOCK": 16}, "from -128 to 127, got 300", ""),
        ({**GOOD, "n": "i32=x"}, {"BLOCK": 16}, "fixed value of n must be of type i32", ""),
        ({**GOOD, "x_ptr": "*fp16=0"}, {"BLOCK": 16}, "only a scalar can have a fixed value", ""),
        ({**GOOD, "n": "i32 noalias"}, {"BLOCK": 16}, "only a pointer can be promised", ""),
        ({**GOOD, "scale": "fp32:16"}, {"BLOCK": 16}, "divisibility of scale", ""),
        ({**GOOD, "n": "i32:0"}, {"BLOCK": 16}, "divisibility of n", ""),
        ({**GOOD, "x_ptr": "tensordesc<fp16>"}, {"BLOCK": 16}, "must be like 'tensordesc", ""),
        ({**GOOD, "x_ptr": "tensordesc<f16[16]>"}, {"BLOCK": 16}, "must be like 'tensordesc", ""),
        ({**GOOD, "x_ptr": "tensordesc<fp16[24]>"}, {"BLOCK": 16}, "a power of two, got [24]", ""),
        ({**GOOD, "x_ptr": "tensordesc<i8[1,1,1,1,1,16]>"}, {"BLOCK": 16}, "1 to 5 axes", ""),
        ({**GOOD, "x_ptr": "tensordesc<fp16[64,4]>"}, {"BLOCK": 16}, "at least 16 bytes", "8 or"),
        ({**GOOD, "x_ptr": "tensordesc<i32[16],nan>"}, {"BLOCK": 16}, "filled with NaN", ""),
        (GOOD, {"BLOCK": object()}, "the constant BLOCK must be a number", ""),
    ],
)
def test_mistakes(
    sources: Sources,
    signature: dict[str, str],
    constants: dict[str, object],
    message: str,
    remedy: str,
) -> None:
    error = sources.error(TEXT, signature, constants)
    assert message in error.message
    assert remedy in error.remedy
    assert error.loc is not None
    assert error.loc.line in (4, 5)


def test_heuristics(sources: Sources) -> None:
    text = """
    @triton.heuristics({
        "EVEN": lambda args: args["N"] % args["BLOCK"] == 0,
        "SIZE": lambda args: triton.next_power_of_2(args["N"]) if args["EVEN"] else 1,
    })
    @triton.jit
    def k(n, N: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, SIZE: tl.constexpr):
        tl.static_print(EVEN, SIZE)
    """
    constants: dict[str, object] = {"N": 24, "BLOCK": 8}
    assert sources.translate(text, {"n": "i32"}, constants).prints == ("True 32",)
    constants["EVEN"] = False
    assert sources.translate(text, {"n": "i32"}, constants).prints == ("False 1",)
    error = sources.error(
        text.replace('args["N"] %', 'args["n"] %'), {"n": "i32"}, {"N": 8, "BLOCK": 8}
    )
    assert "the heuristic of EVEN cannot be evaluated at build time" in error.message
    assert error.message.endswith(": the argument n is known at launch only")
    assert error.remedy.startswith("give EVEN among the constants or choices; or in the configs")


def test_heuristics_know_which_arguments_are_none(sources: Sources) -> None:
    text = """
    @triton.heuristics({
        "HAS_P": lambda args: args["p"] is not None,
        "BOTH": lambda args: args["p"] is not None and args["n"] is not None,
    })
    @triton.heuristics(values={"TWICE": lambda args: 2 * int(args["HAS_P"])})
    @triton.jit
    def k(p, n, HAS_P: tl.constexpr, BOTH: tl.constexpr, TWICE: tl.constexpr):
        tl.static_print(HAS_P, BOTH, TWICE)
    """
    translation = sources.translate(text, {"p": "*fp32", "n": "i32"}, {})
    assert translation.prints == ("True True 2",)
    assert sources.translate(text, {"p": "none", "n": "i32"}, {}).prints == ("False False 0",)
    assert sources.translate(text, {"p": "*fp32"}, {"n": None}).prints == ("True False 2",)


@pytest.mark.parametrize(
    "expression",
    [
        'args["n"] + 1',
        'args["n"] > 0',
        'args["n"] is True',
        'args["n"] == None',
        'args["n"] in (1, 2)',
        "bool(args['n'])",
        'isinstance(args["n"], int)',
        'args["n"]',
    ],
)
def test_what_heuristics_cannot_know(sources: Sources, expression: str) -> None:
    """Heuristics know an argument's presence, not its value."""
    text = f"""
    @triton.heuristics({{"X": lambda args: {expression}}})
    @triton.jit
    def k(n, X: tl.constexpr):
        tl.static_print(X)
    """
    error = sources.error(text, {"n": "i32"}, {})
    assert "argument n" in error.message


def test_num_warps_as_a_parameter(sources: Sources) -> None:
    text = "@triton.jit\ndef k(num_warps: tl.constexpr):\n    tl.static_print(num_warps)\n"
    assert sources.translate(text, num_warps=2).prints == ("2",)


def test_a_tuple_among_the_constants_is_a_text(sources: Sources) -> None:
    text = (
        "@triton.jit\ndef k(p, SHAPE: tl.constexpr, KIND: tl.constexpr):\n"
        "    n: tl.constexpr = SHAPE[1] if SHAPE[0][1] is None else 4\n"
        "    tl.store(p + tl.arange(0, n), tl.zeros([n], KIND[0]))\n"
    )
    constants = {"SHAPE": "((1, None), 32)", "KIND": "('fp32',)"}
    kernel = sources.translate(text, {"p": "*fp32"}, constants).kernel
    (store,) = (op for op in kernel.walk() if isinstance(op, tile.Store))
    assert str(store.value.type) == "tile<32xfp32>"


def test_none_for_a_pointer(sources: Sources) -> None:
    text = "@triton.jit\ndef k(p, b):\n    if b is not None:\n        tl.store(p, tl.load(b))\n"
    assert "load" not in sources.text(text, {"p": "*i32"}, {"b": None})
    assert "load" in sources.text(text, {"p": "*i32", "b": "*i32"})


_TUPLES = """
@triton.jit
def scaled(x, by):
    return x * by.scale + by.bias

@triton.jit
def k(ptrs, shape, by, nothing):
    rows, cols = shape
    tl.static_assert(len(ptrs) == 2 and len(nothing) == 1)
    if nothing[0] is None:
        offs = tl.arange(0, 16)
        for i in tl.static_range(len(ptrs)):
            x = tl.load(ptrs[i] + offs, mask=offs < rows * cols)
            tl.store(ptrs[i] + offs, scaled(x, by))
"""
_TUPLE_TYPES = {
    "ptrs": "(*fp32:16, *fp32)",
    "shape": "(i32:16, i32=2)",
    "by": "(scale: fp32, bias: fp32)",
    "nothing": "(none,)",
}


def test_tuples_are_passed_as_their_items(sources: Sources) -> None:
    translation = sources.translate(_TUPLES, _TUPLE_TYPES, {})
    assert [(param.name, param.divisibility) for param in translation.kernel.params] == [
        ("ptrs_0", 16),
        ("ptrs_1", 1),
        ("shape_0", 16),
        ("by_scale", 1),
        ("by_bias", 1),
    ]
    text = sources.text(_TUPLES, _TUPLE_TYPES, {})
    assert text.count("store") == 2
    assert "%by_scale" in text


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ({"ptrs": "(*fp32, float)"}, "the type of ptrs_1 must be like"),
        ({"ptrs": "(*fp32, i32"}, "the type of ptrs: expected a tuple such as"),
    ],
)
def test_mistakes_in_tuples(sources: Sources, signature: dict[str, str], message: str) -> None:
    with pytest.raises(CompileError, match=re.escape(message)):
        sources.translate(_TUPLES, _TUPLE_TYPES | signature, {})


def test_items_and_parameters_have_different_names(sources: Sources) -> None:
    text = "@triton.jit\ndef k(x, x_0):\n    pass\n"
    with pytest.raises(CompileError, match="an item of x is passed as x_0, which is a parameter"):
        sources.translate(text, {"x": "(i32, i32)", "x_0": "i32"}, {})


def test_heuristics_that_need_a_launch_are_told(tmp_path: Path) -> None:
    """Without a launch, presence of arguments and other constants are known, a constant's own value is not."""
    (tmp_path / "k.py").write_text("""
import triton
import triton.language as tl

@triton.heuristics({
    "HAS_BIAS": lambda args: args["bias"] is not None,
    "HALF": lambda args: args["BLOCK"] // 2,
    "EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
    "FLAG": lambda args: bool(args["FLAG"]),
    "BOTH": lambda args: args["HALF"] > 4 and args["HAS_BIAS"],
})
@triton.jit
def k(p, bias, n, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, HALF: tl.constexpr,
      EVEN: tl.constexpr, FLAG: tl.constexpr, BOTH: tl.constexpr):
    tl.store(p, n)

@triton.jit
def plain(p):
    tl.store(p, 1)
""")
    path = str(tmp_path / "k.py")
    problems = heuristic_problems(path, "k", target="sm_90a")
    assert {name for name, problem in problems.items() if not problem} == {
        "HAS_BIAS", "HALF", "BOTH",
    }  # fmt: skip
    assert problems["FLAG"] == "there is no item 'FLAG'"
    assert problems["EVEN"] == "the argument n is known at launch only"
    assert heuristic_problems(path, "plain") == {}


def test_the_parameters_of_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def k(p, n: tl.int64, /, m: 'i32' = 2, *, B: 'tl.constexpr', C: tl.constexpr = 4):\n    pass\n"
    )
    parameters = kernel_parameters(str(tmp_path / "k.py"), "k")
    assert [(parameter.name, parameter.is_constexpr, parameter.has_default) for parameter in parameters] == [
        ("p", False, False), ("n", False, False), ("m", False, True), ("B", True, False),
        ("C", True, True),
    ]  # fmt: skip
    assert [parameter.annotation for parameter in parameters[:3]] == ["", "tl.int64", "'i32'"]


@pytest.mark.parametrize("named", ["mul", "Ops.mul", "other.py:mul"])
def test_an_item_of_a_tuple_may_be_a_function(sources: Sources, named: str) -> None:
    function = "@triton.jit\ndef mul(x, a):\n    return x * a\n"
    sources.write(function, "other.py")
    in_class = function.replace("\n", "\n    ")
    body = "tl.store(o, g[0](f.fn(tl.load(o), f.a), 2.0))"
    text = f"{function}\nclass Ops:\n    {in_class}\n@triton.jit\ndef k(o, f, g):\n    {body}\n"
    signature = {"o": "*fp32", "f": f"(fn: {named}, a: fp32)", "g": "(mul,)"}
    translation = sources.translate(text, signature)
    assert [param.name for param in translation.kernel.params] == ["o", "f_a"]
    assert sources.text(text, signature).count("arith.mul") == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("(3, (4, None))", 7), ("(3, (4, 'int32'))", 39), ("('3', (4, 5))", 0), ("(1,", 0)],
)
def test_a_constant_may_be_the_text_of_a_tuple(sources: Sources, text: str, expected: int) -> None:
    """Its items are constants as well: a dtype's name is the dtype."""
    kernel = """
@triton.jit
def k(x_ptr, SHAPE: tl.constexpr):
    if isinstance(SHAPE, tl.tuple) and isinstance(SHAPE[0], int):
        rest: tl.constexpr = SHAPE[1]
        bits: tl.constexpr = 0 if rest[1] is None else rest[1].primitive_bitwidth
        tl.store(x_ptr, SHAPE[0] + rest[0] + bits)
    else:
        tl.store(x_ptr, 0)
"""
    ir = sources.text(kernel, {"x_ptr": "*i32"}, {"SHAPE": text})
    assert f"value = {expected}, type = i32" in ir or f"{expected} : i32" in ir, ir


@pytest.mark.parametrize("shown", ["{DTYPE=}", "{DTYPE!r:>8}", "{x_ptr.dtype.element_ty!r}"])
def test_messages_format_dtypes(sources: Sources, shown: str) -> None:
    """As the message of a static_assert that holds."""
    kernel = f"""
@triton.jit
def k(x_ptr, DTYPE: tl.constexpr):
    tl.static_assert(DTYPE == tl.float16, f"got {shown}")
    tl.store(x_ptr, 0)
"""
    assert sources.text(kernel, {"x_ptr": "*i32"}, {"DTYPE": "fp16"})
    with pytest.raises(CompileError, match="got .*(fp32|int32)"):
        sources.text(kernel, {"x_ptr": "*i32"}, {"DTYPE": "fp32"})
