"""The stages up to PTX: a kernel using registers of an unfinished `wgmma` is rescheduled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aotc
from aotc import backend, gpu_stages
from aotc.backend import RegisterHazard, find_hazards
from aotc.gpu_stages import fall_back
from aotc.ir.diagnostics import IRError
from aotc.schedule.pipelining import slice_fragments

KERNEL = str(Path(__file__).parents[1] / "benchmarks" / "soak" / "kernels" / "converted.py")
KERNEL += ":converted_dot_kernel"
SIGNATURE = {
    "a_ptr": "*fp32:16", "b_ptr": "*bf16:16", "s_ptr": "*fp32:16", "c_ptr": "*fp32:16",
    "M": "i32:16", "K": "i32:16", "limit": "i32", "stride_a": "i32:16", "stride_b": "i32:16",
}  # fmt: skip
CONSTANTS = {
    "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64,
    "MASKED": False, "SCALED": False, "TURNED": False, "SHARED": False,
}  # fmt: skip
CONFIG = {"num_warps": 8, "num_stages": 4}


def _compiled(**changed: object) -> aotc.CompiledKernel:
    """Return the kernel; changes may be to its types, constants and config."""
    settings: list[dict[str, Any]] = [
        {name: changed.get(name, value) for name, value in values.items()}
        for values in (SIGNATURE, CONSTANTS, CONFIG)
    ]
    signature, constants, config = settings
    return aotc.compile(KERNEL, signature=signature, constants=constants, target="sm_90a", **config)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the schedule read all slices of an operand ahead of the first dot, as it once did."""
    monkeypatch.setattr(gpu_stages, "fall_back", fall_back)
    monkeypatch.setattr(slice_fragments, "register_writers", lambda _: {})


@pytest.mark.usefixtures("faulty")
def test_a_fault_of_the_schedule_costs_speed_alone() -> None:
    kernel = _compiled()
    assert not find_hazards(kernel.asm["ptx"])
    assert "wgmma.wait_group.sync.aligned 1" not in kernel.asm["ptx"]
    assert "while the wgmma of line" in kernel.metadata.wgmma_hazard
    assert kernel.metadata.wgmma_hazard in kernel.metadata.remarks


@pytest.mark.usefixtures("faulty")
def test_what_is_wrong_though_each_dot_is_waited_for_is_no_cubin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hazard = RegisterHazard(7, "%r1", "written", 5, "read")
    monkeypatch.setattr(backend, "find_hazards", lambda _: (hazard,))
    with pytest.raises(IRError, match="%r1 is written at line 7 of the PTX"):
        _compiled()


SAMPLE = [
    {"a_ptr": "*fp32:16", "b_ptr": "*bf16:16", "num_stages": 3},
    {"a_ptr": "*bf16:16", "b_ptr": "*fp32:16", "BLOCK_K": 32, "SCALED": True, "num_warps": 4},
    {"a_ptr": "*fp16:16", "b_ptr": "*fp8e4nv:16", "BLOCK_K": 128, "MASKED": True},
    {"a_ptr": "*fp32:16", "b_ptr": "*i8:16", "TURNED": True, "num_stages": 5},
    {"a_ptr": "*fp8e5:16", "b_ptr": "*fp16:16", "SHARED": True, "num_stages": 3},
    {"a_ptr": "*fp32:16", "b_ptr": "*bf16:16", "TURNED": True, "SHARED": True, "num_warps": 4},
]
"""Of the soak's grid: types that narrow and widen, in slices and whole."""


@pytest.mark.parametrize("changed", SAMPLE, ids=str)
def test_converted_operands_stay_in_flight(changed: dict[str, object]) -> None:
    kernel = _compiled(**changed)
    assert kernel.metadata.wgmma_hazard == ""
    assert kernel.metadata.ptxas_warnings == ()
    assert any("stay in flight" in remark for remark in kernel.metadata.remarks)
