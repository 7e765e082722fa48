"""Kernels with device-side tensor descriptors over memory also written by threads or the host."""

import triton
import triton.language as tl


@triton.jit
def write_and_load(x_ptr, work_ptr, out_ptr, rows, BLOCK: tl.constexpr):
    """Copy a block of rows to `work`, load it from there by its descriptor, and add column sums."""
    work = tl.make_tensor_descriptor(work_ptr, [rows, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
    first, column = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK)
    row = first + column[:, None]
    offsets, mask = row * BLOCK + column[None, :], row < rows
    tl.store(work_ptr + offsets, tl.load(x_ptr + offsets, mask=mask, other=0), mask=mask)
    tl.debug_barrier()
    block = work.load([first, 0])
    tl.store(out_ptr + offsets, block + tl.sum(block, 0)[None, :], mask=mask)


@triton.jit
def add_groups(x_ptr, rows_ptr, out_ptr, num_groups, BLOCK: tl.constexpr):
    """Add up the first block of each group of rows, with a descriptor created in the loop."""
    x_ptr += tl.program_id(0) * num_groups * BLOCK * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.int32)
    for group in range(num_groups):
        rows = tl.load(rows_ptr + group)
        tensor = tl.make_tensor_descriptor(x_ptr, [rows, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
        x_ptr += BLOCK * BLOCK
        total += tensor.load([0, 0])
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * BLOCK * BLOCK + i[:, None] * BLOCK + i[None, :]
    tl.store(out_ptr + offsets, total)


@triton.jit
def copy_mapped(maps, out_ptr, n_rows, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Store the first columns of each tensor, through host-made descriptors in memory."""
    tensor = tl.program_id(0)
    mapped = tl.reinterpret_tensor_descriptor(maps + tensor * 128, [BLOCK, WIDTH], tl.float16)
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDTH)[None, :]
    for row in range(0, n_rows, BLOCK):
        offsets = (tensor * n_rows + row + i) * WIDTH + j
        tl.store(out_ptr + offsets, mapped.load([row, 0]), mask=row + i < n_rows)


@triton.jit
def describe_rows(x_ptr, maps, n_rows, n_cols, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Store the map of each program's rows for kernels after this one."""
    part = tl.program_id(0)
    tl.extra.cuda.experimental_device_tensormap_create2d(
        desc_ptr=maps + part * 128,
        global_address=x_ptr + part * n_rows * n_cols,
        load_size=[BLOCK, WIDTH],
        global_size=[n_rows, n_cols],
        element_ty=x_ptr.dtype.element_ty,
    )
