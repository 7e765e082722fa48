"""Measure the time until a kernel of an archive can be launched on this machine.

A launch loads, compiles and allocates nothing. So the time to a program's first launch is the time
to open the archive and load a kernel's variants to the GPU. Creating the GPU's context is excluded.
"""

from __future__ import annotations

import time
from os import PathLike

from aotc.ir.diagnostics import HostError, one_line
from aotc.package.archive.index import Archive
from aotc.package.inspect import cuda_driver
from aotc.runtime import AotcError, ArchError, load

_RUNS = 5


def ready_seconds(
    archive: Archive, path: str, device: int, driver: str | PathLike[str] | None = None
) -> dict[str, float]:
    """Return each kernel's least seconds from a closed archive to ready on a device, by name.

    Kernels without code for the device's target are left out.

    Raises: HostError if there is no such device, or it refuses the code.
    """
    least_seconds: dict[str, float] = {}
    try:
        # The context of the device lasts as long as this library.
        with load(path, device=device, driver=driver):
            for kernel in archive.kernels:
                seconds = [_seconds(path, kernel.name, device, driver) for _ in range(_RUNS)]
                measurements = [measured for measured in seconds if measured is not None]
                if measurements:
                    least_seconds[kernel.name] = min(measurements)
    except AotcError as error:
        remedy = "leave out --device, or name one that aotc doctor lists"
        raise HostError(one_line(str(error)), remedy=remedy) from None
    return least_seconds


def _seconds(
    path: str, kernel: str, device: int, driver: str | PathLike[str] | None
) -> float | None:
    start = time.perf_counter()
    try:
        with load(path, device=device, kernels=[kernel], driver=driver):
            return time.perf_counter() - start
    except ArchError:
        return None


def device_name(device: int, driver: str | None = None) -> str:
    """Return the name of a device, or its ordinal if the driver does not say."""
    gpus = cuda_driver.ask(driver or cuda_driver.DEFAULT_PATH).gpus
    return gpus[device].name if 0 <= device < len(gpus) else f"device {device}"
