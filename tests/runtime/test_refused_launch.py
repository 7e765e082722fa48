"""A launch without a variant: the cause in the message, and its remedy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from aotc.ir.expression import parse
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive, CubinParam, Guard, Kernel, Param, Variant
from aotc.package.manifest.read import load as load_manifest
from aotc.package.manifest.variant_grid import expand
from aotc.runtime import ArgumentError, Library, NotFoundError
from aotc.target import TARGETS
from tests.support.fake_gpu import FakeGpu, golden

_STRIDE = Guard(parse("stride % 16 == 0"), "stride is a multiple of 16")
_ROWS = Guard(parse("n % 16 == 0"), "n is a multiple of 16")
_SHORT, _LONG = Guard(parse("n <= 4096"), "n <= 4096"), Guard(parse("n <= 8192"), "n <= 8192")
_TO_WHERE = "build a config that `where` lets pass for them"
_TO_PROMISE = "build a variant without the promise (':16?')"


def _archive(guards: tuple[Guard, ...], guards_of_variants: tuple[tuple[int, ...], ...]) -> bytes:
    """Return an archive of a kernel `k(n, stride)` with a variant for each set of guards."""
    variants = tuple(
        Variant(
            target="sm_90a",
            symbol="k",
            cubin=golden().cubin("sm_90a", {"k": [(0, 4), (4, 4)]}, bytes([number])),
            num_threads=32,
            cubin_params=(CubinParam(0, 4, index=0), CubinParam(4, 4, index=1)),
            guards=variant_guards,
            grid=(parse("1"),),
        )
        for number, variant_guards in enumerate(guards_of_variants)
    )
    params = (Param("n", "scalar", "i32"), Param("stride", "scalar", "i32"))
    return encode(Archive("a", "1", (Kernel("k", bytes(32), variants, params, guards=guards),)))


@pytest.mark.parametrize(
    ("guards", "guards_of_variants", "args", "blamed", "remedy"),
    [
        # `stride = "i32:16?"`, and a `where` that excludes both variants' configs.
        ((_STRIDE, _SHORT), ((0, 1), (1,)), (5000, 3), "n <= 4096", _TO_WHERE),
        ((_STRIDE, _SHORT), ((0, 1), (1,)), (5000, 16), "n <= 4096", _TO_WHERE),
        ((_SHORT, _LONG), ((0,), (1,)), (9000, 16), "n <= 4096", _TO_WHERE),
        # The archive lacks variants without it, because their compile failed.
        ((_STRIDE,), ((0,),), (1, 3), "stride is a multiple of 16", _TO_PROMISE),
        ((_STRIDE, _ROWS), ((0, 1), (0,)), (1, 3), "stride is a multiple of 16", _TO_PROMISE),
        (
            (_STRIDE, _SHORT),
            ((0, 1),),
            (5000, 3),
            "stride is a multiple of 16; n <= 4096",
            _TO_WHERE,
        ),
    ],
)
def test_it_blames_what_the_nearest_variant_lacks(
    load: Callable[..., Library],
    gpu: FakeGpu,
    guards: tuple[Guard, ...],
    guards_of_variants: tuple[tuple[int, ...], ...],
    args: tuple[int, int],
    blamed: str,
    remedy: str,
) -> None:
    del gpu
    kernel = load(_archive(guards, guards_of_variants))["k"]
    with pytest.raises(NotFoundError) as caught:
        kernel(*args)
    assert (caught.value.expected, caught.value.remedy) == (blamed, remedy)


def test_a_message_is_one_line_whatever_the_names(
    load: Callable[..., Library], gpu: FakeGpu
) -> None:
    del gpu
    guard = Guard(parse("n % 16 == 0"), "a\x1b[31m\nb\x9bc")
    kernel = load(_archive((guard,), ((0,),)))["k"]
    with pytest.raises(NotFoundError) as caught:
        kernel(1, 1)
    assert "expected a?[31m?b??c, got" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("addresses", "is_launched"),
    [((16, 32, 48), True), ((16, 16, 48), False), ((16, 32, 32), False), ((0, 0, 48), True)],
)
def test_an_argument_that_is_promised_to_be_alone_is(
    tmp_path: Path,
    load: Callable[..., Library],
    gpu: FakeGpu,
    addresses: tuple[int, int, int],
    is_launched: bool,
) -> None:
    """The guard is the manifest's; a tensor without elements has the address 0, as others have."""
    (tmp_path / "k.py").write_text("@triton.jit\ndef k(x, out, y):\n    pass\n")
    head = '[package]\nname = "p"\nversion = "1.0.0"\ntargets = ["sm_90a"]\n'
    kernel = '[[kernel]]\nsource = "k.py:k"\n[kernel.signature]\n'
    types = 'x = "*fp32"\nout = "*fp32 noalias"\ny = "*fp32"\n'
    (tmp_path / "kernels.toml").write_text(head + kernel + types)
    spec = load_manifest(str(tmp_path / "kernels.toml")).kernels[0]
    guards = expand(spec, [TARGETS["sm_90a"]], lambda *_: ()).guards
    cubin = golden().cubin("sm_90a", {"k": [(0, 8), (8, 8), (16, 8)]}, b"")
    variant = Variant(
        target="sm_90a",
        symbol="k",
        cubin=cubin,
        num_threads=32,
        cubin_params=tuple(CubinParam(8 * index, 8, index=index) for index in range(3)),
        guards=tuple(range(len(guards))),
        grid=(parse("1"),),
    )
    params = tuple(Param(name, "pointer", "fp32") for name in ("x", "out", "y"))
    archive_kernel = Kernel("k", bytes(32), (variant,), params, guards=guards)
    launched = load(encode(Archive("a", "1", (archive_kernel,))))["k"]
    outcome = nullcontext() if is_launched else pytest.raises(ArgumentError)
    with outcome as caught:
        launched(*addresses)
    assert gpu.launches == is_launched
    if caught is not None:
        assert caught.value.expected == "out points at no memory of x, y"
