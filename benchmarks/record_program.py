"""A program to record: kernels with autotuning, heuristics, None arguments, and strides.

    python record_program.py [OUTPUTS]

Prints, as JSON, the seconds to its first result and the microseconds of a launch after it; its
results are written to OUTPUTS. Needs torch, Triton (or archives in its place) and a GPU.
"""

from __future__ import annotations

import json
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402 - its import is part of the time
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

NUM_LAUNCHES, NUM_ROUNDS = 500, 40


@triton.autotune(
    [triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8)],
    key=["n"],
)
@triton.jit
def add(x_ptr, y_ptr, bias_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offsets, mask=offsets < n) + tl.load(y_ptr + offsets, mask=offsets < n)
    if bias_ptr is not None:
        value += tl.load(bias_ptr)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.heuristics({"EVEN": lambda args: args["n_cols"] % args["BLOCK"] == 0})
@triton.jit
def norm(x_ptr, out_ptr, stride, n_cols, eps, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + row * stride + cols)
    else:
        x = tl.load(x_ptr + row * stride + cols, mask=cols < n_cols, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x) / n_cols + eps)
    tl.store(out_ptr + row * stride + cols, x * scale, mask=cols < n_cols)


@triton.jit
def column(x_ptr, out_ptr, n, stride_x, stride_out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out_ptr + offsets * stride_out,
        tl.load(x_ptr + offsets * stride_x, mask=offsets < n),
        mask=offsets < n,
    )


def run_add(x, y, bias, out):
    n = out.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731 - as programs write it
    add[grid](x, y, bias, out, n)


def run_norm(x, out):
    n_rows, n_cols = x.shape
    block = triton.next_power_of_2(n_cols)
    norm[(n_rows,)](x, out, x.stride(0), n_cols, 1e-6, BLOCK=block, num_warps=8)


def run_column(x, out):
    n = x.shape[0]
    column[(triton.cdiv(n, 256),)](x, out, n, x.stride(0), out.stride(0), BLOCK=256)


def main() -> None:
    """Check each kernel once, then time its launches."""
    torch.manual_seed(0)
    outputs = []
    x, y = torch.randn(2, 64, 1000, device="cuda")
    bias = torch.randn(1, device="cuda")
    out, rows = torch.empty_like(x), torch.empty(64, device="cuda")
    run_add(x, y, None, out)
    torch.testing.assert_close(out, x + y)
    first = time.perf_counter() - START
    run_add(x, y, bias, out)
    torch.testing.assert_close(out, x + y + bias)
    outputs.append(out.clone())
    run_norm(x, out)
    torch.testing.assert_close(out, x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6))
    outputs.append(out.clone())
    run_norm(x[:, :512].contiguous(), out[:, :512].contiguous())
    run_column(x[:, 3], rows)
    torch.testing.assert_close(rows, x[:, 3])
    outputs.append(rows.clone())
    if len(sys.argv) > 1:
        torch.save(outputs, sys.argv[1])
    timed = {
        "add": lambda: run_add(x, y, bias, out),
        "norm": lambda: run_norm(x, out),
        "column": lambda: run_column(x[:, 3], rows),
    }
    print(json.dumps({"first_s": first, **{name: _best(call) for name, call in timed.items()}}))


def _best(call) -> float:
    best = float("inf")
    for _ in range(NUM_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(NUM_LAUNCHES):
            call()
        best = min(best, (time.perf_counter() - start) / NUM_LAUNCHES * 1e6)
    return best


if __name__ == "__main__":
    main()
