"""Persistent matrix products through tensor descriptors, with what follows them fused in.

NUM_SMS programs go through the tiles of C, so a GPU that copies tiles itself loads the next tile
while the last one is finished. Tensors are row-major. A descriptor's block is, of A,
(BLOCK_M, BLOCK_K); of B (BLOCK_N, BLOCK_K), or (BLOCK_K, BLOCK_N) if B is not transposed; of C and
the residual (BLOCK_M, EPILOGUE_N): a tile is stored EPILOGUE_N columns at a time, so
that it takes less shared memory on its way out. EPILOGUE_N is BLOCK_N, its half, its quarter, ….
What is left of a tile that is no whole EPILOGUE_N wide is stored through another descriptor of C.
"""

import triton
import triton.language as tl
from matmul import activate, tile_of_program


@triton.jit
def halves_of_columns(x):
    """Return the left and the right half of a tile; which thread has what stays."""
    return tl.split(x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1))


@triton.jit
def columns_of_parts(x, EPILOGUE_N: tl.constexpr):
    """Return the parts of a tile that have EPILOGUE_N columns each, from left to right."""
    if x.shape[1] == EPILOGUE_N:
        parts = (x,)
    else:
        left, right = halves_of_columns(x)
        parts = columns_of_parts(left, EPILOGUE_N) + columns_of_parts(right, EPILOGUE_N)
    return parts


@triton.jit
def scaled(x, row, column, M, N, scale_a_ptr, scale_b_ptr, SCALES: tl.constexpr):
    """Multiply a tile by the scales of A and B: "none", "tensor" (one each), or "row".

    "row" has a scale for each row of A, (M), and for each column of the product, (N).
    """
    if SCALES == "tensor":
        x *= tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
    elif SCALES == "row":
        m, n = row + tl.arange(0, x.shape[0]), column + tl.arange(0, x.shape[1])
        x *= tl.load(scale_a_ptr + m, mask=m < M, other=0.0)[:, None]
        x *= tl.load(scale_b_ptr + n, mask=n < N, other=0.0)[None, :]
    else:
        tl.static_assert(SCALES == "none", "SCALES is none, tensor or row")
    return x


@triton.jit
def finished(
    x, row, column, M, N, bias_ptr, scale_a_ptr, scale_b_ptr,
    ACTIVATION: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Return activation(x * scales + bias) of the tile at `row` and `column`."""
    x = scaled(x, row, column, M, N, scale_a_ptr, scale_b_ptr, SCALES)
    if bias_ptr is not None:
        n = column + tl.arange(0, x.shape[1])
        x += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    return activate(x, ACTIVATION)


@triton.jit
def store_parts(
    x, c, c_rest, row, column, residual,
    COLUMNS: tl.constexpr, EPILOGUE_N: tl.constexpr, REST_N: tl.constexpr,
):  # fmt: skip
    """Store the first COLUMNS of a tile + residual: EPILOGUE_N at a time, then REST_N at a time."""
    WHOLE: tl.constexpr = COLUMNS // EPILOGUE_N
    REST: tl.constexpr = COLUMNS % EPILOGUE_N
    parts = columns_of_parts(x, EPILOGUE_N)
    for part in tl.static_range(WHOLE):
        place = column + part * EPILOGUE_N
        piece = parts[part]
        if residual is not None:
            piece += residual.load([row, place]).to(tl.float32)
        c.store([row, place], piece.to(c.dtype))
    if REST > 0:
        tl.static_assert(residual is None, "a residual is read in whole EPILOGUE_N")
        tl.static_assert(REST % REST_N == 0, "what is left of a tile is whole REST_N")
        narrow = columns_of_parts(parts[WHOLE], REST_N)
        for part in tl.static_range(REST // REST_N):
            place = column + WHOLE * EPILOGUE_N + part * REST_N
            c_rest.store([row, place], narrow[part].to(c.dtype))


@triton.jit
def persistent_matmul_kernel(
    a, b, c,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EPILOGUE_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
    TRANSPOSED: tl.constexpr = True,  # noqa: FBT002 - a constant
    ACTIVATION: tl.constexpr = "none", SCALES: tl.constexpr = "none",
    FLATTEN: tl.constexpr = True,  # noqa: FBT002
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
    COLUMNS: tl.constexpr = 0, REST_N: tl.constexpr = 0,
    bias_ptr=None, residual=None, scale_a_ptr=None, scale_b_ptr=None, c_rest=None,
):  # fmt: skip
    """Store activation((A @ B) * scales + bias) + residual to C (M, N), summed in fp32.

    A is (M, K), B (N, K) if TRANSPOSED, as the weights of a linear layer, else (K, N). Bias (N) and
    residual (M, N) are there or not; scales are fp32, see `scaled`.

    With COLUMNS tiles are so many columns wide, where a width between powers of two leaves fewer
    SMs without work. A compiler need not multiply what is not stored. `c_rest` is C by blocks of
    (BLOCK_M, REST_N), a part of EPILOGUE_N, for the columns beyond whole EPILOGUE_N.
    """
    WIDTH: tl.constexpr = COLUMNS if COLUMNS > 0 else BLOCK_N
    tl.static_assert(WIDTH <= BLOCK_N, "tiles are as wide as a block, or less")
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, WIDTH)
    for index in tl.range(
        tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        tile_m, tile_n = tile_of_program(index, num_m, num_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * WIDTH
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            left = a.load([row, k])
            right = b.load([column, k]).T if TRANSPOSED else b.load([k, column])
            acc = tl.dot(left, right, acc)
        # What a tile is finished with is read ahead of its stores, which may be where that is.
        x = finished(acc, row, column, M, N, bias_ptr, scale_a_ptr, scale_b_ptr, ACTIVATION, SCALES)
        store_parts(x, c, c_rest, row, column, residual, WIDTH, EPILOGUE_N, REST_N)


@triton.jit
def persistent_swiglu_kernel(
    a, b, c,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
    SCALES: tl.constexpr = "none",
    FLATTEN: tl.constexpr = True,  # noqa: FBT002 - a constant
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
    scale_a_ptr=None, scale_b_ptr=None,
):  # fmt: skip
    """Store silu(A @ gate^T) * (A @ up^T) to C (M, N): A is (M, K), B (2 N, K), gate above up.

    That is how models keep the two weights of their feed-forward layers. Descriptors' blocks are
    (BLOCK_M, BLOCK_K), (BLOCK_N, BLOCK_K) and (BLOCK_M, BLOCK_N): a tile has two sums.
    """
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for index in tl.range(
        tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        tile_m, tile_n = tile_of_program(index, num_m, num_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            left = a.load([row, k])
            gate = tl.dot(left, b.load([column, k]).T, gate)
            up = tl.dot(left, b.load([N + column, k]).T, up)
        gate = scaled(gate, row, column, M, 2 * N, scale_a_ptr, scale_b_ptr, SCALES)
        up = scaled(up, row, N + column, M, 2 * N, scale_a_ptr, scale_b_ptr, SCALES)
        c.store([row, column], (activate(gate, "silu") * up).to(c.dtype))


@triton.jit
def persistent_blockwise_kernel(
    a, b, c, scale_a, scale_b_ptr,
    M, N, K, stride_sb,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
    FLATTEN: tl.constexpr = True,  # noqa: FBT002 - a constant
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
):  # fmt: skip
    """Store A @ B^T to C (M, N), fp8 with an fp32 scale for 1 x 128 of A and 128 x 128 of B.

    A is (M, K), B (N, K). `scale_a` is (cdiv(K, 128), M) in blocks of (1, BLOCK_M), transposed so
    that the scales of a tile are neighbours; `scale_b` is (cdiv(N, 128), cdiv(K, 128)), its rows
    `stride_sb` apart. Each 128 of K are summed apart, scaled, and added in fp32: the sums that
    tensor cores make of fp8 have fewer bits than fp32.
    """
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(128 % BLOCK_N == 0, "a tile lies under one scale of B")
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for index in tl.range(
        tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        tile_m, tile_n = tile_of_program(index, num_m, num_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        scale_b_ptrs = scale_b_ptr + column // 128 * stride_sb
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for block in range(tl.cdiv(K, BLOCK_K)):
            k = block * BLOCK_K
            # Loads that stand together come and go together.
            left, right = a.load([row, k]), b.load([column, k]).T
            scales = scale_a.load([block, row]).reshape(BLOCK_M)
            scale = scales * tl.load(scale_b_ptrs + block)
            acc += tl.dot(left, right) * scale[:, None]
        c.store([row, column], acc.to(c.dtype))
