"""Matrix products with weights of fewer bits than the rows they multiply, through tensor descriptors.

A tile of the result is computed transposed, so that weights are the left operand of the dot. Hopper's
tensor cores take that one from registers, which is where weights are converted to the type of the
rows.
"""

import triton
import triton.language as tl
from matmul import tile_of_program
from small_matmul import finish, part_of_k


@triton.jit
def persistent_weight_only_kernel(
    x, w, c, scale_ptr,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_N: tl.constexpr, NUM_SMS: tl.constexpr,
    FLATTEN: tl.constexpr = True,  # noqa: FBT002 - a constant
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
):  # fmt: skip
    """Store (X @ W^T) * scale to C (M, N): X is (M, K), W (N, K), one fp32 scale a row of W.

    Weights are numbers of 8 bits, which X's type holds exactly: int8 or fp8 for bf16 and fp16. Blocks
    of the descriptors are (BLOCK_M, BLOCK_K), (BLOCK_N, BLOCK_K) and (BLOCK_M, BLOCK_N).
    """
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for index in tl.range(
        tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        tile_n, tile_m = tile_of_program(index, num_n, num_m, GROUP_N)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(0, K, BLOCK_K):
            weights = w.load([column, k])
            rows = x.load([row, k])
            acc = tl.dot(weights.to(rows.dtype), rows.T, acc)
        n = column + tl.arange(0, BLOCK_N)
        scale = tl.load(scale_ptr + n, mask=n < N, other=0.0)
        c.store([row, column], (acc * scale[:, None]).T.to(c.dtype))


@triton.jit
def unpacked_int4(words):
    """Return the numbers of 0 to 15 that words hold, eight in a row for each word.

    Of the eight, those with even indices are in the low half of the word, those with odd ones in the
    high half: so neighbours are a shift of 16 bits apart, as two 16-bit numbers in a register are.
    """
    element = tl.arange(0, 8)
    shift = element // 2 * 4 + element % 2 * 16
    numbers = (words[:, :, None] >> shift[None, None, :]) & 15
    return numbers.reshape(words.shape[0], words.shape[1] * 8)


@triton.jit
def of_each(groups, BLOCK_K: tl.constexpr):
    """Return (N, BLOCK_K) numbers, one for each weight, of those of groups, (groups of K, N)."""
    num_groups: tl.constexpr = groups.shape[0]
    num_n: tl.constexpr = groups.shape[1]
    each = groups.T[:, :, None].broadcast_to(num_n, num_groups, BLOCK_K // num_groups)
    return each.reshape(num_n, BLOCK_K)


@triton.jit
def small_int4_kernel(
    w, x, scales, out_ptr,
    M, N, K,
    stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    WORDS_K: tl.constexpr, GROUPS_K: tl.constexpr, SPLIT_K: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002 - a constant
    workspace_ptr=None, counter_ptr=None, zeros=None,
):  # fmt: skip
    """Store x @ ((w - zero) * scale)^T: `small_matmul` with weights of 4 bits, for few rows.

    Eight weights are a word of `w`, (N, K / 8), see `unpacked_int4`. `scales` is (groups of K, N), each
    group a part of K of BLOCK_K / GROUPS_K. Blocks are (BLOCK_N, WORDS_K) of w, (BLOCK_M, BLOCK_K) of x
    and (GROUPS_K, BLOCK_N) of scales and zeros, which are of one type; without zeros each is 8.
    """
    tl.static_assert(WORDS_K * 8 == BLOCK_K, "eight weights are a word")
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    start_k, end_k = part_of_k(K, BLOCK_K, SPLIT_K)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in tl.range(start_k, end_k, BLOCK_K, warp_specialize=WARP_SPECIALIZE):
        words = w.load([column, k // 8])
        group = k // (BLOCK_K // GROUPS_K)
        scale = of_each(scales.load([group, column]), BLOCK_K)
        rows = x.load([row, k])
        if zeros is None:
            weights = (unpacked_int4(words) - 8).to(rows.dtype) * scale
        else:
            zero = of_each(zeros.load([group, column]), BLOCK_K)
            weights = (unpacked_int4(words).to(rows.dtype) - zero) * scale
        acc = tl.dot(weights.to(rows.dtype), rows.T, acc)
    finish(acc, out_ptr, workspace_ptr, counter_ptr, M, N, stride_om, SPLIT_K)


@triton.jit
def bytes_of(words, first, NUM: tl.constexpr):
    """Return NUM bytes (N, NUM) of each column of words, (NUM / 4, N), the lowest first.

    Of a single word it may be fewer than 4, from byte `first`.
    """
    PER_WORD: tl.constexpr = min(NUM, 4)
    shift = tl.arange(0, PER_WORD) * 8
    if NUM < 4:
        shift += first * 8
    each = (words.T[:, :, None] >> shift[None, None, :]) & 255
    return each.reshape(words.shape[1], NUM).to(tl.uint8)


@triton.jit
def decoded_mxfp4(pairs, exponents):
    """Return the bf16 numbers (N, K) of e2m1 pairs, (N, K / 2), times their scales, of which none is above 2.

    Sign, exponent and mantissa go where bf16 has them. Its exponent is then too small by 126, which the scales make
    up for: so one multiplication does both, and the two numbers below the normal ones need nothing of their own.
    """
    num_n: tl.constexpr = pairs.shape[0]
    num_k: tl.constexpr = pairs.shape[1] * 2
    codes = tl.join(pairs & 15, pairs >> 4).reshape(num_n, num_k).to(tl.uint16)
    bits = (codes & 7) << 6 | (codes & 8) << 12
    scale = ((exponents.to(tl.uint16) + 126) << 7).to(tl.bfloat16, bitcast=True)
    each = scale[:, :, None].broadcast_to(num_n, exponents.shape[1], 32).reshape(num_n, num_k)
    return bits.to(tl.bfloat16, bitcast=True) * each


@triton.jit
def small_mxfp4_kernel(
    w, x, scales, out_ptr,
    M, N, K,
    stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BYTES_K: tl.constexpr, WORDS_K: tl.constexpr, SPLIT_K: tl.constexpr,
    DECODE: tl.constexpr = False,  # noqa: FBT002 - a constant
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
    workspace_ptr=None, counter_ptr=None,
):  # fmt: skip
    """Store x @ (w * scale)^T: `small_matmul` with weights of mxfp4, for few rows.

    `w` is (N, K / 2), two e2m1 a byte, the first in the low half; each 32 along K share a scale, 2 to the power of a
    byte less 127. Four scales are a word of `scales`, (K / 128, N). Blocks are (BLOCK_N, BYTES_K) of w,
    (BLOCK_M, BLOCK_K) of x and (WORDS_K, BLOCK_N) of scales. DECODE is `decoded_mxfp4` in place of `tl.dot_scaled`,
    for bf16.
    """
    tl.static_assert(
        BYTES_K * 2 == BLOCK_K and tl.cdiv(BLOCK_K, 128) == WORDS_K, "the same part of K"
    )
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    start_k, end_k = part_of_k(K, BLOCK_K, SPLIT_K)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in tl.range(start_k, end_k, BLOCK_K, warp_specialize=WARP_SPECIALIZE):
        weights = w.load([column, k // 2])
        scale = bytes_of(scales.load([k // 128, column]), k // 32 % 4, BLOCK_K // 32)
        rows = x.load([row, k])
        if DECODE:
            acc = tl.dot(decoded_mxfp4(weights, scale), rows.T, acc)
        else:
            kind: tl.constexpr = "fp16" if rows.dtype == tl.float16 else "bf16"
            acc = tl.dot_scaled(weights, scale, "e2m1", rows.T, None, kind, acc)
    finish(acc, out_ptr, workspace_ptr, counter_ptr, M, N, stride_om, SPLIT_K)


@triton.jit
def persistent_mxfp4_kernel(
    x, w, c, scales,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BYTES_K: tl.constexpr, WORDS_K: tl.constexpr,
    GROUP_N: tl.constexpr, NUM_SMS: tl.constexpr,
    DECODE: tl.constexpr = False,  # noqa: FBT002 - a constant
    FLATTEN: tl.constexpr = True,  # noqa: FBT002
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
):  # fmt: skip
    """Store x @ (w * scale)^T to C (M, N) for many rows; operands as `small_mxfp4_kernel` has them."""
    tl.static_assert(
        BYTES_K * 2 == BLOCK_K and tl.cdiv(BLOCK_K, 128) == WORDS_K, "the same part of K"
    )
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for index in tl.range(
        tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        tile_n, tile_m = tile_of_program(index, num_n, num_m, GROUP_N)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(0, K, BLOCK_K):
            weights = w.load([column, k // 2])
            scale = bytes_of(scales.load([k // 128, column]), k // 32 % 4, BLOCK_K // 32)
            rows = x.load([row, k])
            if DECODE:
                acc = tl.dot(decoded_mxfp4(weights, scale), rows.T, acc)
            else:
                kind: tl.constexpr = "fp16" if rows.dtype == tl.float16 else "bf16"
                acc = tl.dot_scaled(weights, scale, "e2m1", rows.T, None, kind, acc)
        c.store([row, column], acc.T.to(c.dtype))
