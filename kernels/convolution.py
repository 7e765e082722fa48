"""Two-dimensional convolution as a matrix product whose left side is never stored."""

import triton
import triton.language as tl
from matmul import activate, tile_of_program


@triton.jit
def conv2d_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr,
    n_images, height, width, n_channels, out_height, out_width, n_filters,
    stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store activation(x * w + bias): x is (n_images, height, width, n_channels), w (KERNEL_H,
    KERNEL_W, n_channels, n_filters), out (n_images, out_height, out_width, n_filters), all dense.

    Pixels outside of an image are zero. A row of the product is a pixel of `out`, and its K goes
    over the window and the channels; BLOCK_K channels of one place of the window are a step.
    """
    n_pixels = n_images * out_height * out_width
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(n_pixels, BLOCK_M), tl.cdiv(n_filters, BLOCK_N), GROUP_M
    )
    pixel = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c = tl.arange(0, BLOCK_K)
    in_m, in_n = pixel < n_pixels, n < n_filters
    image = pixel // (out_height * out_width)
    first_y = pixel // out_width % out_height * stride_y - padding_y
    first_x = pixel % out_width * stride_x - padding_x
    steps_per_place = tl.cdiv(n_channels, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(KERNEL_H * KERNEL_W * steps_per_place):
        place, start_c = step // steps_per_place, step % steps_per_place * BLOCK_K
        y = first_y + place // KERNEL_W * dilation_y
        x = first_x + place % KERNEL_W * dilation_x
        inside = in_m & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        in_c = c < n_channels - start_c
        x_pixel = ((image * height + y) * width + x).to(tl.int64)
        a_ptrs = x_ptr + x_pixel[:, None] * n_channels + start_c + c[None, :]
        a = tl.load(a_ptrs, mask=inside[:, None] & in_c[None, :], other=0.0)
        b_ptrs = w_ptr + (place * n_channels + start_c + c)[:, None] * n_filters + n[None, :]
        b = tl.load(b_ptrs, mask=in_c[:, None] & in_n[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    if BIAS:
        acc += tl.load(bias_ptr + n, mask=in_n, other=0.0)[None, :]
    acc = activate(acc, ACTIVATION)
    out_ptrs = out_ptr + pixel.to(tl.int64)[:, None] * n_filters + n[None, :]
    mask = in_m[:, None] & in_n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)
