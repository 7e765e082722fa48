"""Host versions of the example's kernels, computed at each launch from its parameters.

An address outside the tensors of the launch's device is an error, like an illegal access on a GPU.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import partial

import numpy as np

from tests.support.fake_gpu import RawLaunch

from . import cuda

MAP = struct.Struct("<2Q5Q4Q5Q")
"""A tensor map of the fake driver: address and rank, then extents, strides in bytes, box; innermost first."""


def _find(address: int, device: int) -> np.ndarray:
    from . import Tensor

    tensor = Tensor.alive.get(address)
    if tensor is None or tensor.get_device() != device:
        raise RuntimeError(f"device {device} has no tensor at {address:#x}: {tensor}")
    return tensor.values


def _find_mapped(parameters: bytes, offset: int, device: int) -> np.ndarray:
    address, rank, *words = MAP.unpack_from(parameters, offset)
    rank &= 0xFF
    values = _find(address, device)
    mapped = (tuple(words[:rank][::-1]), tuple(words[5 : 4 + rank][::-1]))
    if mapped != (values.shape, values.strides[:-1]):
        raise RuntimeError(f"a tensor map of {mapped}, for a tensor of {values.shape}")
    return values


def vector_add(parameters: bytes, offsets: list[int], device: int) -> None:
    x, y, out = (
        _find(struct.unpack_from("<Q", parameters, offset)[0], device).reshape(-1)
        for offset in offsets[:3]
    )
    (count,) = struct.unpack_from("<i", parameters, offsets[3])
    np.add(x[:count], y[:count], out=out[:count])


def transpose(parameters: bytes, offsets: list[int], device: int) -> None:
    x, out = (_find_mapped(parameters, offset, device) for offset in offsets[:2])
    out[...] = x.T


KERNELS: dict[bytes, Callable[[bytes, list[int], int], None]] = {
    b"vector_add_kernel": vector_add,
    b"transpose_kernel": transpose,
}


@ctypes.CFUNCTYPE(None, ctypes.POINTER(RawLaunch))
def _run(pointer: ctypes._Pointer[RawLaunch]) -> None:
    launch = pointer.contents
    parameters = ctypes.string_at(launch.params, launch.param_bytes)
    offsets = launch.param_offsets[: launch.param_count]
    run = partial(KERNELS[launch.symbol], parameters, offsets, launch.device)
    graph = cuda.captured_graph(launch.stream or 0)
    if graph is None:
        run()
    else:
        graph.launches.append(run)


if os.environ.get("TORCH_STAND_IN_COMPUTES") != "0":
    cuda.driver.fake_cuda_set_kernel(_run)
