"""Products with 4-bit weights of public libraries, unchanged, by aotc and Triton, interleaved.

    python benchmarks/public_quantized.py FOLDER [--work awq …] [--rows 16 …] [--json FILE] [-j N]

FOLDER holds unpacked sources: `awq` (AutoAWQ 0.2.9), `auto_gptq` (0.7.1) and `gemlite` (0.6.0).
The first two need only their kernels' modules and no `__init__.py`, which would import models.
Weights are 8192x8192 with groups of 128, zeros packed in the library's way. `public_sources`
builds, checks and times the works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from public_sources import archive_of, measure
from public_work import Step, Work, error_of

MANIFEST = Path(__file__).parent / "public" / "public_quantized.toml"
LIBRARIES = ("awq", "auto_gptq", "gemlite")
SIZE, GROUP = 8192, 128
ROWS = (16, 64, 512, 4096)
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble of a word for each column


def _packed(values: Any, axis: int, order: tuple[int, ...]) -> Any:
    """Return words of eight values each along an axis; value i lies in nibble order[i]."""
    import torch

    parts = values.long().unflatten(axis, (-1, 8)).unbind(axis + 1)
    words = sum(part << 4 * order[position] for position, part in enumerate(parts))
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int().contiguous()


class Weights:
    """Random weights (K, N) of 4 bits, zeros and scales (K / GROUP, N), and rows to multiply."""

    def __init__(self, rows: int) -> None:
        import torch

        self.bits = torch.randint(0, 16, (SIZE, SIZE), device="cuda")
        self.zeros = torch.randint(0, 15, (SIZE // GROUP, SIZE), device="cuda")
        self.scales = (torch.rand(SIZE // GROUP, SIZE, device="cuda") / 64).half()
        self.x = torch.randn(rows, SIZE, device="cuda").half()
        self.picked = torch.randint(0, rows, (8,), device="cuda")

    def work(
        self,
        name: str,
        step: Step,
        out: Any,
        *,
        shift: int = 0,
        error: float = 1.0,
        initial: float = math.nan,
    ) -> Work:
        """Return a work with the sum of `out` as result; zeros lie `shift` higher."""
        repeated = [
            tensor.double().repeat_interleave(GROUP, 0)
            for tensor in (self.zeros + shift, self.scales)
        ]
        expected = self.x[self.picked].double() @ ((self.bits - repeated[0]) * repeated[1])

        def wrong() -> float:
            is_written = ~out.isnan().flatten(1).all(1)  # as many parts of K as a config has
            return error_of(out[is_written].double().sum(0)[self.picked], expected) / error

        flops = 2.0 * len(self.x) * SIZE**2
        return Work(f"{name} {len(self.x)}x{SIZE}x{SIZE}", flops, [step], wrong, [out], initial)


def _tiles(rows: int, config: Any) -> int:
    return -(-rows // config["BLOCK_SIZE_M"]) * (SIZE // config["BLOCK_SIZE_N"])


def awq(rows: int) -> Work:
    """AutoAWQ's product, also in vLLM: sums in fp16, split-K partial sums by atomics."""
    import torch

    w = Weights(rows)
    out = torch.zeros(8, rows, SIZE, device="cuda", dtype=torch.float16)
    values = {
        "a_ptr": w.x, "b_ptr": _packed(w.bits, 1, AWQ_ORDER), "c_ptr": out,
        "zeros_ptr": _packed(w.zeros, 1, AWQ_ORDER), "scales_ptr": w.scales,
        "M": rows, "N": SIZE, "K": SIZE, "group_size": GROUP,
    }  # fmt: skip
    step = Step(
        "awq", "awq.modules.triton.gemm", "awq_gemm_kernel", values, {},
        lambda config: (_tiles(rows, config), config["SPLIT_K"]),
    )  # fmt: skip
    return w.work("awq", step, out, error=3.0, initial=0.0)


def gptq(rows: int) -> Work:
    """AutoGPTQ's product: the group of each row is read from memory."""
    import torch

    w = Weights(rows)
    out = torch.empty(1, rows, SIZE, device="cuda", dtype=torch.float16)
    plain = tuple(range(8))
    values = {
        "a_ptr": w.x, "b_ptr": _packed(w.bits, 0, plain), "c_ptr": out, "scales_ptr": w.scales,
        "zeros_ptr": _packed(w.zeros, 1, plain),
        "g_ptr": torch.arange(SIZE, device="cuda", dtype=torch.int32) // GROUP,
        "M": rows, "N": SIZE, "K": SIZE, "bits": 4, "maxq": 15, "stride_am": SIZE,
        "stride_ak": 1, "stride_bk": SIZE, "stride_bn": 1, "stride_cm": SIZE, "stride_cn": 1,
        "stride_scales": SIZE, "stride_zeros": SIZE // 8,
    }  # fmt: skip
    step = Step(
        "gptq", "auto_gptq.nn_modules.triton_utils.kernels", "quant_matmul_248_kernel", values,
        {"GROUP_SIZE_M": 8}, lambda config: (_tiles(rows, config),),
    )  # fmt: skip
    return w.work("gptq", step, out, shift=1)


def hqq(rows: int) -> Work:
    """Gemlite's product of HQQ's weights: zeros are fp16."""
    import torch
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    w = Weights(rows)
    out = torch.empty(1, rows, SIZE, device="cuda", dtype=torch.float16)
    values = {
        "a_ptr": w.x, "b_ptr": _packed(w.bits, 0, tuple(range(8))), "c_ptr": out,
        "scales_ptr": w.scales, "zeros_ptr": w.zeros.half(), "scales_a_ptr": None, "M": rows,
        "M_CLOSEST": rows, "stride_am": SIZE, "stride_ak": 1, "stride_bk": SIZE, "stride_bn": 1,
        "stride_cm": SIZE, "stride_cn": 1, "stride_meta_a_m": None, "stride_meta_a_g": None,
        "stride_meta_g": SIZE, "stride_meta_n": 1, "load_scales_as_block": False,
        "meta_scale_norm_ptr": None,
    }  # fmt: skip
    constants = {
        "N": SIZE, "K": SIZE, "W_nbits": 4, "group_size": GROUP, "unpack_mask": 15,
        "elements_per_sample": 8, "type_id": 0, "a_sizeof": 2, "b_sizeof": 4,
        "input_dtype": tl.float16, "output_dtype": tl.float16, "acc_dtype": tl.float32,
        "meta_dtype": tl.float16, "channel_scale_mode": 0, "W_group_mode": 3,
        "zero_is_scalar": False, "GROUP_SIZE_M": 8, "data_contiguous": True, "use_tma": False,
        "use_5d_scales": False, "warp_specialize": False, "EVEN_K": True, "EVEN_N": True,
        "EVEN_M": rows % 128 == 0,
    }  # fmt: skip
    step = Step(
        "hqq", "gemlite.triton_kernels.gemm_kernels", "gemm_INT_kernel", values, constants,
        lambda config: (_tiles(rows, config),),
    )  # fmt: skip
    return w.work("hqq", step, out)


WORK: dict[str, Callable[[int], Work]] = {"awq": awq, "gptq": gptq, "hqq": hqq}


def works(names: list[str], rows: list[int]) -> Iterator[Work]:
    """Yield the requested works."""
    for name, count in itertools.product(names, rows):
        yield WORK[name](count)


def main() -> int:
    """Build, check and time the requested works."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", nargs="*", choices=WORK, default=list(WORK))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("-j", type=int, default=8)
    options = parser.parse_args()
    sys.path.insert(0, str(options.folder))
    import torch

    import aotc

    torch.manual_seed(0)
    archive = archive_of(options.folder, options.work, options.j, MANIFEST, LIBRARIES)
    library, table = aotc.load(archive), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for work in works(options.work, options.rows):
        table.append(measure(work, library))
        print(table[-1], flush=True)
        torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps(table, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
