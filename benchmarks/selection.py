"""Time of a launch in C to look up its config in a decision tree.

    python -m benchmarks.selection [--levels 12] [--products]

On the fake driver of the tests, so the times are the library's own. Every leaf of the tree is at
the same depth. Three features alternate from level to level: arguments, or products of them.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aotc.ir.expression import parse
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive, Kernel, Param, Variant
from aotc.package.archive.selection import ANY_GPU, Branch, Selection, Tree
from tests.support.fake_gpu import ROOT, TESTS, build, golden

_CONFIGS = 8
_FEATURES = {"m": 4096, "n": 4096, "k": 4096}
_PRODUCTS = {"m": 4096, "m * n": 1 << 24, "cdiv(n, 128) * cdiv(k, 64)": 2048}


def tree_of(rng: random.Random, levels: int, features: Mapping[str, int]) -> Tree:
    """Return a tree with every leaf below `levels` branches."""
    if levels == 0:
        return tuple(rng.sample(range(_CONFIGS), 3))
    feature = list(features)[levels % len(features)]
    low, high = (tree_of(rng, levels - 1, features) for _ in range(2))
    return Branch(parse(feature), rng.randrange(features[feature]), low, high)


def kernel_of(selections: tuple[Selection, ...]) -> Kernel:
    """Return a kernel with configs taking all arguments."""
    cubin = golden().cubin
    params = tuple(Param(name, "scalar", "i32") for name in ("m", "n", "k"))
    variants = tuple(
        Variant("sm_90a", f"k{number}", cubin("sm_90a", {f"k{number}": []}, bytes([number])), 32, config=number,
                grid=(parse("1"),))
        for number in range(_CONFIGS)
    )  # fmt: skip
    configs = tuple((("CONFIG", number),) for number in range(_CONFIGS))
    return Kernel("steered", bytes(32), variants, params, configs=configs, selections=selections)


def main(levels: int, features: Mapping[str, int]) -> None:
    """Write the archives, compile the program and run it."""
    tree = tree_of(random.Random(0), levels, features)
    with_tree = kernel_of((Selection("sm_90a", ANY_GPU, 0, tree),))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stem, kernel in (("with", with_tree), ("without", replace(with_tree, selections=()))):
            data = encode(Archive("bench", "1", (kernel,)), is_compressed=False)
            (folder / f"{stem}.aotc").write_bytes(data)
        runtime = ROOT / "runtime_c"
        command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", f"-I{runtime / 'include'}"]
        driver = build(folder)
        sources = [Path(__file__).with_suffix(".c"), *sorted((runtime / "src").glob("*.c"))]
        command += [f"-I{runtime / 'src'}", f"-I{TESTS / 'fake_cuda'}", *map(str, sources)]
        command += [str(driver), f"-Wl,-rpath,{folder}", "-o", str(folder / "selection")]
        subprocess.run([*command, "-ldl", "-pthread"], check=True)
        paths = [folder / "selection", folder / "with.aotc", folder / "without.aotc", driver]
        environment = {**os.environ, "FAKE_CUDA_RECORD": "0"}
        subprocess.run(list(map(str, paths)), check=True, env=environment)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", type=int, default=12)
    parser.add_argument("--products", action="store_true")
    arguments = parser.parse_args()
    main(arguments.levels, _PRODUCTS if arguments.products else _FEATURES)
