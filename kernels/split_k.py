"""Matrix products whose K is cut into parts, for shapes with too few tiles to fill a GPU."""

import triton
import triton.language as tl
from matmul import activate, tile_of_program


@triton.jit
def _partial_product(
    a_ptr, b_ptr, tile_m, tile_n, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Return the product of one tile over every SPLIT_K-th block of K, from this program's on."""
    part = tl.program_id(1)
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    start_m, start_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    in_m, in_n = (start_m + m < M)[:, None], (start_n + n < N)[None, :]
    first_k = (part * BLOCK_K).to(tl.int64)
    a_ptrs = a_ptr + start_m.to(tl.int64) * stride_am + first_k * stride_ak
    a_ptrs += m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + start_n.to(tl.int64) * stride_bn + first_k * stride_bk
    b_ptrs += k[:, None] * stride_bk + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(part * BLOCK_K, K, BLOCK_K * SPLIT_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & in_n, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * SPLIT_K * stride_ak
        b_ptrs += BLOCK_K * SPLIT_K * stride_bk
    return acc


@triton.jit
def matmul_split_k_atomic_kernel(
    a_ptr, b_ptr, out_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, SCOPE: tl.constexpr = "gpu",
):  # fmt: skip
    """Add A @ B to `out`: A is (M, K), B (K, N), `out` (M, N) with neighbouring columns.

    SPLIT_K programs, on axis 1 of the grid, add to each tile, in any order and each rounded to the
    type of `out`. SCOPE is "sys" where other GPUs add to it, too.
    """
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    acc = _partial_product(
        a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K,
    )  # fmt: skip
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    out_ptrs = out_ptr + m.to(tl.int64)[:, None] * stride_om + n[None, :]
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.atomic_add(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask, sem="relaxed", scope=SCOPE)


@triton.jit
def matmul_split_k_kernel(
    a_ptr, b_ptr, workspace_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Store the SPLIT_K parts of A @ B into an fp32 workspace of (SPLIT_K, M, N)."""
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    acc = _partial_product(
        a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K,
    )  # fmt: skip
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    workspace_ptr += tl.program_id(1).to(tl.int64) * M * N
    ptrs = workspace_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(ptrs, acc, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def sum_splits_kernel(
    workspace_ptr, bias_ptr, out_ptr, M, N, stride_om,
    BLOCK: tl.constexpr, SPLIT_K: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store activation(sum over the parts + bias) of a workspace of (SPLIT_K, M, N), by rows."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < N
    part_elems = M.to(tl.int64) * N
    ptrs = workspace_ptr + row * N + cols
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(SPLIT_K):
        total += tl.load(ptrs + part * part_elems, mask=mask, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + cols, mask=mask, other=0.0)
    total = activate(total, ACTIVATION)
    tl.store(out_ptr + row * stride_om + cols, total.to(out_ptr.dtype.element_ty), mask=mask)
