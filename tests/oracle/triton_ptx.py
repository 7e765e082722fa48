"""Kernels compiled to PTX by Triton, run in the emulator on arrays.

The expected output is computed by NumPy, independent of Triton and aotc.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from aotc.verify.emulator.run import emulate

Arrays = Mapping[str, Any]

_HEAD = (
    "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n\n"
)
_SCRATCH_ALIGNMENT_BYTES = 128


@dataclass(frozen=True)
class Case:
    """A kernel: its body, argument types, inputs and expected arrays.

    `types` are Triton's signature, in order; `inputs` draws arrays and numbers. `expected` returns the arrays to
    compare; floats may be off by `rtol` of the largest magnitude.
    """

    name: str
    body: str
    types: Mapping[str, str]
    inputs: Callable[[np.random.Generator], dict[str, Any]]
    expected: Callable[[Arrays], dict[str, Any]]
    consts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rtol: float = 0.0
    arch: int = 90
    grid: tuple[int, ...] = (1,)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    before: str = ""


@cache
def _folder() -> Path:
    folder = Path(mkdtemp(prefix="triton-ptx-"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "cache"))
    return folder


def compile_case(case: Case) -> Any:
    """Compile a case with Triton."""
    path = _folder() / f"{case.name.replace('-', '_')}.py"
    names = [*case.types, *(f"{name}: tl.constexpr" for name in case.consts)]
    lines = "".join(f"    {line}\n" for line in case.body.strip("\n").splitlines())
    path.write_text(f"{_HEAD}{case.before}@triton.jit\ndef kernel({', '.join(names)}):\n{lines}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        signature = {**case.types, **dict.fromkeys(case.consts, "constexpr")}
        source = ASTSource(fn=module.kernel, signature=signature, constexprs=dict(case.consts))
        return triton.compile(
            source, target=GPUTarget("cuda", case.arch, 32), options=dict(case.options)
        )


def run_case(case: Case, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a case's PTX in the emulator; return actual and expected arrays."""
    compiled = compile_case(case)
    arrays = case.inputs(np.random.default_rng(seed))
    before = {name: np.array(value) for name, value in arrays.items()}
    meta = compiled.metadata
    args: list[Any] = [_passed(arrays[name]) for name in case.types]
    for size in (meta.global_scratch_size, meta.profile_scratch_size):
        count = max(1, size) * int(np.prod(case.grid)) * meta.num_ctas
        args.append(
            np.zeros(-(-count // _SCRATCH_ALIGNMENT_BYTES) * _SCRATCH_ALIGNMENT_BYTES, np.uint8)
        )
    grid = (case.grid[0] * meta.num_ctas, *case.grid[1:])
    emulate(
        compiled.asm["ptx"],
        grid,
        args,
        shared_bytes=meta.shared,
        cluster=(meta.num_ctas, 1, 1) if meta.num_ctas > 1 else None,
        reads_unwritten=True,
        seed=seed,
    )
    return arrays, case.expected(before)


def _passed(value: Any) -> Any:
    """Return an argument of the emulator; types missing in NumPy as their bits."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.bool_:
        return value.view(np.uint8)
    return value if value.dtype.kind in "iuf" else value.view(f"u{value.dtype.itemsize}")


def disagreement(case: Case, seed: int = 0) -> str:
    """Describe the emulator's difference from NumPy; empty if there is none."""
    left, expected = run_case(case, seed)
    for name in expected:
        have, want = (np.asarray(arrays).reshape(-1) for arrays in (left[name], expected[name]))
        if have.shape != want.shape:
            return f"{name} has {have.shape}, expected {want.shape}"
        wide, exact = have.astype(np.float64), want.astype(np.float64)
        if have.dtype.kind in "iub":
            wrong = have != want.astype(have.dtype)
        else:
            scale = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
            wrong = ~(np.abs(wide - exact) <= case.rtol * scale) & ~(
                np.isnan(wide) & np.isnan(exact)
            )
            wrong &= wide != exact
        if wrong.any():
            index = int(np.flatnonzero(wrong)[0])
            return f"{name}[{index}] is {have[index]}, expected {want[index]}; {int(wrong.sum())} of {wrong.size}"
    return ""
