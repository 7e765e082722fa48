"""Weights decoded in registers for a dot: their loads, and the exchanges between threads."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aotc.compiler import compile_kernel
from tests.support.hopper_cases import constants_of, scalar_of
from tests.support.requests import request_of
from tests.support.weight_cases import WEIGHT_CASES

CASES = {case.name: case for case in WEIGHT_CASES}


@pytest.mark.parametrize("build", [0, 1])
@pytest.mark.parametrize("name", ["small_mxfp4", "small_mxfp4_decoded", "mxfp4"])
def test_weights_and_scales_are_loaded_as_words_and_stay_in_their_threads(
    name: str, build: int
) -> None:
    case, dtype = CASES[name], "bf16"
    launch = case.make(
        np.random.default_rng(0), scalar_of(dtype), case.shapes[-1], case.builds[build]
    )
    constants = constants_of(case.builds[build])
    signature = tuple(case.types(dtype, constants, launch).items())
    request = request_of(
        case.path, case.function, signature, tuple(constants.items()), "sm_90a", num_warps=4
    )
    kernel = compile_kernel(request, keep_asm=True)
    ptx, remarks = kernel.asm["ptx"], "\n".join(kernel.metadata.remarks)
    exchanged = re.findall(r"a tile of \S+ (\S+) is exchanged", remarks)
    assert "ld.shared.v" in ptx
    assert "ld.shared.b8" not in ptx
    assert "by wgmma and stay in flight" in remarks
    assert {*exchanged} <= {"bf16"}  # the result alone
    assert not kernel.metadata.spill_bytes
