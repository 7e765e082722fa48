"""Kernels in the style of Triton's unit tests, with NumPy references."""

from __future__ import annotations

from tests.oracle.ptx_cases_elementwise import ELEMENTWISE
from tests.oracle.ptx_cases_more import MORE
from tests.oracle.ptx_cases_tiles import TILES

CASES = (*ELEMENTWISE, *TILES, *MORE)
