"""An fp8 matmul of row-major A and column-major B, accumulating in one of five ways."""

import triton
import triton.language as tl


@triton.jit
def fp8_accumulation_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    PROMOTED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """`PROMOTED`: 0 accumulates in the instruction, 1 adds each block, others promote as often."""
    pid = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * num_n) * GROUP
    size = min(num_m - first, GROUP)
    rows = (first + pid % (GROUP * num_n) % size) * BM + tl.arange(0, BM)
    columns = pid % (GROUP * num_n) // size * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        in_k = k + ks < K
        a_mask = (rows < M)[:, None] & in_k[None, :]
        b_mask = (columns < N)[None, :] & in_k[:, None]
        a = tl.load(a_ptr + rows[:, None] * K + (k + ks)[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + columns[None, :] * K + (k + ks)[:, None], mask=b_mask, other=0.0)
        if PROMOTED == 0:
            acc = tl.dot(a, b, acc)
        elif PROMOTED == 1:
            acc += tl.dot(a, b)
        else:
            acc = tl.dot(a, b, acc, max_num_imprecise_acc=PROMOTED)
    c_mask = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16), mask=c_mask)
