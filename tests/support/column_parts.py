"""Header of kernels with a tile split by columns: imports, and a helper to split."""

from tests.support.descriptors import PRELUDE

PARTS_OF_COLUMNS = f"""{PRELUDE}\
def parts_of_columns(x, WIDTH: tl.constexpr):
    if x.shape[1] == WIDTH:
        parts = (x,)
    else:
        left, right = tl.split(x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1))
        parts = parts_of_columns(left, WIDTH) + parts_of_columns(right, WIDTH)
    return parts
"""
