"""All groups of cases, in the order of the table."""

from __future__ import annotations

from benchmarks.calibration import (
    approximations,
    atomics,
    clusters,
    conversions,
    copies,
    floats,
    integers,
    matrices,
    probes,
    programs,
    tensors,
    warps,
    wgmma,
)
from benchmarks.calibration.case import Group

GROUPS: dict[str, Group] = {
    group.name: group
    for module in (
        integers,
        floats,
        conversions,
        approximations,
        warps,
        atomics,
        matrices,
        wgmma,
        copies,
        tensors,
        clusters,
        programs,
        probes,
    )
    for group in module.GROUPS
}
