"""Answer queries of a file about the GPU for a target.

Configs, heuristics and globals ask PyTorch or Triton's driver for the SM count, the shared
memory size or the compute capability. The target's row answers. A package for another GPU of
the architecture overrides facts, by name or by the querying expression.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotc.frontend.values import Operand
from aotc.target import FACTS, TARGETS

_TORCH = "torch.cuda.get_device_properties()"
_DRIVER = "triton.runtime.driver.active.utils.get_device_properties()"
_QUERIES: Mapping[str, tuple[str, ...]] = {
    "num_sms": (f"{_TORCH}.multi_processor_count", f"{_DRIVER}['multiprocessor_count']"),
    "device_name": ("torch.cuda.get_device_name()", f"{_TORCH}.name"),
    "device_count": ("torch.cuda.device_count()",),
    "max_shared_bytes": (
        f"{_TORCH}.shared_memory_per_block_optin",
        f"{_DRIVER}['max_shared_mem']",
    ),
    "shared_bytes_per_sm": (f"{_TORCH}.shared_memory_per_multiprocessor",),
    "registers_per_sm": (f"{_TORCH}.regs_per_multiprocessor", f"{_DRIVER}['max_num_regs']"),
    "max_threads_per_sm": (f"{_TORCH}.max_threads_per_multi_processor",),
}
"""The expressions querying each fact, written without call arguments such as a device."""

_FIXED_ANSWERS: Mapping[str, Operand] = {
    "torch.cuda.is_available()": True,
    "triton.runtime.driver.active.get_current_target().backend": "cuda",
    "triton.runtime.driver.active.get_current_target().warp_size": 32,
    "torch.version.hip": None,
    "torch.version.xpu": None,
}
_TARGET_ANSWERS: Mapping[str, Operand] = {
    "torch.cuda.current_device()": 0,
    "triton.runtime.driver.active.get_current_device()": 0,
    f"{_TORCH}.warp_size": 32,
    f"{_DRIVER}['warpSize']": 32,
}

_PLATFORMS: Mapping[str, bool] = {
    **dict.fromkeys(("is_cuda", "is_cuda_alike", "is_nvidia"), True),
    **dict.fromkeys(("is_rocm", "is_hip", "is_amd", "is_xpu", "is_npu", "is_tpu", "is_cpu"), False),
}
"""Platform queries of libraries, such as vLLM's `current_platform.is_rocm()`."""

assert _QUERIES.keys() == FACTS.keys()


def platform_answer(path: str) -> bool | None:
    """Answer a platform query by method name; None for any other path.

    >>> platform_answer("current_platform.is_rocm()")
    False
    """
    owner, _, name = path.rpartition(".")
    return _PLATFORMS.get(name.removesuffix("()")) if owner and name.endswith("()") else None


def answers(target: str, facts: Mapping[str, object]) -> dict[str, Operand]:
    """Return the value of every GPU query by expression; target "" means none chosen yet."""
    row = TARGETS.get(target)
    if row is None:
        return dict(_FIXED_ANSWERS)
    values = {**_FIXED_ANSWERS, **_TARGET_ANSWERS}
    values["torch.cuda.get_device_capability()"] = (row.major, row.minor)
    values[f"{_TORCH}.major"], values[f"{_TORCH}.minor"] = row.major, row.minor
    values["triton.runtime.driver.active.get_current_target().arch"] = row.arch
    for name, value in {**row.known_facts, **facts}.items():
        values.update(dict.fromkeys(_QUERIES.get(name, (name,)), value))
    return values
