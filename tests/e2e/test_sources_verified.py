"""A table of kernels: each is verified, some on inputs of their own, with expected instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.compiler import CompileRequest, compile_kernel, compile_ptx
from aotc.config import Config
from aotc.ir.types import ScalarType
from aotc.package.verify.audit import verify_and_audit
from aotc.package.verify.subjects import VerifyOptions
from aotc.package.verify.variants import verify_next
from aotc.verify.checks import input_data
from aotc.verify.checks.contents import Contents
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.verified import one_kernel, subjects_of

CASES = Path(__file__).parents[1] / "support" / "verified_cases"
KERNELS = Path(__file__).parents[2] / "kernels"
BOTH = ("sm_80", "sm_90a")


@dataclass(frozen=True)
class Case:
    """A manifest and its expected variants.

    `inputs` replaces a function of `input_data`. `ptx` is in the PTX of each variant. With
    `audits`, cubins are audited too. `is_mapped` also expects the form without tensor maps, of
    Hopper alone.
    """

    manifest: str
    num_variants: int = 1
    inputs: tuple[str, Callable[[ScalarType, int], Contents]] | None = None
    ptx: str = ""
    audits: bool = False
    is_mapped: bool = False


# ---- inputs -----------------------------------------------------------------------------------


def _near_ties(element: ScalarType, seed: int) -> Contents:
    """Return integers next to a tie of bf16, where fp32 rounds onto the tie."""
    top = element.bits - 1
    ties = [(1 << bit) + (1 << (bit - 8)) for bit in range(24, top)]
    ties += [tie + (1 << (tie.bit_length() - 8)) for tie in ties]
    numbers = [tie + off for tie in ties for off in (-1, 0, 1)]
    numbers += [0, 1, 255, 257, (1 << top) - 1]
    if element.is_signed:
        numbers += [-number for number in numbers] + [-(1 << top)]
    chosen = np.random.default_rng(seed).choice(np.array(numbers, dtype_of(element)), 4096)
    return Contents(chosen, seed)


def _bits_of_every_kind(element: ScalarType, seed: int) -> Contents:
    """Return special numbers and random bits, half and half; of fp8 all numbers."""
    rng, dtype = np.random.default_rng(seed), dtype_of(element)
    raw = np.frombuffer(rng.bytes(4096 * dtype.itemsize), dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 6.0, 2.0**-9], np.float64)
    with np.errstate(all="ignore"):
        chosen = rng.choice(special, 4096).astype(dtype)
        usual = rng.standard_normal(4096).astype(dtype)
    return Contents(np.concatenate([raw, np.where(rng.random(4096) < 0.5, chosen, usual)]), seed)


# ---- the table --------------------------------------------------------------------------------

PICK = "indexing.py:pick", "x_ptr=*{0}:16, index_ptr=*{1}:16, out_ptr=*{0}:16"
COUNT = "x_ptr=*{0}, out_ptr=*i32:16"
ROWS = "x_ptr=*{0}:16, out_ptr=*{0}:16"
IN_BLOCKS = "x_ptr=*{0}:16, out_ptr=*{1}:16, n=i32"
STRIDES = ", stride=i32:16, n_rows=i32, n_cols=i32:16"
SHAPE = ", stride=i32, n_rows=i32, n_cols=i32"


def _pick(element: str, index: str, constants: str) -> tuple[str, str, str]:
    return PICK[0], PICK[1].format(element, index), constants


INDEXING: dict[str, tuple[tuple[str, ...], int]] = {
    "rows": (_pick("fp32", "i32", "ROWS=32,COLS=16,WANTED=8,AXIS=0"), 4),
    "columns": (_pick("bf16", "i64", "ROWS=16,COLS=32,WANTED=64,AXIS=1"), 4),
    "bytes": (_pick("i8", "u8", "ROWS=8,COLS=64,WANTED=16,AXIS=1"), 8),
    "long words": (_pick("fp64", "i16", "ROWS=2,COLS=256,WANTED=4,AXIS=1"), 1),
    "one row": (_pick("fp32", "i32", "ROWS=1,COLS=64,WANTED=4,AXIS=0"), 4),
    "computed": (
        ("indexing.py:reverse", "x_ptr=*fp32, out_ptr=*fp32, n=i32", "BLOCK=64", "cdiv(n, BLOCK)"),
        4,
    ),
    "loop": (("indexing.py:rounds", "x_ptr=*i32, out_ptr=*i32, count=i32", "BLOCK=512"), 8),
    "counts of all": (
        ("indexing.py:count_all", COUNT.format("i32") + ", n=i32", "BLOCK=128,BINS=64"),
        4,
    ),
    "few counts": (("indexing.py:count_block", COUNT.format("u32"), "BLOCK=16,BINS=256"), 8),
    "many counts": (("indexing.py:count_block", COUNT.format("i32"), "BLOCK=1024,BINS=2"), 1),
}
SORTING = {
    "few for many threads": ("sort_rows", "fp32", 1, 16, 8, "DOWN=false"),
    "one a thread": ("sort_rows", "i32", 1, 128, 4, "DOWN=true"),
    "across eight warps": ("sort_rows", "fp32", 1, 512, 8, "DOWN=true"),
    "in a warp": ("sort_rows", "i64", 1, 256, 1, "DOWN=false"),
    "rows of warps": ("sort_rows", "i32", 4, 256, 4, "DOWN=false"),
    "rows": ("sort_rows", "bf16", 32, 16, 4, "DOWN=false"),
    "pairs": ("sort_rows", "u8", 64, 2, 4, "DOWN=true"),
    "single elements": ("sort_rows", "fp16", 64, 1, 4, "DOWN=true"),
    "greatest": ("greatest", "fp32", 1, 512, 4, "K=8"),
    "greatest of rows": ("greatest", "fp16", 16, 32, 4, "K=4"),
    "one greatest": ("greatest", "u32", 4, 64, 8, "K=1"),
}
BULK = {
    "softmax.py:softmax_kernel": ("x_ptr=*bf16:16, out_ptr=*bf16:16", ",LOOP=true"),
    "softmax.py:cross_entropy_kernel": (
        "logits_ptr=*fp32:16, target_ptr=*i64, loss_ptr=*fp32, lse_ptr=*fp32, ignore_index=i32",
        "",
    ),
    "norm.py:rmsnorm_kernel": (
        "x_ptr=*fp16:16, w_ptr=*fp16:16, out_ptr=*fp16:16, eps=fp32",
        ",LOOP=true",
    ),
    "rows.py:argmax_rows_kernel": ("x_ptr=*bf16:16, out_ptr=*i64", ""),
    "rows.py:quantize_int8_rows_kernel": (
        "x_ptr=*bf16:16, out_ptr=*i8:16, scale_ptr=*fp32",
        "",
    ),
}

# Rows of A and of the result are divided; B is copied by all CTAs for all.
DESCRIPTORS = (
    f"{KERNELS}/matmul_descriptor.py:matmul_descriptor_kernel",
    (
        "a_ptr=*bf16:16, b_ptr=*bf16:16, bias_ptr=*bf16:16, residual_ptr=*bf16:16, c_ptr=*bf16:16, "
        "M=i32, N=i32:16, K=i32:16"
    ),
    'ACTIVATION="silu",HAS_BIAS=true,HAS_RESIDUAL=true,BLOCK_K=64,GROUP_M=2',
    "min(3, cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N))",
)
# With and without the launcher's tensor maps. B is row-major. For 128 columns, a wgmma descriptor
# has the offset of the second 64. Its address contains the CTA's rank in a cluster.
POINTERS = (
    f"{KERNELS}/matmul.py:matmul_kernel",
    (
        "a_ptr=*bf16:16, b_ptr=*bf16:16, bias_ptr=*bf16:16, residual_ptr=*bf16:16, out_ptr=*bf16:16, "
        "M=i32, N=i32:16, K=i32:16, stride_am=i32:16, stride_ak=i32=1, stride_bk=i32:16, "
        "stride_bn=i32=1, stride_om=i32:16, stride_on=i32=1"
    ),
    'GROUP_M=2,BIAS=true,RESIDUAL=true,ACTIVATION="silu",EVEN_K=false',
    "cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)",
)
# CTAs split the row, and exchange their partial results.
SOFTMAX = (f"{KERNELS}/softmax.py:softmax_kernel", "x_ptr=*fp32, out_ptr=*fp32" + SHAPE)
LAYERNORM = (
    f"{KERNELS}/norm.py:layernorm_kernel",
    "x_ptr=*bf16, w_ptr=*bf16, b_ptr=*bf16, out_ptr=*bf16, mean_ptr=*fp32, rstd_ptr=*fp32, "
    "eps=fp32" + SHAPE,
)
# The stored value is computed beside the reduction, and in a loop over a reloaded row.
RMSNORM = (
    f"{KERNELS}/norm.py:rmsnorm_kernel",
    "x_ptr=*bf16:16, w_ptr=*bf16:16, out_ptr=*bf16:16, eps=fp32" + STRIDES,
)
# Two values are exchanged at once.
ARGMAX = (f"{KERNELS}/rows.py:argmax_rows_kernel", "x_ptr=*fp32, out_ptr=*i64" + SHAPE)
NARROW = ("narrow.py:narrow", "x_ptr=*fp16, y_ptr=*i8, out_ptr=*fp16, n_cols=i32", "BLOCK=128", "2")
WHOLE = 'where = "LOOP or n_cols <= BLOCK"'
TWO_WARPS = "num_warps=2,num_ctas={},BLOCK={},LOOP={}"
FOUR_WARPS = "num_warps=4,num_stages={},num_ctas={},BLOCK_M={},BLOCK_N={}"
CLUSTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "descriptors, columns": (DESCRIPTORS, FOUR_WARPS.format(2, 2, 64, 64)),
    "descriptors, rows of two": (DESCRIPTORS, FOUR_WARPS.format(3, 2, 128, 64)),
    "descriptors, rows of four": (DESCRIPTORS, FOUR_WARPS.format(2, 4, 256, 64)),
    "pointers, rows of two": (POINTERS, FOUR_WARPS.format(3, 2, 128, 128) + ",BLOCK_K=32"),
    "pointers, columns": (POINTERS, FOUR_WARPS.format(1, 2, 64, 64) + ",BLOCK_K=32"),
    "softmax": ((*SOFTMAX, "", "n_rows", WHOLE), TWO_WARPS.format(2, 256, "false")),
    "softmax of eight": ((*SOFTMAX, "", "n_rows", WHOLE), TWO_WARPS.format(8, 256, "false")),
    "softmax in a loop": ((*SOFTMAX, "", "n_rows", WHOLE), TWO_WARPS.format(4, 256, "true")),
    "layernorm": ((*LAYERNORM, "", "n_rows", WHOLE), TWO_WARPS.format(4, 512, "false")),
    "layernorm in a loop": ((*LAYERNORM, "", "n_rows", WHOLE), TWO_WARPS.format(2, 512, "true")),
    "rmsnorm": ((*RMSNORM, "", "n_rows", WHOLE), TWO_WARPS.format(4, 1024, "false")),
    "rmsnorm in a loop": ((*RMSNORM, "", "n_rows", WHOLE), TWO_WARPS.format(2, 1024, "true")),
    "narrow": (NARROW, "num_warps=1,num_ctas=4"),
    "argmax": (
        (*ARGMAX, "BLOCK=128", "n_rows", 'where = "n_cols > 0"'),
        "num_warps=2,num_ctas=4",
    ),
}
MOVED = {
    "move": (
        "src=tensordesc<bf16[1,COLS]>, dst=tensordesc<bf16[1,COLS]>, rows_ptr=*i32:16, n=i32",
        "ROWS=16,COLS=32",
        "cdiv(n, ROWS)",
        'verify = { rows_ptr = { low = -2, high = "src.shape[0] + 2" } }',
    ),
    "moved_back": (
        "src_ptr=*fp32:16, out_ptr=*fp32:16, rows_ptr=*i32, count=i32, width=i32:16?",
        "ROWS=8,COLS=16",
        "cdiv(count, ROWS);cdiv(width, COLS)",
        'verify = { in_place = false, rows_ptr = { low = 0, high = "count", distinct = true } }',
    ),
}


def _cases() -> Iterator[tuple[str, str, Case]]:
    """Yield the family and the name of each case."""
    for target in BOTH:
        for name, (kernel, num_warps) in INDEXING.items():
            manifest = one_kernel(*kernel, config=f"num_warps={num_warps}", targets=target)
            yield "indexing", f"{name}-{target}", Case(manifest)
        for name, (kernel, element, rows, cols, num_warps, constants) in SORTING.items():
            sizes = f"ROWS={rows},COLS={cols},{constants}"
            manifest = one_kernel(
                *(f"sorting.py:{kernel}", ROWS.format(element), sizes),
                config=f"num_warps={num_warps}",
                targets=target,
            )
            yield "sorting", f"{name}-{target}", Case(manifest)
        masked = "x_ptr=*fp32, out_ptr=*fp32, n=i32"
        manifest = one_kernel("sorting.py:sort_masked", masked, "BLOCK=128", targets=target)
        yield "sorting", f"masked-{target}", Case(manifest)
        blocks = ("BLOCK=128", "cdiv(n, BLOCK)")
        for element in ("i32", "u32", "i64", "u64"):
            for result in ("bf16", "fp16", "fp32"):
                types = IN_BLOCKS.format(element, result)
                manifest = one_kernel("integers.py:convert", types, *blocks, targets=target)
                case = Case(manifest, inputs=("integers", _near_ties))
                yield "integers", f"{element}-{result}-{target}", case
        for kernel in ("relu", "relu_where", "clipped", "signs", "narrowed"):
            for element in ("fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5"):
                types = IN_BLOCKS.format(element, element)
                manifest = one_kernel(f"relu.py:{kernel}", types, *blocks, targets=target)
                case = Case(manifest, inputs=("floats", _bits_of_every_kind))
                yield "relu", f"{kernel}-{element}-{target}", case
    for kernel, (types, constants) in BULK.items():
        manifest = one_kernel(
            *(f"{KERNELS}/{kernel}", types + STRIDES, "BLOCK=1024" + constants, "n_rows"),
            config="num_warps=4,warp_specialize=true",
        )
        yield "bulk", kernel, Case(manifest, ptx="cp.async.bulk.shared::cluster.global")
    matrices = "a_ptr=*bf16:16, b_ptr=*bf16:16, c_ptr=*bf16:16, M=i32, N=i32:16, K=i32:16"
    for target in BOTH:
        grid, choices = "cdiv(M, BLOCK);cdiv(N, BLOCK)", "choices = { UPWARD = [true, false] }"
        product = ("blocks.py:multiply", matrices, "BLOCK=64", grid, choices)
        manifest = one_kernel(*product, targets=target, config="num_warps=4")
        yield "blocks", target, Case(manifest, 2, is_mapped=target == "sm_90a")
    for name, (kernel, config) in CLUSTERS.items():
        case = Case(one_kernel(*kernel, config=config), 0, audits=True)
        yield "clusters", name, case
    for number, (name, kernel) in zip((2, 4), MOVED.items(), strict=True):
        manifest = one_kernel(f"rows.py:{name}", *kernel, targets="sm_80 sm_90a")
        yield "moved rows", name, Case(manifest, number, audits=True)


def _points() -> list[Any]:
    return [pytest.param(family, case, id=f"{family} {name}") for family, name, case in _cases()]


@pytest.mark.parametrize(("manifest", "case"), _points())
def test_a_kernel_is_right(
    manifest: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del manifest  # the family: one case of each is run by default
    for source in CASES.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    if case.inputs is not None:
        monkeypatch.setattr(input_data, *case.inputs)
    subjects = subjects_of(tmp_path, case.manifest)
    assert len(subjects) == case.num_variants or not case.num_variants
    for subject in subjects:
        options = VerifyOptions(seed=1)
        if case.audits:
            result = verify_and_audit(subject, options, verify_next)
        else:
            result = verify_next(subject, options)
        assert result.status == "verified", [finding.detail for finding in result.launches]
        assert len(result.findings) > 0
        assert (result.fallback is not None) == case.is_mapped or case.audits
        assert subject.request is not None
        if case.ptx:
            assert re.search(re.escape(case.ptx), compile_ptx(subject.request).ptx)


@pytest.mark.parametrize(
    ("rows", "cols", "num_warps", "trips"),
    [(32, 64, 4, 0), (1, 1024, 1, 0), (1, 1024, 4, 7), (4, 1024, 4, 2), (64, 32, 8, 0)],
)
def test_sorting_across_warps_alone_takes_shared_memory(
    rows: int, cols: int, num_warps: int, trips: int
) -> None:
    request = CompileRequest(
        source=str(CASES / "sorting.py"),
        kernel="sort_rows",
        signature=(("x_ptr", "*fp32:16"), ("out_ptr", "*fp32:16")),
        constants=(("ROWS", rows), ("COLS", cols), ("DOWN", False)),
        target="sm_90a",
        config=Config(num_warps),
    )
    text = compile_kernel(request, keep_asm=True).asm["gpu"]
    assert text.count("gpu.shared_store(") == trips
