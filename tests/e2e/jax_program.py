"""Run examples/jax on JAX's CPU platform: handlers launch on the fake driver, and NumPy computes the kernels.

python jax_program.py LIBRARY DRIVER
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import ml_dtypes
import numpy as np

from tests.support.fake_gpu import FakeGpu, RawLaunch

ROOT = Path(__file__).resolve().parents[2]
_launched: list[tuple[int, int]] = []


def _numbers(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    memory = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


@ctypes.CFUNCTYPE(None, ctypes.POINTER(RawLaunch))
def compute(pointer: ctypes._Pointer[RawLaunch]) -> None:
    """Compute the kernel in NumPy from the parameters of its launch."""
    launch = pointer.contents
    parameters = ctypes.string_at(launch.params, launch.param_bytes)
    offsets = launch.param_offsets[: launch.param_count]
    x, weight, out = (struct.unpack_from("<Q", parameters, offset)[0] for offset in offsets[:3])
    (columns,) = struct.unpack_from("<i", parameters, offsets[-2])
    (eps,) = struct.unpack_from("<f", parameters, offsets[-1])
    rows = launch.grid[0]
    _launched.append((rows, columns))
    shape = (rows, columns)
    dtype = np.dtype(DTYPE)
    wide = _numbers(x, rows * columns, dtype).reshape(shape).astype(np.float32)
    scale = 1 / np.sqrt((wide * wide).mean(1, keepdims=True) + np.float32(eps))
    result = wide * scale * _numbers(weight, columns, dtype).astype(np.float32)
    _numbers(out, rows * columns, dtype).reshape(shape)[...] = result.astype(dtype)


def _error(function: Callable[..., object], *args: object) -> str:
    """Return the error message of a call, or ""."""
    try:
        jax.block_until_ready(function(*args))
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return ""


DTYPE: object = np.float32


def main(library: str, driver: str) -> None:
    global DTYPE  # noqa: PLW0603 - what the kernel at work is of, which its symbol does not say
    gpu = FakeGpu(Path(driver))
    gpu.reset()
    gpu._driver.fake_cuda_set_kernel(compute)
    spec = importlib.util.spec_from_file_location(
        "rms_norm_example", ROOT / "examples" / "jax" / "rms_norm.py"
    )
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.register(library, "cpu")
    handlers = ctypes.CDLL(library)
    handlers.norms_use_stream(ctypes.c_void_p(gpu.stream()))
    assert handlers.norms_load_now(0) == 0
    rng = np.random.default_rng(5)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        DTYPE = dtype
        for shape in ((1, 16), (3, 5, 1000), (7, 4096), (0, 64)):
            x = jax.numpy.asarray(rng.standard_normal(shape).astype(dtype))
            weight = jax.numpy.asarray(rng.standard_normal(shape[-1:]).astype(dtype))
            expected = np.asarray(example.reference(x, weight), np.float32)
            bound = (
                4 * float(ml_dtypes.finfo(dtype).eps) * max(1.0, np.abs(expected).max(initial=0))
            )
            for run in (example.rms_norm, jax.jit(example.rms_norm)):
                actual = np.asarray(run(x, weight), np.float32)
                assert actual.shape == shape
                assert np.abs(actual - expected).max(initial=0) <= bound, (dtype, shape)
    DTYPE = np.float32
    batch = jax.numpy.ones((4, 2, 32))
    _launched.clear()
    mapped = jax.vmap(example.rms_norm, (0, None))(batch, jax.numpy.ones(32))
    assert mapped.shape == (4, 2, 32)
    assert _launched == [(2, 32)] * 4, _launched
    loss = lambda f: jax.grad(lambda w: f(batch * 3, w).sum())(jax.numpy.ones(32))  # noqa: E731
    np.testing.assert_allclose(loss(example.rms_norm), loss(example.reference), rtol=1e-5)
    for x, weight, message in (
        (jax.numpy.ones((2, 16), np.int32), jax.numpy.ones(16, np.int32), "float32, float16"),
        (jax.numpy.ones((2, 16)), jax.numpy.ones(8), "a weight for each"),
        (jax.numpy.ones((2, 20000)), jax.numpy.ones(20000), "n_cols"),
    ):
        refused = _error(example.rms_norm, x, weight)
        assert message in refused, refused
    assert gpu.violation is None, gpu.violation
    sys.stdout.write("right\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
