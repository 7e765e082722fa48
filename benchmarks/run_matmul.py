"""Launch a few configurations of the mma.sync product once each, for a profiler.

    aotc build benchmarks/mma.toml --without wgmma
    ncu --clock-control none -k regex:matmul --metrics \
l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,l1tex__data_pipe_lsu_wavefronts_mem_shared.sum \
        python benchmarks/run_matmul.py dist/mma.aotc
"""

from __future__ import annotations

import sys

import torch

import aotc

SIZE = 4096
KEYS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
TILES = {(128, 128, 32, 4, 4), (128, 128, 64, 4, 3), (128, 256, 32, 8, 4), (128, 256, 64, 8, 3)}


def main() -> int:
    kernel = aotc.load(sys.argv[1])["matmul"]
    a, b, out = (torch.randn(SIZE, SIZE, device="cuda").to(torch.bfloat16) for _ in range(3))
    for config in (dict(variant.config) for variant in kernel.info.variants):
        if tuple(config[key] for key in KEYS) in TILES:
            print(config, flush=True)
            grid = -(-SIZE // config["BLOCK_M"]) * -(-SIZE // config["BLOCK_N"])
            arguments = (a, b, out, out, out, *4 * (SIZE,), 1, SIZE, 1, SIZE, 1)
            kernel.launch(arguments, grid=(grid,), config=config)
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
