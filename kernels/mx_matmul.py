"""A matrix product in microscaling formats: elements of 4 and 8 bits, a scale for 32 along K."""

import triton
import triton.language as tl


@triton.jit
def mx_matmul_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    A_FORMAT: tl.constexpr, PER_BYTE: tl.constexpr,
):  # fmt: skip
    """Store A (M, K) @ B (N, K)^T to C (M, N) in bf16, summed in fp32.

    A is in A_FORMAT, PER_BYTE elements a byte, B in e2m1; scales are exponents, (M, K / 32) and
    (N, K / 32). Rows are dense, and K is a multiple of 32.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    groups = tl.arange(0, BLOCK_K // 32)
    a_bytes, b_bytes = tl.arange(0, BLOCK_K // PER_BYTE), tl.arange(0, BLOCK_K // 2)
    in_m, in_n = rows < M, columns < N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a_place, b_place, group = k // PER_BYTE + a_bytes, k // 2 + b_bytes, k // 32 + groups
        a = tl.load(
            a_ptr + rows[:, None] * (K // PER_BYTE) + a_place[None, :],
            mask=in_m[:, None] & (a_place < K // PER_BYTE)[None, :],
            other=0,
        )
        b = tl.load(
            b_ptr + columns[None, :] * (K // 2) + b_place[:, None],
            mask=in_n[None, :] & (b_place < K // 2)[:, None],
            other=0,
        )
        in_k = (group < K // 32)[None, :]
        a_scale = tl.load(
            a_scale_ptr + rows[:, None] * (K // 32) + group[None, :],
            mask=in_m[:, None] & in_k,
            other=127,
        )
        b_scale = tl.load(
            b_scale_ptr + columns[:, None] * (K // 32) + group[None, :],
            mask=in_n[:, None] & in_k,
            other=127,
        )
        acc = tl.dot_scaled(a, a_scale, A_FORMAT, b, b_scale, "e2m1", acc)
    out = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(out, acc.to(tl.bfloat16), mask=in_m[:, None] & in_n[None, :])
