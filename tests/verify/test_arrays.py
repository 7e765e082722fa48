"""Fast replacements of NumPy functions match NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.arrays import any_in_rows


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 8, 12, 16, 17, 96])
@pytest.mark.parametrize("count", [0, 1, 13])
def test_rows_that_hold_a_flag(count: int, width: int) -> None:
    flags = np.random.default_rng(count * 32 + width).random((count, width)) < 0.1
    for rows in (flags, np.asfortranarray(flags), flags[::-1], ~flags & flags):
        assert any_in_rows(rows).tolist() == rows.any(axis=1).tolist()
