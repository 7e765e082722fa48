"""Products of few rows with the weights of a linear layer, at the speed of reading the weights.

out = x @ w^T, x (M, K), w (N, K), out (M, N), all row-major. While M is small every weight is read
once, and what counts is bytes on their way from memory: many programs, or many blocks ahead. The
weights are the tall side of each product, (BLOCK_N, BLOCK_K) @ (BLOCK_K, BLOCK_M), and the rows of x
its narrow side: a matrix unit whose tiles are 64 tall multiplies 64 weights then, not the rows of x
and many rows of nothing. The grid is (blocks of M, blocks of N, SPLIT_K), so that programs which
share weights run together where M has several blocks.

Where the tiles are too few for a GPU, SPLIT_K programs share one, each with a part of K. Each leaves
its part in `workspace_ptr`, fp32, (tiles, SPLIT_K, BLOCK_N, BLOCK_M), and whichever comes last adds
them up in their order, so the result does not depend on who that was. `counter_ptr` has an int32
for each tile, 0 before the first launch; every launch leaves zeros. Launches that may run at one
time need a workspace and counters of their own. With SPLIT_K = 1 there is neither.

With PDL a launch may start while the one before it in the stream still runs, and waits for it before
it reads x: what a product of microseconds spends on starting is then spent beside the last one. The
weights must not be what the launch before writes: EARLY blocks of them are fetched ahead of that wait,
so that memory is not idle from the end of one layer to the first product of the next.
"""

import triton
import triton.language as tl


@triton.jit
def begin(PDL: tl.constexpr):
    """Let the next launch start, and wait for what the one before has written."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def part_of_k(K, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr):
    """Return where this program's part of K starts and ends; parts are whole blocks but the last."""
    elems = tl.cdiv(K, BLOCK_K * SPLIT_K) * BLOCK_K
    start = tl.program_id(2) * elems
    return start, min(start + elems, K)


@triton.jit
def store_tile(acc, out_ptr, M, N, stride_om):
    """Store a tile of out^T, (BLOCK_N, BLOCK_M)."""
    m = tl.program_id(0) * acc.shape[1] + tl.arange(0, acc.shape[1])
    n = tl.program_id(1) * acc.shape[0] + tl.arange(0, acc.shape[0])
    out_ptrs = out_ptr + m.to(tl.int64)[None, :] * stride_om + n[:, None]
    mask = (n < N)[:, None] & (m < M)[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def finish(acc, out_ptr, workspace_ptr, counter_ptr, M, N, stride_om, SPLIT_K: tl.constexpr):
    """Store a tile of out^T, or this program's part of it and, if it is the last, the sum."""
    if SPLIT_K == 1:
        store_tile(acc, out_ptr, M, N, stride_om)
    else:
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        n, m = tl.arange(0, acc.shape[0]), tl.arange(0, acc.shape[1])
        parts = workspace_ptr + tile.to(tl.int64) * (SPLIT_K * acc.numel)
        parts += n[:, None] * acc.shape[1] + m[None, :]
        tl.store(parts + tl.program_id(2) * acc.numel, acc)
        tl.debug_barrier()  # the whole part is stored before it is counted
        if tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == SPLIT_K - 1:
            tl.store(counter_ptr + tile, 0)
            total = tl.load(parts)
            for part in tl.static_range(1, SPLIT_K):
                total += tl.load(parts + part * acc.numel)
            store_tile(total, out_ptr, M, N, stride_om)


@triton.jit
def small_matmul_kernel(
    w_ptr, x_ptr, out_ptr,
    M, N, K,
    stride_wn, stride_xm, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    EVEN: tl.constexpr = False,  # noqa: FBT002 - a constant
    PDL: tl.constexpr = False,  # noqa: FBT002
    workspace_ptr=None, counter_ptr=None,
):  # fmt: skip
    """Store x @ w^T through pointers. EVEN needs an N and a K of whole blocks."""
    begin(PDL)
    start_m, start_n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    start_k, end_k = part_of_k(K, BLOCK_K, SPLIT_K)
    n, m, k = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    in_n, in_m = (start_n + n < N)[:, None], (start_m + m < M)[:, None]
    w_ptrs = w_ptr + start_n.to(tl.int64) * stride_wn + start_k
    w_ptrs += n[:, None] * stride_wn + k[None, :]
    x_ptrs = x_ptr + start_m.to(tl.int64) * stride_xm + start_k
    x_ptrs += m[:, None] * stride_xm + k[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for at_k in range(start_k, end_k, BLOCK_K):
        if EVEN:
            w = tl.load(w_ptrs)
            x = tl.load(x_ptrs, mask=in_m, other=0.0)
        else:
            in_k = (k < K - at_k)[None, :]
            w = tl.load(w_ptrs, mask=in_n & in_k, other=0.0)
            x = tl.load(x_ptrs, mask=in_m & in_k, other=0.0)
        acc = tl.dot(w, x.T, acc)
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K
    finish(acc, out_ptr, workspace_ptr, counter_ptr, M, N, stride_om, SPLIT_K)


@triton.jit
def small_matmul_descriptor_kernel(
    w, x, out_ptr,
    M, N, K,
    stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002 - a constant
    PDL: tl.constexpr = False,  # noqa: FBT002
    EARLY: tl.constexpr = 0,
    workspace_ptr=None, counter_ptr=None,
):  # fmt: skip
    """Store x @ w^T, w in blocks of (BLOCK_N, BLOCK_K) and x of (BLOCK_M, BLOCK_K).

    Rows of x that are not there are zeros, and nothing is fetched for them.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    start_k, end_k = part_of_k(K, BLOCK_K, SPLIT_K)
    # An early block that is not of this part is taken from beyond K, where all is zeros.
    beyond_k = tl.cdiv(K, BLOCK_K) * BLOCK_K
    early = ()
    for block in tl.static_range(EARLY):
        k = start_k + block * BLOCK_K
        early += (w.load([column, k if k < end_k else beyond_k]),)
    if PDL:
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for block in tl.static_range(EARLY):
        k = start_k + block * BLOCK_K
        acc = tl.dot(early[block], x.load([row, k if k < end_k else beyond_k]).T, acc)
    start_k += EARLY * BLOCK_K
    for k in tl.range(start_k, end_k, BLOCK_K, warp_specialize=WARP_SPECIALIZE):
        acc = tl.dot(w.load([column, k]), x.load([row, k]).T, acc)
    finish(acc, out_ptr, workspace_ptr, counter_ptr, M, N, stride_om, SPLIT_K)


@triton.jit
def matvec_kernel(
    w_ptr, x_ptr, out_ptr,
    N, K,
    stride_wn,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr = False,  # noqa: FBT002 - a constant
    PDL: tl.constexpr = False,  # noqa: FBT002
):  # fmt: skip
    """Store w @ x, w (N, K), x (K), out (N), without matrix units: a thread adds up what it loads.

    EVEN needs an N and a K of whole blocks.
    """
    begin(PDL)
    RUN: tl.constexpr = 8  # neighbours that a thread loads at once and adds up by itself
    tile = tl.program_id(0)
    n, k = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    in_n = tile * BLOCK_N + n < N
    w_ptrs = w_ptr + (tile * BLOCK_N).to(tl.int64) * stride_wn
    w_ptrs += n[:, None] * stride_wn + k[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_K // RUN), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        if EVEN:
            w, x = tl.load(w_ptrs + start_k), tl.load(x_ptr + start_k + k)
        else:
            in_k = k < K - start_k
            w = tl.load(w_ptrs + start_k, mask=in_n[:, None] & in_k[None, :], other=0.0)
            x = tl.load(x_ptr + start_k + k, mask=in_k, other=0.0)
        products = w.to(tl.float32) * x.to(tl.float32)[None, :]
        acc += tl.sum(products.reshape(BLOCK_N, BLOCK_K // RUN, RUN), 2)
    out = tl.sum(acc, 1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + tile * BLOCK_N + n, out, mask=in_n)
