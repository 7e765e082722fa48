"""Kernels other than plain module functions, their captures, and other guesses."""

from __future__ import annotations

import pytest

from tests.package.init.conftest import Tables, Write

CAPTURING = """
@triton.jit
def relu(x): return tl.maximum(x, 0.0)
def make(dtype, BLOCK, act=relu, eps=1e-6):
    @triton.jit
    def k(p, n):
        o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(p + o, act(tl.load(p + o, mask=o < n) + eps).to(dtype), mask=o < n)
    def run(p, n): k[(triton.cdiv(n, BLOCK),)](p, n)
    return run
"""


def test_what_a_kernel_captures_is_given(tables: Tables) -> None:
    (kernel,) = tables(CAPTURING + "run = make(tl.float16, 128)\n")
    assert kernel["captures"] == {"dtype": "fp16", "BLOCK": 128, "act": "relu", "eps": 1e-6}
    assert "grid" not in kernel  # it would name BLOCK, not a parameter


def test_what_a_kernel_captures_and_no_call_tells_is_guessed(write: Write) -> None:
    written = write(CAPTURING + "def use(d, n): return [make(d, n), make(tl.float16, BLOCK=32)]\n")
    assert written.num_kernels == 1
    assert 'dtype = "bf16"  # TODO: what the function around the kernel has' in written.text
    assert "BLOCK = 64  # TODO: what the function around the kernel has" in written.text
    assert 'act = "relu"\n' in written.text


def test_calls_that_make_several_kernels_ask_for_a_table_each(write: Write) -> None:
    written = write(CAPTURING + "a, b = make(tl.float16, 64), make(tl.float16, 32)\n")
    assert 'dtype = "fp16"\n' in written.text
    assert "BLOCK = 64  # TODO: callers pass 64, 32: a table for each" in written.text


def test_a_kernel_whose_name_means_another_function_later(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef relu_(p, slope): tl.store(p, tl.load(p) * slope)\n_kernel = relu_\n"
        "def relu_(*args): _kernel[(1,)](args[0], 0.5)\n"
    )
    assert kernel["source"] == "ops.py:_kernel"
    assert kernel["signature"]["slope"] == "fp32"


def test_floats_that_a_function_makes_of_integers(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef uniform(x):\n    scale = 4.6e-10\n    return x * scale\n"
        "@triton.jit\ndef k(out, n, seed, low, B: tl.constexpr):\n"
        "    o = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    x = uniform(tl.randint(seed, o)) * (1.0 - low) + low\n"
        "    tl.store(out + o, x, mask=o < n)\n"
    )
    assert kernel["signature"]["out"] == "*T:16?"
    assert kernel["signature"]["low"] == "fp32"


@pytest.mark.parametrize(
    "definition",
    [
        "K = triton.jit(plain)",
        "K = triton.jit(do_not_specialize=['n'])(plain)",
        "K = triton.jit(plain, do_not_specialize=('n',))",
        "K = triton.heuristics({'F': lambda args: bool(args['F'])})(triton.jit(plain))",
    ],
)
def test_a_plain_function_goes_by_the_kernel_that_is_made_of_it(
    tables: Tables, definition: str
) -> None:
    (kernel,) = tables(
        "def plain(p, n, F: tl.constexpr):\n    if F:\n        tl.store(p, n)\n"
        f"{definition}\ndef run(p, n, f): K[(1,)](p, n, F=f)\n"
    )
    assert kernel["source"] == "ops.py:K"
    assert kernel["choices"] == {"F": [True, False]}


def test_few_programs_go_along_an_axis_of_heads(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, T, H: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr):\n"
        "    o = tl.program_id(0) * BT + tl.arange(0, BT)\n    d = tl.arange(0, D)\n"
        "    at = (o[:, None] * H + tl.program_id(1)) * D + d[None, :]\n"
        "    x = tl.load(p + at, mask=at < T * H * D, other=0.0)\n"
        "    y = tl.dot(x, tl.trans(x), input_precision=PRECISION)\n"
        "    tl.store(p + at, tl.sum(y, 1)[:, None] + x, mask=at < T * H * D)\n"
        "def run(p, T, H, D, mode):\n"
        "    k[(triton.cdiv(T, 64), H)](p, T, H=H, D=D, BT=64, PRECISION=mode)\n"
    )
    assert kernel["grid"] == ["cdiv(T, 64)", "H"]
    assert kernel["constants"]["H"] == 2
    assert kernel["constants"]["PRECISION"] == "tf32"


def test_assembly_that_the_target_lacks_is_left_out(write: Write) -> None:
    text = (
        "@triton.jit\ndef k(p, MODE: tl.constexpr):\n    o = tl.arange(0, 64)\n    x = tl.load(p + o)\n"
        "    if MODE == 'new':\n"
        "        x = tl.inline_asm_elementwise('no.such.op $0, $1;', '=r,r', [x.to(tl.int32)],\n"
        "                                      tl.int32, True, 1).to(x.dtype)\n"
        "    elif MODE == 'old':\n        x += 1\n    tl.store(p + o, x)\n"
    )
    written = write(text)
    assert 'MODE = ["old"]' in written.text
    assert written.refused == []


@pytest.mark.parametrize("call", ["wrap(k)[(n,)]", "kernel[(n,)]", "(k if n else other)[(n,)]"])
def test_launches_by_another_name(tables: Tables, call: str) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, n, B: tl.constexpr): tl.store(p + tl.arange(0, B), n)\n"
        f"def run(p, n):\n    kernel = k\n    B, C = 128, 4\n    {call}(p, n, B=B)\n"
    )
    assert kernel["constants"] == {"B": 128}
    assert kernel["grid"] == ["n"]


def test_what_is_mixed_by_xor_is_integers(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(x, y, out, n, B: tl.constexpr):\n    o = tl.arange(0, B)\n"
        "    a = tl.load(x + o, mask=o < n)\n    b = tl.load(y + o, mask=o < n)\n"
        "    tl.store(out + o, (a * 3) ^ tl.where(b == 1, 1, b), mask=o < n)\n"
    )
    assert kernel["types"] == {"PACKED": ["i32"], "INDEX": ["i64"]}


def test_a_pointer_that_does_not_build_is_none(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, bias):\n    o = tl.arange(0, 64)\n    x = tl.load(p + o)\n"
        "    if bias is not None:\n        tl.static_assert(bias.dtype == p.dtype and False)\n"
        "        x += tl.load(bias + o)\n    tl.store(p + o, x)\n"
    )
    assert kernel["signature"]["bias"] == "none"


@pytest.mark.parametrize(("loop", "dtype"), [("range", "i32"), ("tl.static_range", "bf16")])
def test_what_a_counter_of_a_loop_adds_up_is_integers(
    tables: Tables, loop: str, dtype: str
) -> None:
    (kernel,) = tables(
        f"@triton.jit\ndef k(counts, out):\n    total = 0\n    for at in {loop}(0, 4):\n"
        "        total += tl.load(counts + at)\n    tl.store(out, total)\n"
    )
    variable = kernel["signature"]["counts"].strip("*:16?")
    assert kernel["types"][variable] == [dtype]


def test_few_programs_go_along_an_axis_named_like_a_block(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, n, B: tl.constexpr, BN: tl.constexpr):\n"
        "    o = tl.program_id(0) * BN + tl.arange(0, BN)\n"
        "    tl.store(p + o * B + tl.program_id(1), 1.0, mask=o < n)\n"
        "def run(p, n, B, BN): k[(triton.cdiv(n, BN), B)](p, n, B=B, BN=BN)\n"
    )
    assert (kernel["configs"]["B"], kernel["configs"]["BN"]) == ([2], [64])


def test_a_value_that_fills_a_tile_is_no_dtype(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, VALUE: tl.constexpr, KIND: tl.constexpr):\n"
        "    x = tl.full([64], VALUE, dtype=tl.float32) + tl.full([64], 1, KIND)\n"
        "    tl.store(p + tl.arange(0, 64), x)\n"
    )
    assert kernel["choices"] == {"KIND": ["bf16"]}
    assert kernel["constants"]["VALUE"] == 1


def test_an_assertion_of_a_function_below_is_met(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef check(B: tl.constexpr):\n    tl.static_assert(B < 100)\n"
        "@triton.jit\ndef k(p, q, n, STRICT: tl.constexpr, B: tl.constexpr):\n"
        "    o = tl.arange(0, B)\n    x = tl.load(p + o, mask=o < n)\n"
        "    if STRICT:\n        check(B)\n    tl.store(q + o, x, mask=o < n)\n"
        "def run(p, q, n, s): k[(1,)](p, q, n, STRICT=s, B=triton.next_power_of_2(n))\n"
    )
    assert kernel["choices"] == {"STRICT": [False]}
