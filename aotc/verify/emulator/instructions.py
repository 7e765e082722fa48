"""All modules with instruction rules; importing this one registers every rule."""

from __future__ import annotations

from aotc.verify.emulator.async_copies import bulk, cp_async, st_async, tensor_copy, tensor_maps
from aotc.verify.emulator.compute import rules as compute
from aotc.verify.emulator.control import branches, cluster, warp_exchange
from aotc.verify.emulator.memory_access import atomics, loads_stores
from aotc.verify.emulator.mma import ldmatrix, mma_sync, wgmma
from aotc.verify.emulator.synchronization import barrier_rules, fences, mbarrier_rules

RULE_MODULES = (
    *compute.RULE_MODULES,
    atomics,
    barrier_rules,
    branches,
    bulk,
    cluster,
    cp_async,
    fences,
    ldmatrix,
    loads_stores,
    mbarrier_rules,
    mma_sync,
    st_async,
    tensor_copy,
    tensor_maps,
    warp_exchange,
    wgmma,
)
