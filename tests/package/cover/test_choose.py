"""The chosen variant of a launch equals the choice of the runtime's C code."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from aotc.ir.expression import parse
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, Kernel
from aotc.package.archive.selection import ANY_GPU, Branch, Selection, Tree
from aotc.package.builder.run import BuildOptions, build
from aotc.package.cover.choose import Refusal, choose
from aotc.package.manifest.read import load
from aotc.package.tuning.shapes import Launch
from aotc.package.verify.planned_launch import stand_in_cubin
from aotc.runtime import Pointer, _native
from aotc.runtime.errors import ArgumentError, NotFoundError
from tests.support.cover_kernels import write
from tests.support.fake_compiler import compile_empty
from tests.support.listeners import Silent

MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
source = "scale.py:scale"
grid = ["1"]
where = "n <= BLOCK or BLOCK == 64"
[kernel.signature]
x = "*T:16"
out = "*T:16"
n = "i32:16?"
stride = "i32:16?"
[kernel.types]
T = ["fp16", "bf16"]
[kernel.choices]
NEGATE = [true, false]
[kernel.configs]
BLOCK = [256, 1024, 64]
num_warps = [4, 2]
"""


def launch(n: int, stride: int, dtype: str = "bf16", negate: bool = True) -> Launch:
    return Launch("scale", {"T": dtype}, {"NEGATE": negate}, {"n": n, "stride": stride})


def built(folder: Path, text: str = MANIFEST) -> Kernel:
    """Return the record of the kernel, with code accepted by loaders."""
    manifest, options = load(str(write(folder, text))), BuildOptions(folder, 1)
    assert not build(manifest, options, Silent(), cache=None, compiler=compile_empty).failures
    (kernel,) = archives.decode((folder / "demo.aotc").read_bytes()).kernels
    variants = (replace(v, cubin=stand_in_cubin(v.target, v.symbol)) for v in kernel.variants)
    return replace(kernel, variants=tuple(variants))


def opened(kernel: Kernel) -> _native.Kernel:
    data = archives.encode(Archive("demo", "0.1.0", (kernel,)))
    return _native.Archive(data, zstandard.decompress, False, None)["scale"]


def random_tree(rng: random.Random, depth: int) -> Tree:
    if not depth:
        return tuple(rng.sample(range(6), rng.randint(1, 3)))
    feature = rng.choice(["n", "stride", "n // (stride - 16)", "n * stride", "cdiv(n, 256)"])
    low, high = (random_tree(rng, depth - 1) for _ in range(2))
    return Branch(parse(feature), rng.choice([0, 16, 255, 1024]), low, high)


@pytest.mark.parametrize("seed", [None, 5, 6])
def test_the_runtime_takes_the_same(one_worker: None, tmp_path: Path, seed: int | None) -> None:
    """With and without selections; some of their configs serve no launch."""
    kernel = built(tmp_path)
    rng = random.Random(29 + (seed or 0))
    if seed is not None:
        trees = (Selection("sm_90a", "", number, random_tree(rng, 3)) for number in range(3))
        kernel = replace(kernel, selections=tuple(trees))
    runtime = opened(kernel)
    configs: set[int] = set()
    for _ in range(200):
        n = rng.choice([0, 1, 16, 63, 64, 255, 256, 257, 1008, 1024, 1025, 1 << 20])
        stride = rng.choice([1, 16, 1024, 1031])
        dtype, negate = rng.choice(["fp16", "bf16"]), rng.random() < 0.5
        pointers = (Pointer(1 << 20, dtype), Pointer(1 << 21, dtype))
        plan = runtime._plan((9, 0), 132, (*pointers, n, stride), choices={"NEGATE": negate})
        chosen = choose(kernel, "sm_90a", launch(n, stride, dtype, negate))
        assert not isinstance(chosen, Refusal)
        assert plan is not None
        assert chosen[0] == kernel.variants[plan.variant]
        configs.add(chosen[0].config)
    assert len(configs) >= 3


def test_a_selection_says_what_is_taken_first(one_worker: None, tmp_path: Path) -> None:
    """A feature without a value goes to the high side; guards decide all the same."""
    kernel = built(tmp_path)
    number = 1 * 2 + 0  # bf16, true
    inner = Branch(parse("n // (stride - 16)"), 4, (4,), (5, 0))
    tree = Branch(parse("n"), 256, (2, 0), inner)
    selections = (
        Selection("sm_90a", "NVIDIA H200", number, (1,)),
        Selection("sm_90a", ANY_GPU, number, tree),
    )
    selecting = replace(kernel, selections=selections)
    runtime = opened(selecting)

    def config(n: int, stride: int, negate: bool = True, gpu: str = "NVIDIA H100") -> int:
        chosen = choose(selecting, "sm_90a", launch(n, stride, negate=negate), gpu)
        assert not isinstance(chosen, Refusal)
        if gpu != "NVIDIA H200":  # the runtime's plans are for a GPU without a name
            pointers = (Pointer(1 << 20, "bf16"), Pointer(1 << 21, "bf16"))
            plan = runtime._plan((9, 0), 132, (*pointers, n, stride), choices={"NEGATE": negate})
            assert plan is not None
            assert chosen[0] == kernel.variants[plan.variant]
        return chosen[0].config

    assert config(256, 1024) == 2
    assert config(512, 1024) == 4
    assert config(512, 16) == 5
    assert config(512, 16, negate=False) == config(512, 1024, negate=False) == 2
    assert config(64, 1024, gpu="NVIDIA H200") == 1


def test_what_is_refused_says_why(one_worker: None, tmp_path: Path) -> None:
    text = MANIFEST.replace("i32:16?", "i32:16").replace(" or BLOCK == 64", "")
    kernel = built(tmp_path, text)
    runtime = opened(kernel)
    for refused, problem in (
        (launch(17, 16), "promise"),
        (launch(1040, 16), "condition"),
        (launch(16, 16, "fp32"), "type"),
        (launch(16, 16, negate=2), "choice"),
    ):
        chosen = choose(kernel, "sm_90a", refused)
        assert isinstance(chosen, Refusal)
        assert chosen.problem == problem
        dtype = refused.types["T"]
        args = (Pointer(1 << 20, dtype), Pointer(1 << 21, dtype), *refused.key.values())
        with pytest.raises((ArgumentError, NotFoundError)):
            runtime._plan((9, 0), 132, args, choices=dict(refused.choices))
    assert isinstance(choose(kernel, "sm_80", launch(16, 16)), Refusal)
