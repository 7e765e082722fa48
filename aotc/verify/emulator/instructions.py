"""Every module that declares what instructions do: importing this declares them all."""

from __future__ import annotations

from aotc.verify.emulator import (
    access,
    atom,
    barrier_ends,
    bulk,
    cluster,
    compute,
    control,
    copies,
    exchange,
    fences,
    ldmatrix,
    matrix,
    mbarrier_rules,
    remote,
    tensor_copy,
    tensor_maps,
    wgmma,
)

RULE_MODULES = (
    access,
    atom,
    barrier_ends,
    bulk,
    cluster,
    compute,
    control,
    copies,
    exchange,
    fences,
    ldmatrix,
    matrix,
    mbarrier_rules,
    remote,
    tensor_copy,
    tensor_maps,
    wgmma,
)
