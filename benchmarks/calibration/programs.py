"""A whole program: a warp-specialised matrix multiplication with TMA, mbarriers and `wgmma`.

The emulator's own tests plant faults in the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from benchmarks.calibration import elements
from benchmarks.calibration.case import EXACT, Argument, Array, Bound, Case, Group, Output
from tests.support.hopper_gemm import BLOCK_K, BLOCK_M, BLOCK_N, SHARED_BYTES, gemm_ptx

_Draw = Callable[[str, int, np.random.Generator], Array]
_SHAPES = (((1, 1, 1), 1), ((128, 256, 128), 2), ((65, 129, 63), 3), ((512, 384, 512), 5))
_DYNAMIC = ".extern .shared .align 1024 .b8 sm[];\n"
_BOUNDED = """\
add.u32 spins, spins, 1;
setp.gt.u32 late, spins, 100000;
@late trap;
@!done bra """


def _text() -> str:
    """Return the kernel with bounded waits: a mistake must not hang a GPU."""
    _, text = gemm_ptx().split(_DYNAMIC)
    text = text.replace(".entry gemm(", ".entry {entry}(").replace("@!done bra ", _BOUNDED)
    text = text.replace("mov.u32 tid,", "mov.u32 spins, 0;\nmov.u32 tid,")
    return text.replace(".reg .pred first", ".reg .b32 spins;\n.reg .pred late, first")


def _case(
    shape: tuple[int, int, int], ctas: int, draw: _Draw, draw_name: str, bound: Bound
) -> Case:
    m, n, k = shape
    return Case(
        f"{m}x{n}x{k} on {ctas} blocks ({draw_name})",
        _text(),
        partial(_arguments, shape, draw),
        (Output(2, "bf16", bound),),
        grid=(ctas,),
        shared_bytes=SHARED_BYTES,
        row="warp-specialised GEMM",
    )


def _arguments(
    shape: tuple[int, int, int], draw: _Draw, rng: np.random.Generator
) -> list[Argument]:
    m, n, k = shape
    tiles_n = -(-n // BLOCK_N)
    return [
        TensorArgument(_matrix(m, k, draw, rng), (BLOCK_M, BLOCK_K), 128),
        TensorArgument(_matrix(n, k, draw, rng), (BLOCK_N, BLOCK_K), 128),
        TensorArgument(_matrix(m, n, draw, rng), (BLOCK_M, 64), 128),
        -(-k // BLOCK_K),
        -(-m // BLOCK_M) * tiles_n,
        tiles_n,
    ]


def _matrix(rows: int, cols: int, draw: _Draw, rng: np.random.Generator) -> Array:
    """Return bf16 elements as words, in rows of a multiple of 16 bytes."""
    pitch = -(-cols // 8) * 8
    return draw("bf16", rows * pitch, rng).reshape(rows, pitch)[:, :cols]


def _cases() -> Iterator[Case]:
    for shape, ctas in _SHAPES:
        yield _case(shape, ctas, elements.exact, "exact", EXACT)
        # The sums differ in their last bits; rounding removes these except near ties.
        yield _case(shape, ctas, elements.normal, "normal", Bound(ulps=1, absolute=2**-12))


GROUPS = (Group("programs", "a warp-specialised GEMM", tuple(_cases()), _DYNAMIC),)
