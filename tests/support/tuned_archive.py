"""An archive to tune on the fake driver: a kernel with one symbol per config."""

from __future__ import annotations

from dataclasses import replace

from aotc.ir.expression import parse
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive, CubinParam, Guard, Kernel, Param, Variant
from tests.support.fake_gpu import golden

SHAPES = """
[[shape]]
kernel = "scale"
n = {n}
"out_ptr.size" = "n"
"x_ptr.size" = "n"
"""

TARGET = "sm_90a"


def scale_kernel(num_configs: int, name: str = "scale") -> Kernel:
    """A kernel with the symbol NAME_I_ for config I; the last config needs an even n."""
    symbols = [f"{name}_{index}_" for index in range(num_configs)]
    variants = tuple(
        Variant(
            target=TARGET,
            symbol=symbol,
            cubin=golden().cubin(TARGET, {symbol: [(0, 8), (8, 8), (16, 4)]}, b""),
            num_threads=128,
            cubin_params=(
                CubinParam(0, 8, index=0),
                CubinParam(8, 8, index=1),
                CubinParam(16, 4, index=2),
            ),
            config=index,
            grid=(parse("cdiv(n, 128)"),),
        )
        for index, symbol in enumerate(symbols)
    )
    last = replace(variants[-1], guards=(0,))
    return Kernel(
        name=name,
        source_sha256=bytes(32),
        params=(
            Param("out_ptr", "pointer", "fp32", access="write"),
            Param("x_ptr", "pointer", "fp32", access="read"),
            Param("n", "scalar", "i32"),
        ),
        guards=(Guard(parse("n % 2 == 0"), "n % 2 == 0"),),
        configs=tuple((("BLOCK", 64 << index),) for index in range(num_configs)),
        variants=(*variants[:-1], last),
    )


def scale_archive(num_configs: int = 4, *, is_cooperative: bool = False) -> bytes:
    """An archive with the one kernel; the CTAs of its first config may wait for each other."""
    kernel = scale_kernel(num_configs)
    first, *rest = kernel.variants
    variants = (replace(first, cooperative=is_cooperative), *rest)
    return encode(Archive("scaled", "1", (replace(kernel, variants=variants),)))


def shapes(*sizes: int) -> str:
    """Shapes of the kernel, as text."""
    return SHAPES.format(n=list(sizes))
