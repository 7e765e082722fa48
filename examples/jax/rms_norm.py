"""RMSNorm in JAX: the forward pass is a kernel of an aotc archive, the backward one is JAX's own.

python examples/jax/rms_norm.py build/jax/libnorms_jax.so
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

TARGET = "norms.rms_norm"


def register(library: str, platform: str = "CUDA") -> None:
    """Register the handlers of a library that was built from this folder."""
    symbols = ctypes.cdll.LoadLibrary(library)
    stages = {
        "initialize": jax.ffi.pycapsule(symbols.norms_load),
        "execute": jax.ffi.pycapsule(symbols.norms_rms_norm_call),
    }
    jax.ffi.register_ffi_target(TARGET, stages, platform=platform)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: jax.Array, weight: jax.Array, eps: float = 1e-6) -> jax.Array:
    """Normalise the last axis of `x`, of up to 16384 elements, and scale it by `weight`."""
    call = jax.ffi.ffi_call(
        TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method="sequential"
    )
    return call(x, weight, eps=np.float32(eps))


def reference(x: jax.Array, weight: jax.Array, eps: float = 1e-6) -> jax.Array:
    """Compute the same without the kernel."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)


def _forward(
    x: jax.Array, weight: jax.Array, eps: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return rms_norm(x, weight, eps), (x, weight)


def _backward(
    eps: float, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, ...]:
    return jax.vjp(partial(reference, eps=eps), *kept)[1](gradient)


rms_norm.defvjp(_forward, _backward)


def check() -> None:
    """Compare the kernel with the reference: called, jitted, mapped and differentiated."""
    for number, dtype in enumerate((jnp.float32, jnp.float16, jnp.bfloat16)):
        for shape in ((1, 16), (3, 5, 1000), (64, 4096)):
            keys = jax.random.split(jax.random.key(number), 2)
            x = jax.random.normal(keys[0], shape, dtype)
            weight = jax.random.normal(keys[1], shape[-1:], dtype)
            wanted = reference(x, weight).astype(jnp.float32)
            bound = float(jnp.finfo(dtype).eps) * 4 * max(1.0, float(jnp.abs(wanted).max()))
            for run in (rms_norm, jax.jit(rms_norm), jax.vmap(rms_norm, (0, None))):
                error = jnp.abs(run(x, weight).astype(jnp.float32) - wanted).max()
                assert error <= bound, (dtype, shape, error, bound)
        kernel, plain = (
            jax.grad(lambda w, x=x, f=f: f(x, w).astype(jnp.float32).sum())(weight)
            for f in (rms_norm, reference)
        )
        assert jnp.allclose(kernel, plain)
        print(f"{jnp.dtype(dtype).name}: right")


if __name__ == "__main__":
    register(sys.argv[1])
    check()
