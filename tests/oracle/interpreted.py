"""A case through Triton's own interpreter, on a CPU; `pip install aotc[oracle]`.

A kernel is called as by Triton's executor, with pointers into NumPy arrays, so no PyTorch is needed.
`repairs.py` replaces computations of the interpreter that differ from a GPU's. Triton's language itself
(`semantic.py`, `standard.py`, `core.py`) is under test and unchanged.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # asked for when a function is decorated, Triton's own too

import importlib.util
import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.oracle import repairs
from tests.oracle.cases import RESULTS, Case, Outcome, Refused, Result, source
from tests.oracle.values import NUMPY

repairs.install()
_TYPES = {getattr(tl, name): name for name in NUMPY}
VERSION: str = triton.__version__

_count = itertools.count()


def answer(case: Case, folder: Path) -> Outcome:
    """Run a case with Triton's interpreter.

    The kernel is written into `folder`, where each has a file of its own: its source is read again.
    """
    variables: dict[str, Any] = {}
    names = RESULTS[: case.num_results]
    text = source(case, [f"_found[{name!r}] = {name}" for name in names])
    memory = [operand.values.copy() for operand in case.inputs]
    kinds = [operand.dtype for operand in case.inputs]
    pointers = [pointer(array, kind) for array, kind in zip(memory, kinds, strict=True)]
    pointers += [None] * case.num_results  # imported by the source, but unused
    try:
        run_source(text, "k", folder, pointers, (1,), _found=variables)
    except Exception as error:  # noqa: BLE001 - whatever Triton raises is its refusal
        cause = error.__cause__ or error
        return Refused(f"{type(cause).__name__}: {cause}".splitlines()[0])
    return tuple(_result(variables[name]) for name in names)


def _load(text: str, path: Path) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pointer(values: Any, dtype: str) -> Any:
    """Return a pointer to the first element of an array, as a kernel's argument."""
    kind = tl.pointer_type(getattr(tl, dtype))
    address = np.array([values.ctypes.data], np.uint64)
    return tl.tensor(interpreter.TensorHandle(address, kind), kind)


def run_source(
    text: str, name: str, folder: Path, args: Sequence[Any], grid: Sequence[int], **names: Any
) -> None:
    """Run a kernel of `text` over a grid, with the language patched as Triton's executor does.

    `names` are globals of the text. Raises: any error of Triton.
    """
    module = _load(text, folder / f"case{next(_count)}.py")
    right = {word: meaning for word, (_, meaning) in repairs.GLOBALS.items()}
    module.__dict__.update(right, **names)
    function = getattr(module, name).rewrite()
    scope = interpreter._patch_lang(function)
    builder, extents = interpreter.interpreter_builder, (*grid, 1, 1)[:3]
    builder.set_grid_dim(*extents)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for program in np.ndindex(extents):
                builder.set_grid_idx(*program)
                function(*args)
    finally:
        scope.restore()


def _result(value: Any) -> Result:
    if isinstance(value, tl.constexpr):
        value = value.value
    if not isinstance(value, tl.tensor):
        value = interpreter.interpreter_semantic.to_tensor(value)
    name = _TYPES[value.dtype]
    shape = tuple(int(extent) for extent in value.shape)
    data = np.ascontiguousarray(value.handle.data).reshape(-1)
    dtype = NUMPY[name]
    if data.dtype != dtype:
        data = data.view(dtype) if data.dtype.itemsize == dtype.itemsize else data.astype(dtype)
    return Result(name, shape, data.copy())
