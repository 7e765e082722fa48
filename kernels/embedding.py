"""Sums of rows that an index selects: all latency, so the loads of later rows are under way."""

import triton
import triton.language as tl


@triton.jit
def embedding_bag_kernel(
    table_ptr, index_ptr, weight_ptr, offset_ptr, out_ptr, stride, n_bags, dim,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store, for every bag, the weighted sum of the rows of a table, (any, dim), that it names.

    Bag b has the indices and weights from offset[b] up to offset[b + 1], UNROLL of them an
    iteration; a negative index is padding and adds nothing. Rows are `stride` elements apart, `out`
    is dense. Axis 1 of the grid goes over BLOCK columns each.
    """
    bag = tl.program_id(0)
    tl.assume(bag < n_bags)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < dim
    first, last = tl.load(offset_ptr + bag), tl.load(offset_ptr + bag + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.range(first, last, num_stages=STAGES, loop_unroll_factor=UNROLL):
        row = tl.load(index_ptr + i).to(tl.int64)
        if row >= 0:
            weight = tl.load(weight_ptr + i)
            values = tl.load(table_ptr + row * stride + cols, mask=mask, other=0.0)
            total += weight * values.to(tl.float32)
    out_ptrs = out_ptr + bag.to(tl.int64) * dim + cols
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=mask)
