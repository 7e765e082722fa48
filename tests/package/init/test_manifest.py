"""Manifests from sources: inferred values, type variables, TODOs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tomli

from aotc.compiler import CompileRequest, autotune_configs, translate_request
from aotc.ir.diagnostics import CompileError, IRError
from aotc.package.init import trial
from aotc.package.init.manifest import Wanted, write_manifest
from aotc.package.manifest.read import parse
from aotc.package.manifest.variant_grid import expand
from tests.package.init.conftest import PRELUDE, Tables, Write

NORM = """
@triton.jit
def _sum(x_ptr, cols): return tl.sum(tl.load(x_ptr + cols))

@triton.jit
def norm(x_ptr, w_ptr, rstd_ptr, idx_ptr, stride, n_rows, n_cols, eps, BLOCK: tl.constexpr,
         HAS_W: tl.constexpr, MODE: tl.constexpr, OUT: tl.constexpr, TRAIN: tl.constexpr = False):
    row = tl.load(idx_ptr + tl.program_id(0))
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n_cols).to(tl.float32)
    if HAS_W and w_ptr is not None:
        x *= tl.load(w_ptr + cols)
    if MODE == "llama":
        x += _sum(x_ptr, cols)
    elif MODE == "gemma":
        x += 1.0
    tl.store(rstd_ptr + row, tl.sum(x) + eps)
    tl.store(x_ptr + cols, x.to(OUT))

def settings(n):
    BLOCK = triton.next_power_of_2(n)
    num_warps = 4 if BLOCK < 4096 else 8
    return BLOCK, num_warps

def forward(x, w, eps: float, mode):
    n_rows, n_cols = x.shape
    rstd = torch.empty(n_rows, dtype=torch.float32)
    BLOCK, num_warps = settings(n_cols)
    grid = lambda meta: (triton.cdiv(n_rows, 4), n_cols // meta["BLOCK"])
    norm[grid](x, w, rstd, x, x.stride(0), n_rows, n_cols, eps, BLOCK=BLOCK,
               HAS_W=w is not None, MODE=mode, OUT=x.dtype, num_warps=num_warps, num_stages=2)
"""


def test_all_that_a_source_says(tables: Tables) -> None:
    (kernel,) = tables(NORM)
    assert kernel == {
        "source": "ops.py:norm",
        "grid": ["cdiv(n_rows, 4)", "n_cols // BLOCK"],
        "where": "n_cols <= BLOCK",
        "guards": "together",
        "signature": {
            "x_ptr": "*T:16?",
            "w_ptr": ["*T:16?", "none"],
            "rstd_ptr": "*fp32:16?",
            "idx_ptr": "*INDEX:16?",
            "stride": "i32:16?",
            "n_rows": "i32",
            "n_cols": "i32:16?",
            "eps": "fp32",
        },
        "types": {"T": ["bf16"], "INDEX": ["i64"]},
        "choices": {"HAS_W": [True, False], "MODE": ["llama", "gemma"], "OUT": ["bf16"]},
        "configs": {"BLOCK": [1024, 2048, 4096, 8192], "num_warps": [8], "num_stages": [2]},
    }


def test_nothing_is_left_to_do_and_it_is_said(write: Write) -> None:
    written = write(NORM)
    assert (written.num_kernels, written.num_todos, written.refused) == (1, 0, [])
    assert 'MODE = ["llama", "gemma"]  # what the kernel compares it with' in written.text


KERNEL = "@triton.jit\ndef k({}):\n    tl.store(p, {})\n"


@pytest.mark.parametrize(
    ("parameters", "value", "line"),
    [
        ("p, q", "1.0", 'q = "i32"  # TODO: the source does not tell whether it is a pointer,'),
        ("p, eps", "1.0", 'eps = "fp32"\n'),
        ("p, n_rows", "1.0", 'n_rows = "i32"\n'),
        ("p, q: float", "1.0", 'q = "fp32"\n'),
        ("p, q: tl.int64", "1.0", 'q = "i64"\n'),
        ('p, q: "*fp8e5"', "1.0", 'q = "*fp8e5"\n'),
        ("p, q_ptr", "1.0", 'q_ptr = "*T:16?"\n'),
        ("p, lse_ptr", "1.0", 'lse_ptr = "*STAT:16?"\n'),
        ("p, q=None", "1.0", "# q: its default is None, and nothing tells its type\n"),
        ("p, q=1.5", "1.0", 'q = "fp32"\n'),
        ("p, q", "tl.load(q)", 'q = "*T:16?"\n'),
        ("p, q", "tl.sum(q.load([0, 0]))", 'q = "tensordesc<T[64, 64]>"  # TODO: its block shape'),
        ("p, q", "tl.load(p + q) >> 4", 'p = "*PACKED:16?"\n'),
        ("p, q", "tl.load(q) & 0xF", 'q = "*PACKED:16?"\n'),
        ("p, q", "tl.load(q) == -100", 'q = "*INDEX:16?"\n'),
        ("p, q", "tl.sum((tl.arange(0, 16) < tl.load(q)).to(tl.int32))", 'q = "*INDEX:16?"\n'),
        ("p, x_ptr_stride_0", "tl.load(p + x_ptr_stride_0)", 'x_ptr_stride_0 = "i32:16?"\n'),
        ("p, x_ptr_numel", "1.0", 'x_ptr_numel = "i32"\n'),
        ("p, T", "tl.load(p + T)", 'p = "*T_DTYPE:16?"\n'),
        (
            "p, B: tl.constexpr",
            "tl.sum(tl.arange(0, B))",
            "B = [64]  # TODO: the sizes that launches pass",
        ),
        (
            "p, D: tl.constexpr",
            "tl.sum(tl.arange(0, D))",
            "D = 64  # TODO: no launch is in this file",
        ),
        ("p, D: tl.constexpr", "D", "D = 1  # TODO: no launch is in this file"),
        ("p, am: tl.constexpr, stride_ak: tl.constexpr", "stride_ak", "stride_ak = 64  # TODO: "),
        ("p, s_stride_m: tl.constexpr, s_stride_k: tl.constexpr", "1.0", "s_stride_m = 64  # TODO"),
        ("p, s_stride_m: tl.constexpr, s_stride_k: tl.constexpr", "1.0", "s_stride_k = 1  # TODO"),
        ("p, USE_X: tl.constexpr", "1.0", "USE_X = [true, false]\n"),
        ("p, x_dtype: tl.constexpr", "1.0", 'x_dtype = ["bf16"]\n'),
        ("p, dtype_max: tl.constexpr", "1.0", "dtype_max = 1  # TODO: no launch is in this file"),
    ],
)
def test_lines(write: Write, parameters: str, value: str, line: str) -> None:
    assert line in write(KERNEL.format(parameters, value)).text


def test_operands_of_a_dot_in_int32_are_bytes(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(a, b, out):\n"
        "    at = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)\n"
        "    sums = tl.dot(tl.load(a + at), tl.load(b + at), tl.zeros([32, 32], tl.int32))\n"
        "    tl.store(out + at, sums)\n"
    )
    assert kernel["types"] == {"T": ["i8"]}


def test_a_guess_for_which_programs_meet_is_changed(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, WIDTH: tl.constexpr, N: tl.constexpr):\n"
        "    at = tl.program_id(0) * WIDTH + tl.program_id(1) * N + tl.arange(0, 64)\n"
        "    tl.store(p + at, tl.program_id(0) * 1.0, mask=tl.arange(0, 64) < N)\n"
    )
    assert kernel["constants"] == {"WIDTH": 4096, "N": 64}


def test_a_constant_is_computed_from_defaults_and_other_guesses(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, D: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr):\n"
        "    at = tl.arange(0, BLOCK)\n"
        "    tl.store(p + at, at << (32 // BITS), mask=at < D)\n"
        "def largest(n):\n"
        "    size = min(triton.next_power_of_2(n), 64)\n"
        "    return size, 4\n"
        "def run(x, bits=4, half=None):\n"
        "    rows, d = x.shape\n"
        "    width = d // 4\n"
        "    block, warps = largest(width)\n"
        "    k[(1,)](x, width, 2 * block, bits)\n"
    )
    assert kernel["constants"] == {"D": 16, "BITS": 4}
    assert kernel["configs"]["BLOCK"] == [32]


def test_constants_that_are_guessed_go_together(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, n, SX: tl.constexpr, SY: tl.constexpr, N: tl.constexpr,\n"
        "      X_STRIDE: tl.constexpr, LAST: tl.constexpr):\n"
        "    at = tl.arange(0, 16)\n"
        "    row = tl.program_id(0)\n"
        "    tl.store(p + row * SX + at * SY + X_STRIDE + LAST, 1.0, mask=at < N)\n"
        "def run(x, n, stride):\n"
        "    k[(n,)](x, n, x.stride(0), x.stride(2), n, stride, x.stride(-1))\n"
    )
    assert kernel["constants"] == {"SX": 4096, "SY": 1, "N": 16, "X_STRIDE": 64, "LAST": 1}


def test_what_counts_the_trips_of_an_unrolled_loop_is_no_multiple(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, n, rows, BLOCK: tl.constexpr):\n"
        "    for i in tl.static_range(0, BLOCK):\n"
        "        tl.store(p + i * rows, 1.0, mask=i < n)\n"
        "def run(x, n, rows):\n    k[(n,)](x, n, rows, triton.next_power_of_2(n))\n"
    )
    assert kernel["configs"] == {"BLOCK": [4, 8, 16]}
    assert kernel["signature"] == {"p": "*T:16?", "n": "i32", "rows": "i32:16?"}


@pytest.mark.parametrize(
    ("bounds", "line"),
    [
        ("D", "D = 4  # TODO: no launch is in this file"),
        ("1, D", "D = 4  # TODO: no launch is in this file"),
        ("0, 8, D", "D = 1  # TODO: no launch is in this file"),
        ("D // 2", "D = 4  # TODO: no launch is in this file"),
    ],
)
def test_loops_that_are_unrolled_are_short(write: Write, bounds: str, line: str) -> None:
    body = f"    for i in tl.static_range({bounds}):\n        tl.store(p + i, 1.0)\n"
    assert line in write(f"@triton.jit\ndef k(p, D: tl.constexpr):\n{body}").text


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        (["k[(4,)](x, 3, D=128)"], {"grid": ["4"], "constants": {"D": 128}}),
        (["k[(N,)](x, n, D=2 * N)"], {"grid": ["7"], "constants": {"D": 14}}),
        (["k[(n, 1)](x, n, D=1)", "k[(n, 1)](x, n, D=2)"], {"choices": {"D": [1, 2]}}),
        (["k[(x.numel() // 4,)](x, x.numel(), D=1)"], {"grid": ["n // 4"]}),
        (["k[(math.ceil(n / 4), max(n, 2))](x, n, 1)"], {"grid": ["cdiv(n, 4)", "max(n, 2)"]}),
        (["k[(n * D,)](x, n, D)"], {"grid": ["n * D"]}),
        (["k[(n,)](x, n, D=1)", "k[(2 * n,)](x, n, D=1)"], {"grid": None}),
        (["k[(rows,)](x, n, D=1)"], {"grid": None, "constants": {"D": 1}}),
        (["k[grid](x, n, 1)"], {"grid": ["cdiv(n, 8)"]}),
        (["k[(n,)](x, n, tl.float16)"], {"constants": {"D": "fp16"}}),
        (["k[(n,)](x, n, D=1, num_warps=2)"], {"configs": {"num_warps": [2]}}),
        (["k[(n,)](x, n, D=1, num_warps=rows)"], {"configs": {"num_warps": [4]}}),
        (["k[(n,)](*args)"], {"constants": {"D": 1}}),
    ],
)
def test_launches(tables: Tables, launches: list[str], expected: dict[str, Any]) -> None:
    body = "\n".join(f"    {launch}" for launch in launches)
    (kernel,) = tables(
        "import math\nN = 7\n@triton.jit\ndef k(p, n, D: tl.constexpr):\n    tl.store(p, 1.5)\n"
        f"def run(x, n, D, rows, args):\n    grid = lambda meta: (triton.cdiv(n, 8),)\n{body}\n"
    )
    assert {name: kernel.get(name) for name in expected} == expected


def test_a_pointer_that_all_launches_leave_out(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, bias):\n    if bias is not None:\n        tl.store(p, 1.5)\n"
        "def run(p):\n    k[(1,)](p, None)\n"
    )
    assert kernel["signature"]["bias"] == "none"


TUNED = """
@triton.autotune(configs={}, key=[])
@triton.jit
def k(p, n, B: tl.constexpr, C: tl.constexpr): tl.store(p + tl.arange(0, B), 1.5)

def run(x): k[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, x.numel(), C=2)
"""


def test_an_autotuner_is_read(tables: Tables) -> None:
    (kernel,) = tables(TUNED.format("[triton.Config({'B': 64}, num_warps=2)]"))
    assert kernel["configs"] == "autotune"
    assert kernel["constants"] == {"C": 2}
    assert kernel["grid"] == ["cdiv(n, B)"]


TUNED_BY_GPU = """
def tuned(f):
    big = torch.cuda.get_device_capability()[0] >= 9
    return triton.autotune([triton.Config({"BLOCK": 64}, num_stages=4 if big else 2)], key=["n"])(f)

@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
                    "SIZE": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def k(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, SIZE if EVEN else 0, mask=at < n)
"""


@pytest.mark.parametrize("how", ["@tuned", ""])
def test_an_autotuner_of_a_function_that_asks_for_the_gpu(tables: Tables, how: str) -> None:
    text = TUNED_BY_GPU.replace("@triton.heuristics", f"{how}\n@triton.heuristics")
    (kernel,) = tables(text + ("" if how else "\nk = tuned(k)\n"))
    assert kernel["configs"] == "autotune"
    assert kernel["constants"] == {"SIZE": 1, "EVEN": False}  # not computable by a launcher
    assert "choices" not in kernel


def test_what_launches_pass_on_either_side_of_a_condition(tables: Tables) -> None:
    (kernel,) = tables(
        NORM.replace("BLOCK, num_warps = settings(n_cols)", "num_warps = 4 if n_cols < 9 else 8")
    )
    assert kernel["configs"]["num_warps"] == [4, 8]


def test_an_autotuner_that_cannot_be_read(write: Write) -> None:
    written = write(TUNED.format("elsewhere()"))
    assert "# TODO: list the configs: elsewhere is not" in written.text
    assert "B = [64]  # TODO: the sizes that launches pass" in written.text


def test_kernels_in_functions_and_classes(tables: Tables) -> None:
    kernels = tables(
        "def make():\n    @triton.jit\n    def k(p): tl.store(p, 1)\n    return k\n"
        "class Ops:\n    @staticmethod\n    @triton.jit\n    def k(p): tl.store(p, 1)\n"
    )
    assert [kernel["source"] for kernel in kernels] == ["ops.py:make.k", "ops.py:Ops.k"]
    assert kernels[1]["name"] == "ops_k"


def test_what_does_not_build_is_a_comment_with_its_reason(write: Write) -> None:
    written = write("@triton.jit\ndef bad(p): tl.store(p, nowhere)\n" + KERNEL.format("p", "1.0"))
    assert written.num_kernels == 1
    assert "# TODO: nowhere is not defined (ops.py:5)\n# [[kernel]]\n" in written.text


def test_what_only_kernels_call_is_no_kernel(write: Write) -> None:
    written = write("@triton.jit\ndef helper(x): return x + 1\n" + KERNEL.format("p", "1.0"))
    assert written.num_kernels == 1
    assert "helper" not in written.text
    assert '\n[[kernel]]\nsource = "ops.py:k"' in written.text


POINTWISE = "from lib import pointwise\n@pointwise\n@triton.jit\ndef add(x, y): return x + y\n"


def test_what_decorators_make_kernels_of_is_named(write: Write) -> None:
    written = write(POINTWISE + KERNEL.format("p", "1.0"))
    assert written.num_kernels == 1
    line = "ops.py:7: @pointwise makes kernels of add when a program runs"
    assert written.unnamed == [f"{line}; `aotc record -- COMMAND` sees them"]
    assert f"# {line}" in written.text


def test_a_file_of_functions_that_a_decorator_takes_has_no_manifest(write: Write) -> None:
    with pytest.raises(CompileError, match=r"expected kernels in ops.py, got none") as error:
        write(POINTWISE)
    assert "ops.py:7: @pointwise makes kernels of add" in error.value.remedy
    with pytest.raises(CompileError) as error:
        write("@triton.jit\ndef helper(x): return x + 1\n")
    assert "a kernel is a function with @triton.jit that no other one calls" in error.value.remedy


def test_a_bug_leaves_out_one_kernel(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(request: CompileRequest) -> None:
        if request.kernel == "bad":
            raise IRError("no such op")

    monkeypatch.setattr(trial, "compile_ptx", compiled)
    kernels = "".join(
        KERNEL.format("p", "1.0").replace("k(", f"{name}(") for name in ("bad", "good")
    )
    written = write(kernels)
    assert written.num_kernels == 1
    assert written.refused == ["bad (ops.py:5): a bug in aotc: IRError: no such op"]


PACKED = """
@triton.jit
def dequantize(q_ptr, zeros_ptr, scale_ptr, out_ptr, n, in_ptr_stride_0, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    q = tl.load(q_ptr + tl.program_id(1) * in_ptr_stride_0 + offs // 8, mask=offs < n)
    zero = tl.load(zeros_ptr + tl.program_id(1))
    value = (q >> ((offs % 8) * 4)) & 0xF
    tl.store(out_ptr + offs, (value - (zero & 0xF)) * tl.load(scale_ptr), mask=offs < n)
"""


def test_types_follow_from_what_is_done_with_loaded_values(tables: Tables) -> None:
    (kernel,) = tables(PACKED)
    assert kernel["signature"]["q_ptr"] == kernel["signature"]["zeros_ptr"] == "*PACKED:16?"
    assert kernel["signature"]["in_ptr_stride_0"] == "i32:16?"
    assert kernel["types"] == {"PACKED": ["i32"], "STAT": ["fp32"], "T": ["bf16"]}


def test_branches_that_give_a_name_different_types(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(positions_ptr, delta_ptr, lens_ptr, out_ptr, BLOCK: tl.constexpr):\n"
        "    offs = tl.arange(0, BLOCK)\n"
        "    if tl.program_id(0) < tl.load(lens_ptr):\n"
        "        pos = tl.load(positions_ptr + offs)\n"
        "    else:\n"
        "        pos = offs + tl.load(delta_ptr)\n"
        "    tl.store(out_ptr + offs, pos)\n"
    )
    names = ("positions_ptr", "delta_ptr", "lens_ptr")
    assert {kernel["signature"][name] for name in names} == {"*INDEX:16?"}


DESCRIPTORS = """
@triton.jit
def read(desc, m, k): return desc.load([m, k])

@triton.jit
def matmul(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.reshape(a_desc.load([tl.program_id(2), m, k]), (BM, BK))
        acc = tl.dot(a, read(b_desc, k, n), acc)
    c_desc.store([m, n], acc.to(tl.bfloat16))
"""


def test_blocks_of_descriptors_follow_from_their_offsets(tables: Tables) -> None:
    (kernel,) = tables(DESCRIPTORS)
    assert {name: kernel["signature"][f"{name}_desc"] for name in "abc"} == {
        "a": "tensordesc<T[1, BM, BK]>",
        "b": "tensordesc<T[BK, BN]>",
        "c": "tensordesc<T[BM, BN]>",
    }


def test_a_guess_that_does_not_build_is_changed(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(a_ptr, scale_ptr, out_ptr, N: tl.constexpr):\n"
        "    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)\n"
        "    c = tl.dot(tl.load(a_ptr + at), tl.load(scale_ptr + at))\n"
        "    tl.store(out_ptr + at, c)\n"
    )
    types = kernel["types"]
    named = [kernel["signature"][name].strip("*:16?") for name in ("a_ptr", "scale_ptr")]
    assert (
        len({types.get(argument, [argument])[0] for argument in named}) == 1
    )  # dot takes one dtype


def test_what_a_loop_carries_is_compared_at_its_end(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef gemv(a_ptr, b_ptr, c_ptr, n, sum_dtype: tl.constexpr,\n"
        "         M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):\n"
        "    k, m = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_M)\n"
        "    total = tl.zeros((BLOCK_K, 16), dtype=sum_dtype)\n"
        "    for at in range(n):\n"
        "        a = tl.load(a_ptr + at + m[:, None] + k[None, :])\n"
        "        a = tl.reshape(a, (BLOCK_K, 1)).to(tl.float32)\n"
        "        total += tl.load(b_ptr + k[:, None] + tl.arange(0, 16)[None, :]) * a\n"
        "    tl.store(c_ptr + tl.arange(0, 16), tl.sum(total, axis=0))\n"
    )
    assert kernel["configs"]["BLOCK_M"] == [1]
    assert kernel["choices"]["sum_dtype"] == ["fp32"]


def test_sizes_shrink_until_the_target_holds_them(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, n, m, B: tl.constexpr, C: tl.constexpr):\n"
        "    at = tl.arange(0, B)[:, None] * C + tl.arange(0, C)\n"
        "    x = tl.load(p + at)\n"
        "    tl.store(p + tl.trans(at), tl.trans(x))\n"
        "def run(p, n, m):\n"
        "    k[(1,)](p, n, m, triton.next_power_of_2(n), triton.next_power_of_2(m))\n"
    )
    assert kernel["configs"]["B"][0] * kernel["configs"]["C"][0] < 1024 * 1024


def test_sizes_that_must_be_equal_shrink_together(tables: Tables) -> None:
    (kernel,) = tables(
        "@triton.jit\ndef k(p, n, m, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):\n"
        "    x = tl.load(p + tl.arange(0, B)[:, None] * n + tl.arange(0, C))\n"
        "    tl.store(p + tl.arange(0, C)[:, None] * n + tl.arange(0, B), x, mask=D > n)\n"
        "def run(p, n, m):\n"
        "    k[(1,)](p, n, m, triton.next_power_of_2(n), triton.next_power_of_2(m), D=m)\n"
    )
    assert kernel["configs"]["B"][0] == kernel["configs"]["C"][0] <= 256


SWITCHES = "@triton.jit\ndef k(p, {}):\n    x = 1.0\n{}    tl.store(p, x)\n".format(
    ", ".join(f"HAS_{number}: tl.constexpr" for number in range(8)),
    "".join(f"    if HAS_{number}:\n        x += {number}.0\n" for number in range(8)),
)


def test_the_smallest_set_comes_first(write: Write) -> None:
    choices = tomli.loads(write(SWITCHES).text)["kernel"][0]["choices"]
    assert math.prod(map(len, choices.values())) <= 32
    assert "HAS_0 = [true]  # of [true, false]: --all builds each" in write(SWITCHES).text


def test_configs_of_an_autotuner_count(tables: Tables) -> None:
    configs = ", ".join(f"triton.Config({{'B': {2**number}}})" for number in range(4, 12))
    switches = ", ".join(f"HAS_{number}: tl.constexpr" for number in range(4))
    (kernel,) = tables(
        f"@triton.autotune(configs=[{configs}], key=[])\n@triton.jit\n"
        f"def k(p, B: tl.constexpr, {switches}): tl.store(p + tl.arange(0, B), 1.5)\n"
    )
    assert math.prod(map(len, kernel["choices"].values())) <= 4


def test_all_of_it(write: Write) -> None:
    write(SWITCHES)
    for selection, dtypes in (
        (Wanted(all=True), ["bf16", "fp16", "fp32"]),
        (Wanted(("fp16", "fp32")), ["fp16", "fp32"]),
    ):
        written = write_manifest(["ops.py"], "kernels.toml", ["sm_90a"], selection)
        (kernel,) = tomli.loads(written.text)["kernel"]
        assert kernel["types"]["T"] == dtypes
        sizes = map(len, kernel["choices"].values())
        assert (math.prod(sizes) == 2**8) == selection.all


def test_a_dtype_that_is_none(write: Write) -> None:
    write(KERNEL.format("p", "1.0"))
    with pytest.raises(CompileError, match="expected a dtype, got 'bf61'"):
        write_manifest(["ops.py"], "kernels.toml", ["sm_90a"], Wanted(("bf61",)))


def test_a_missing_pointer_goes_with_the_switch_that_needs_it(write: Write) -> None:
    text = (
        "@triton.jit\ndef k(p, bias, HAS_BIAS: tl.constexpr):\n"
        "    x = 1.0\n    if HAS_BIAS:\n        x += tl.load(bias)\n"
        "    if bias is None:\n        x += 2.0\n    tl.store(p, x)\n"
    )
    written = write(text)
    manifest = parse(written.text, "kernels.toml")
    for variant in expand(manifest.kernels[0], manifest.targets, autotune_configs).variants:
        translate_request(variant.request)


def test_files_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lib").mkdir()
    Path("out").mkdir()
    for name in "ab":
        Path(f"lib/{name}.py").write_text(f"open('ran', 'w')\n{PRELUDE}{KERNEL.format('p', '1.0')}")
    written = write_manifest(["lib"], "out/kernels.toml", ["sm_80", "sm_90a"])
    document = tomli.loads(written.text)
    assert document["package"] == {
        "name": "lib",
        "version": "0.1.0",
        "targets": ["sm_80", "sm_90a"],
    }
    assert [kernel["source"] for kernel in document["kernel"]] == ["../lib/a.py:k", "../lib/b.py:k"]
    assert document["kernel"][1]["name"] == "b_k"
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected kernels in ops.py, got none"),
        (
            "@triton.jit\ndef k(p): tl.extern_elementwise(p)\n",
            "expected a kernel that builds, got none",
        ),
        (
            "@triton.jit\ndef k(p): tl.extern_elementwise(p)\n",
            "k (ops.py:5): aotc does not have tl.",
        ),
        ("@triton.jit\ndef k(:\n", "ops.py:5:7: error: invalid Python syntax"),
    ],
)
def test_no_kernels(write: Write, text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        write(text)
    assert message in str(caught.value)


def test_kernels_of_the_project_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    files = ["kernels/embedding.py", "kernels/descriptor_copy.py"]
    written = write_manifest(files, "kernels.toml", ["sm_90a"])
    assert (written.num_kernels >= 2, written.refused) == (True, [])
