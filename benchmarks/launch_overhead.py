"""What a launch costs: Triton's own, or one from an archive beside the loader's call.

    python benchmarks/launch_overhead.py [ARCHIVE]

Prints, as JSON, the microseconds of `column[grid](…)` of `record_program.py`, and with an archive of
that program also of the loader's call of the same kernel. Needs torch and a GPU.
"""

from __future__ import annotations

import json
import sys
import time

NUM_LAUNCHES, NUM_ROUNDS = 500, 100


def main() -> None:
    """Time both in turn, so that what disturbs one disturbs the other."""
    library = None
    if len(sys.argv) > 1:
        import aotc
        import aotc.triton

        aotc.triton.install(sys.argv[1], stand_in=True)
    import record_program as program
    import torch

    x, out = torch.randn(64, 1000, device="cuda")[:, 3], torch.empty(64, device="cuda")
    n, stride_x, stride_out, grid = 64, x.stride(0), out.stride(0), (1,)
    timed = {
        "launch": lambda: program.column[grid](x, out, n, stride_x, stride_out, BLOCK=256),
    }
    if len(sys.argv) > 1:
        library = aotc.load(sys.argv[1])
        kernel = library["column"]
        timed["loader"] = lambda: kernel(x, out, n, stride_x, stride_out, grid=grid)
    least = dict.fromkeys(timed, float("inf"))
    for _ in range(NUM_ROUNDS):
        for name, call in timed.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(NUM_LAUNCHES):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / NUM_LAUNCHES * 1e6)
    print(json.dumps(least))


if __name__ == "__main__":
    main()
