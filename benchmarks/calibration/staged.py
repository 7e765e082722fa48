"""Kernels around shared memory: filled from an array, worked on by a few lines, copied back.

A block has 128 threads and `IMAGE_BYTES` of shared memory with an mbarrier behind them. The test
code finds the thread in `r0`, shared memory at `r1`, and the thread's 16 bytes of each 2 KiB at
`r2`. The block is in `r3`, thread 0 in `p1`, and further arguments in `d8`, `d9`, ….
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from benchmarks.calibration.case import Argument, Case, Output

THREADS = 128
IMAGE_BYTES = 16384
BARRIER = IMAGE_BYTES
_PLACES = range(0, IMAGE_BYTES, 16 * THREADS)

CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
# Polls so often and no more, then traps: an endless wait must not hang a GPU.
WAIT = f"""
    mov.b32 r30, 0;
WAIT:
    mbarrier.test_wait.parity.shared.b64 p5, [r1+{BARRIER}], 0;
    @p5 bra ARRIVED;
    add.u32 r30, r30, 1;
    setp.lt.u32 p6, r30, 1000000;
    @p6 bra WAIT;
    trap;
ARRIVED:
"""

_ENTRY = """
.visible .entry {{entry}}({params})
.reqntid {threads}{cluster}
{{
    .reg .pred p<8>;
    .reg .b16 h<8>;
    .reg .b32 r<32>;
    .reg .b64 d<32>;
    .shared .align 1024 .b8 {{entry}}_image[{size}];
    mov.u32 r0, %tid.x;
    mov.u32 r3, %ctaid.x;
    mov.b32 r1, {{entry}}_image;
    mad.lo.u32 r2, r0, 16, r1;
    setp.eq.u32 p1, r0, 0;
{loads}
    ld.param.b64 d0, [image];
    mad.wide.u32 d0, r3, {image_bytes}, d0;
    mad.wide.u32 d0, r0, 16, d0;
{fill}
    @p1 mbarrier.init.shared.b64 [r1+{image_bytes}], {arrivals};
    fence.mbarrier_init.release.cluster;
    fence.proxy.async;
    {sync}
    {body}
    {sync}
{drain}
    ret;
}}
"""


def staged(
    name: str,
    body: str,
    draw: Callable[[np.random.Generator], list[Argument]],
    outputs: Sequence[Output] = (),
    *,
    maps: Sequence[int] = (),
    num_args: int = 1,
    blocks: int = 1,
    cluster: int = 1,
    arrivals: int = 1,
    draws_image: bool = False,
    is_probe: bool = False,
) -> Case:
    """Return a case with the blocks' images as first argument and the others from `draw`.

    With `draws_image` it makes the images too. Arguments at the indices `maps`, counted from the
    image, are tensor maps. The image and `outputs` are compared.
    """
    params = ", ".join(
        [".param .u64 image"]
        + [
            f".param .align 64 .b8 a{i}[128]" if i in maps else f".param .u64 a{i}"
            for i in range(1, num_args)
        ]
    )
    loads = "\n".join(
        f"    mov.b64 d{7 + i}, a{i}; cvta.param.u64 d{7 + i}, d{7 + i};"
        if i in maps
        else f"    ld.param.b64 d{7 + i}, [a{i}];"
        for i in range(1, num_args)
    )
    text = _ENTRY.format(
        params=params,
        threads=THREADS,
        cluster=f" .reqnctapercluster {cluster}, 1, 1" if cluster > 1 else "",
        size=IMAGE_BYTES + 64,
        image_bytes=IMAGE_BYTES,
        arrivals=arrivals,
        loads=loads,
        fill="\n".join(_moves("ld.global", "d0", "st.shared", "r2")),
        sync=CLUSTER_SYNC if cluster > 1 else "bar.sync 0;",
        body=body,
        drain="\n".join(_moves("ld.shared", "r2", "st.global", "d0")),
    )
    return Case(
        name,
        text,
        draw if draws_image else partial(_arguments, draw, blocks),
        (Output(0, "u32"), *outputs),
        grid=(blocks,),
        is_probe=is_probe,
    )


def _moves(load: str, source: str, store: str, target: str) -> list[str]:
    return [
        f"    {load}.v4.b32 {{r4, r5, r6, r7}}, [{source}+{offset}];\n"
        f"    {store}.v4.b32 [{target}+{offset}], {{r4, r5, r6, r7}};"
        for offset in _PLACES
    ]


def _arguments(
    draw: Callable[[np.random.Generator], list[Argument]], blocks: int, rng: np.random.Generator
) -> list[Argument]:
    image = rng.integers(0, 1 << 32, blocks * IMAGE_BYTES // 4, np.uint32)
    return [image, *draw(rng)]


def nothing(rng: np.random.Generator) -> list[Argument]:
    """Draw no arguments besides the image."""
    del rng
    return []


def tensor(
    dtype: str,
    shape: Sequence[int],
    box: Sequence[int],
    *,
    swizzle_bytes: int = 0,
    element_strides: Sequence[int] = (),
    fill_nan: bool = False,
    rng: np.random.Generator,
) -> TensorArgument:
    """Return boxes of an array of random bits, with rows padded to multiples of 16 bytes."""
    size = np.dtype(dtype).itemsize
    pitch = -(-shape[-1] * size // 16) * 16 // size
    owner = np.frombuffer(
        rng.bytes(int(np.prod(shape[:-1], dtype=int)) * pitch * size), dtype
    ).reshape(*shape[:-1], pitch)
    return TensorArgument(
        owner.copy()[..., : shape[-1]],
        tuple(box),
        swizzle_bytes,
        tuple(element_strides),
        fill_nan=fill_nan,
    )
