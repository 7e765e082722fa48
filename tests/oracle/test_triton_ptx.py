"""Triton's PTX in the emulator, against NumPy.

The gate runs a few kernels; `--exhaustive` runs all of them.
"""

from __future__ import annotations

import importlib.util

import pytest

from aotc.verify.emulator.errors import Fault
from tests.oracle.ptx_cases import CASES
from tests.oracle.triton_ptx import Case, disagreement

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton: pip install -e '.[oracle]'"
)

_FEW = (
    *("cast-fp8e4nv-bf16", "cast-fp8e5-bf16", "div-i16", "pow-fp64", "argmax1-fp32", "sort-fp16"),
    *("dot-i8-64x64x64-sm80", "dot-fp8e5-128x64x32-sm90", "atomic_add-bf16-acq_rel"),
    *("masked-i8", "histogram-64", "descriptor-fp32", "noinline-twice", "philox"),
)
_MISSES_A_FENCE = "gemm-descriptors-fp16-stages3-specialized"
_NAMES = {case.name: case for case in CASES}


def test_there_are_enough_kernels() -> None:
    assert len(_NAMES) == len(CASES) >= 500
    assert set(_FEW) <= set(_NAMES)


@pytest.mark.parametrize("name", _FEW)
def test_triton_ptx_means_what_numpy_says(name: str) -> None:
    assert disagreement(_NAMES[name], seed=1) == ""


_REST = [case for case in CASES if case.name not in (*_FEW, _MISSES_A_FENCE)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", _REST, ids=lambda case: case.name)
def test_all_triton_ptx_means_what_numpy_says(case: Case) -> None:
    assert disagreement(case) == ""


@pytest.mark.exhaustive
def test_what_triton_leaves_out_is_found() -> None:
    """A specialized kernel initializes mbarriers and starts copies arriving on them without a fence."""
    with pytest.raises(Fault, match="with no fence after its making"):
        disagreement(_NAMES[_MISSES_A_FENCE])
