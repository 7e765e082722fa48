"""Matrix products with a fused epilogue, for any shape and any strides."""

import triton
import triton.language as tl


@triton.jit
def tile_of_program(program, n_tiles_m, n_tiles_n, GROUP_M: tl.constexpr):
    """Return the row and column of the tile that a program computes.

    Programs go down GROUP_M rows of tiles before they take the next column, so those that run at
    one time share rows of A and columns of B in the L2 cache.
    """
    programs_per_group = GROUP_M * n_tiles_n
    first_m = program // programs_per_group * GROUP_M
    group_m = min(n_tiles_m - first_m, GROUP_M)
    within = program % programs_per_group
    return first_m + within % group_m, within // group_m


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Apply "none", "relu", "silu" or "gelu" (its exact form) to an fp32 tile."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        tl.static_assert(ACTIVATION == "none", "ACTIVATION is none, relu, silu or gelu")
    return x


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, bias_ptr, residual_ptr, out_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_om, stride_on,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    EVEN_K: tl.constexpr = False,  # noqa: FBT002 - a constant
):  # fmt: skip
    """Store activation(A @ B + bias) + residual: A is (M, K), B (K, N), summed in fp32.

    `bias` has N elements; `residual` has the strides of `out`, and may be it. Neither is read
    unless BIAS or RESIDUAL says so. EVEN_K needs a K that is a multiple of BLOCK_K.
    """
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    start_m, start_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    in_m, in_n = (start_m + m < M)[:, None], (start_n + n < N)[None, :]
    a_ptrs = a_ptr + start_m.to(tl.int64) * stride_am
    a_ptrs += m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + start_n.to(tl.int64) * stride_bn
    b_ptrs += k[:, None] * stride_bk + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m if EVEN_K else in_m & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_n if EVEN_K else in_k[:, None] & in_n, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if BIAS:
        acc += tl.load(bias_ptr + start_n + n, mask=start_n + n < N, other=0.0)[None, :]
    acc = activate(acc, ACTIVATION)
    start = start_m.to(tl.int64) * stride_om + start_n.to(tl.int64) * stride_on
    offsets = m[:, None] * stride_om + n[None, :] * stride_on
    mask = in_m & in_n
    if RESIDUAL:
        acc += tl.load(residual_ptr + start + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + start + offsets, acc.to(out_ptr.dtype.element_ty), mask=mask)
