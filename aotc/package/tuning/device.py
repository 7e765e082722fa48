"""Device constants of the cost model: units, clocks, bandwidths, latencies.

Rates are the ones kernels reach, lower than a data sheet's. Rows without measurements are scaled
from the data sheets by the share reached on the H200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of GPU; rates are of one SM and cycle unless noted.

    `mma_macs` and `wgmma_macs` are multiply-adds of 16-bit operands; narrower ones are
    proportionally faster.
    """

    num_sms: int
    clock_hz: float
    dram_bytes_per_second: float
    l2_bytes_per_second: float
    l2_bytes: int
    mma_macs: float
    wgmma_macs: float = 0.0
    instructions: float = 4.0
    special: float = 0.5
    wavefronts: float = 1.0
    sm_bytes: float = 64.0
    double_macs: float = 64.0


_H200 = Device(
    num_sms=132,
    clock_hz=1.7e9,
    dram_bytes_per_second=4.2e12,
    l2_bytes_per_second=6.0e12,
    l2_bytes=50 << 20,
    mma_macs=1270.0,
    wgmma_macs=1900.0,
    double_macs=128.0,
)

_B200 = replace(
    _H200, num_sms=148, clock_hz=1.8e9, dram_bytes_per_second=7.0e12, l2_bytes=126 << 20
)
_THOR = replace(
    _H200, num_sms=20, clock_hz=1.5e9, dram_bytes_per_second=0.24e12, l2_bytes_per_second=1.0e12,
    l2_bytes=32 << 20,
)  # fmt: skip
_RTX_5090 = Device(170, 2.3e9, 1.6e12, 6.0e12, 96 << 20, 250.0, double_macs=2.0)

DEVICES: Mapping[str, Device] = {
    "sm_80": Device(108, 1.4e9, 1.7e12, 4.0e12, 40 << 20, 1000.0),
    "sm_86": Device(72, 1.6e9, 0.54e12, 2.0e12, 6 << 20, 500.0, double_macs=2.0),
    "sm_87": Device(16, 1.2e9, 0.18e12, 0.6e12, 4 << 20, 500.0, double_macs=2.0),
    "sm_88": Device(12, 1.0e9, 0.08e12, 0.4e12, 1 << 20, 500.0, double_macs=2.0),
    "sm_89": Device(142, 2.2e9, 0.78e12, 4.0e12, 96 << 20, 500.0, double_macs=2.0),
    "sm_90a": _H200,
    "sm_100a": _B200,
    "sm_100f": _B200,
    "sm_103a": _B200,
    "sm_107a": replace(_B200, num_sms=224, dram_bytes_per_second=18.0e12),
    "sm_110a": _THOR,
    "sm_110f": _THOR,
    "sm_120a": _RTX_5090,
    "sm_120f": _RTX_5090,
    "sm_121a": Device(48, 2.3e9, 0.24e12, 1.5e12, 24 << 20, 250.0, double_macs=2.0),
}
"""The GPU representing each target.

Source: NVIDIA's data sheets of A100, A10, Jetson AGX Orin, T239, L40S, H200, B200, B300, Jetson AGX Thor,
GeForce RTX 5090 and GB10, its announcement of Rubin; with sums in fp32.
"""
