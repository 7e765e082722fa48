"""The frontend: Triton source to tile IR, without executing it."""

from aotc.frontend.translate import (
    KernelParameter,
    Translation,
    autotune_configs,
    heuristic_problems,
    kernel_parameters,
    launch_heuristics,
    translate,
)

__all__ = [
    "KernelParameter",
    "Translation",
    "autotune_configs",
    "heuristic_problems",
    "kernel_parameters",
    "launch_heuristics",
    "translate",
]
