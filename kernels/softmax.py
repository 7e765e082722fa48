"""Softmax and cross-entropy over rows: both rest on a running maximum and sum of exponentials."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)
# Where a running maximum starts. Not -inf: the difference of two of those is NaN.
LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def _online_step(x, running_max, running_sum):
    """Take one block into the maximum and the sum of 2**(x - maximum), element by element.

    One exponential an element: it scales the old sum where x is the new maximum and is the new
    term elsewhere. Elements that are -inf add nothing.
    """
    is_larger = x > running_max
    power = tl.exp2(-tl.abs(x - running_max))
    running_sum = tl.where(is_larger, running_sum * power + 1.0, running_sum + power)
    return tl.where(is_larger, x, running_max), running_sum


@triton.jit
def _online_finish(running_max, running_sum):
    """Return the maximum and the sum over all elements."""
    maximum = tl.max(running_max, axis=0)
    total = tl.sum(running_sum * tl.exp2(running_max - maximum), axis=0)
    return maximum, total


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr, LOOP: tl.constexpr):
    """Store the softmax of every row of x, (n_rows, n_cols), rows `stride` elements apart.

    Without LOOP, BLOCK is at least n_cols, and a row is read once and stays in registers. With it
    any row is read twice, BLOCK columns at a time. `out` has the same stride and may be `x`.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    x_ptr += row * stride
    out_ptr += row * stride
    cols = tl.arange(0, BLOCK)
    dtype = out_ptr.dtype.element_ty
    if not LOOP:
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=float("-inf")).to(tl.float32)
        power = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + cols, (power / tl.sum(power, axis=0)).to(dtype), mask=mask)
    else:
        running_max = tl.full([BLOCK], LOWEST, tl.float32)
        running_sum = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            x = tl.load(x_ptr + start + cols, mask=mask, other=float("-inf")).to(tl.float32)
            running_max, running_sum = _online_step(x * LOG2_E, running_max, running_sum)
        maximum, total = _online_finish(running_max, running_sum)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            x = tl.load(x_ptr + start + cols, mask=mask, other=float("-inf")).to(tl.float32)
            out = tl.exp2(x * LOG2_E - maximum) / total
            tl.store(out_ptr + start + cols, out.to(dtype), mask=mask)


@triton.jit
def cross_entropy_kernel(
    logits_ptr,
    target_ptr,
    loss_ptr,
    lse_ptr,
    stride,
    n_rows,
    n_cols,
    ignore_index,
    BLOCK: tl.constexpr,
):
    """Store the cross-entropy loss and the log-sum-exp of every row of logits, both in fp32.

    `logits` is (n_rows, n_cols) with rows `stride` elements apart and is read once, BLOCK columns
    at a time. A row whose target is `ignore_index` has loss 0; any other target outside the row
    has loss NaN and reads nothing.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    logits_ptr += row * stride
    target = tl.load(target_ptr + row)
    cols = tl.arange(0, BLOCK)
    running_max = tl.full([BLOCK], LOWEST, tl.float32)
    running_sum = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(logits_ptr + start + cols, mask=mask, other=float("-inf")).to(tl.float32)
        running_max, running_sum = _online_step(x * LOG2_E, running_max, running_sum)
    maximum, total = _online_finish(running_max, running_sum)
    lse = (maximum + tl.log2(total)) * LN_2

    inside = (target >= 0) & (target < n_cols)
    at_target = tl.load(logits_ptr + target, mask=inside, other=float("nan")).to(tl.float32)
    loss = tl.where(target == ignore_index, 0.0, lse - at_target)
    tl.store(loss_ptr + row, loss)
    tl.store(lse_ptr + row, lse)


@triton.jit
def cross_entropy_grad_kernel(
    logits_ptr,
    target_ptr,
    grad_ptr,
    loss_ptr,
    lse_ptr,
    stride,
    n_rows,
    n_cols,
    ignore_index,
    scale,
    BLOCK: tl.constexpr,
):
    """Store the cross-entropy loss of every row, and its gradient with respect to the logits.

    `logits` is (n_rows, n_cols) with rows `stride` elements apart, as in `grad`, which may be `logits`.
    A row is read once: BLOCK is at least n_cols. `scale` is what the loss of a row counts in the
    result, such as 1 / n_rows. Targets are as for `cross_entropy_kernel`; a row that is ignored has
    gradient 0.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    logits_ptr += row * stride
    target = tl.load(target_ptr + row)
    inside = (target >= 0) & (target < n_cols)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(logits_ptr + cols, mask=mask, other=float("-inf")).to(tl.float32)
    at_target = tl.load(logits_ptr + target, mask=inside, other=float("-inf")).to(tl.float32)
    # It is an element of the row. So no CTA of a cluster goes on to store before all have loaded it.
    maximum = tl.maximum(tl.max(x, axis=0), at_target)
    power = tl.exp2((x - maximum) * LOG2_E)
    total = tl.sum(power, axis=0)

    lse = maximum + tl.log2(total) * LN_2
    loss = lse - tl.where(inside, at_target, float("nan"))
    is_ignored = target == ignore_index
    tl.store(loss_ptr + row, tl.where(is_ignored, 0.0, loss))
    tl.store(lse_ptr + row, lse)
    scale = tl.where(is_ignored, 0.0, scale)
    is_target = cols == tl.where(inside, target, -1).to(tl.int32)
    grad = power * (scale / total) - tl.where(is_target, scale, 0.0)
    tl.store(grad_ptr + row * stride + cols, grad.to(grad_ptr.dtype.element_ty), mask=mask)
