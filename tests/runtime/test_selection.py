"""Launches from Python take the config selected by the archive, by the values of arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import aotc
from aotc.package.archive.file import decode, encode
from aotc.package.archive.index import Archive, Kernel
from aotc.package.archive.selection import ANY_GPU, Selection, leaf_of
from aotc.runtime import Library, NotFoundError
from tests.support.fake_gpu import HOPPER, FakeGpu
from tests.support.fake_gpu import golden as golden_module

Load = Callable[..., Library]
_MIG = (9, 0, 1 << 14)


def steered(archives: Path) -> Kernel:
    return decode((archives / "steered.aotc").read_bytes()).kernels[0]


def expected(kernel: Kernel, selection: Selection, m: int, n: int, k: int) -> str:
    """Return the function of a launch with fp16."""
    variants = [v for v in kernel.variants if (v.target, v.types) == ("sm_90a", ("fp16",))]
    ready = [v for v in variants if n % 16 == 0 or not v.guards]
    ready = [v for v in ready if k > 0 or v.condition is None]
    ready.sort(key=lambda v: (-len(v.guards), v.config))
    order = leaf_of(selection.tree, {"m": m, "n": n, "k": k})
    preferred = [v for config in order for v in ready if v.config == config]
    return [*preferred, *ready][0].symbol


@pytest.mark.parametrize(("gpu_name", "device"), [("Fake GPU", HOPPER), ("", _MIG)])
@pytest.mark.parametrize("lazy", [False, True])
def test_values_decide(
    load: Load, archives: Path, gpu: FakeGpu, gpu_name: str, device: tuple[int, int, int], lazy: bool
) -> None:  # fmt: skip
    gpu.reset(device)
    gpu.make_current(0)
    kernel = steered(archives)
    (selection,) = (
        s for s in kernel.selections if (s.target, s.gpu, s.combination) == ("sm_90a", gpu_name, 0)
    )
    library = load(archives / "steered.aotc", lazy=lazy)
    rng = random.Random(gpu_name)
    seen: set[str] = set()
    sizes = [(rng.choice((1, 16, 17, 4096)), rng.randrange(1 << 17)) for _ in range(60)]
    for m, size in [*sizes, *sizes]:  # the second time from the cache
        n = size - size % rng.choice((1, 16))
        k = rng.choice((-3, 0, 1, n // 4, n))
        library["steered"]((0x1000, "fp16"), m, n, k)
        assert gpu.last().symbol == expected(kernel, selection, m, n, k), (m, n, k)
        seen.add(gpu.last().symbol)
    assert len(seen) > 4


def test_a_named_config_comes_first(load: Load, archives: Path, gpu: FakeGpu) -> None:
    kernel = load(archives / "steered.aotc")["steered"]
    arguments = ((0x1000, "fp16"), 1, 16, 1)
    kernel(*arguments)
    assert gpu.last().symbol == "steered_fp16_2_aligned"
    for config in range(6):
        kernel.launch(arguments, config={"CONFIG": config})
        assert gpu.last().symbol == f"steered_fp16_{config}_aligned"
    with pytest.raises(NotFoundError, match="n is a multiple of 16"):
        kernel.launch(((0x1000, "fp16"), 1, 17, 1), config={"CONFIG": 3})


def test_part_of_a_config_leaves_the_rest_to_the_leaf(
    archives: Path, gpu: FakeGpu, load: Load, tmp_path: Path
) -> None:
    kernel = steered(archives)
    configs = tuple((("CONFIG", number), ("ODD", number % 2 == 1)) for number in range(6))
    selection = Selection("sm_90a", "", 0, (4, 3, 2))
    changed = replace(kernel, configs=configs, selections=(selection,))
    (tmp_path / "a.aotc").write_bytes(encode(Archive("a", "1", (changed,))))
    loaded = load(tmp_path / "a.aotc")["steered"]
    arguments = ((0x1000, "fp16"), 1, 16, 1)
    for config, symbol in (({}, 4), ({"ODD": False}, 4), ({"ODD": True}, 3), ({"CONFIG": 0}, 0)):
        loaded.launch(arguments, config=config)
        assert gpu.last().symbol == f"steered_fp16_{symbol}_aligned"


def test_an_archive_in_memory_and_without_compression(
    archives: Path, gpu: FakeGpu, tmp_path: Path
) -> None:
    archive = decode((archives / "steered.aotc").read_bytes())
    data = encode(archive, is_compressed=False)
    assert decode(data).kernels[0].selections == archive.kernels[0].selections
    with aotc.load(data, driver=gpu.path) as library:
        library["steered"]((0x1000, "fp16"), 16, (1 << 16) + 16, 1)
        assert gpu.last().symbol == "steered_fp16_3_aligned"


def test_the_best_target_that_there_is_selects(
    archives: Path, gpu: FakeGpu, tmp_path: Path
) -> None:
    """Its leaves may name configs of another target only; another target's leaves are ignored."""
    (golden,) = decode((archives / "steered.aotc").read_bytes()).kernels
    ampere = [v for v in golden.variants if v.target == "sm_80"]
    make = golden_module().cubin
    newer = [
        replace(
            v,
            target="sm_86",
            symbol=f"newer_{v.symbol}",
            cubin=make("sm_86", {f"newer_{v.symbol}": [(0, 8), (8, 4), (12, 4), (16, 4)]}, b"86"),
        )
        for v in ampere
        if v.config < 3
    ]
    arguments = ((0x1000, "fp16"), 1, 16, 1)
    for selections, symbol in (
        ((Selection("sm_80", ANY_GPU, 0, (2,)),), "newer_steered_fp16_0_aligned"),
        ((Selection("sm_86", ANY_GPU, 0, (2,)),), "newer_steered_fp16_2_aligned"),
        ((Selection("sm_86", ANY_GPU, 0, (4, 2)),), "steered_fp16_4_aligned"),
        ((Selection("sm_86", ANY_GPU, 1, (2,)),), "newer_steered_fp16_0_aligned"),
    ):
        kernel = replace(golden, variants=(*ampere, *newer), selections=selections)
        (tmp_path / "a.aotc").write_bytes(encode(Archive("a", "1", (kernel,))))
        gpu.reset((8, 6, 101376))
        gpu.make_current(0)
        with aotc.load(tmp_path / "a.aotc", driver=gpu.path) as library:
            library["steered"](*arguments)
            assert gpu.last().symbol == symbol
