"""What Triton's own interpreter makes of a case, on a CPU; `pip install aotc[oracle]`.

A kernel is called as Triton's executor calls it, with pointers into NumPy arrays, so no PyTorch is
needed. Where the interpreter computes something else than a GPU does, `repairs.py` mends it: what
is tested is Triton's language (its `semantic.py`, `standard.py`, `core.py`), which stays as it is.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # asked for when a function is decorated, Triton's own too

import importlib.util
import itertools
import warnings
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
    """Return the results of a case as Triton's interpreter has them.

    The kernel is written into `folder`, where each has a file of its own: its source is read again.
    """
    found: dict[str, Any] = {}
    names = RESULTS[: case.num_results]
    text = source(case, [f"_found[{name!r}] = {name}" for name in names])
    module = _load(text, folder / f"case{next(_count)}.py")
    right = {name: meaning for name, (_, meaning) in repairs.GLOBALS.items()}
    module.__dict__.update(right, _found=found)
    memory = [each.values.copy() for each in case.inputs]
    kinds = [each.dtype for each in case.inputs]
    pointers = [_pointer(one, kind) for one, kind in zip(memory, kinds, strict=True)]
    pointers += [None] * case.num_results  # what the source names and does not use
    try:
        _run(module.k, pointers)
    except Exception as error:  # noqa: BLE001 - whatever Triton raises is its refusal
        cause = error.__cause__ or error
        return Refused(f"{type(cause).__name__}: {cause}".splitlines()[0])
    return tuple(_result(found[name]) for name in names)


def _load(text: str, path: Path) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pointer(values: Any, dtype: str) -> Any:
    kind = tl.pointer_type(getattr(tl, dtype))
    address = np.array([values.ctypes.data], np.uint64)
    return tl.tensor(interpreter.TensorHandle(address, kind), kind)


def _run(kernel: Any, args: list[Any]) -> None:
    """Run one program, with the language patched as Triton's executor does."""
    function = kernel.rewrite()
    scope = interpreter._patch_lang(function)
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(1, 1, 1)
    builder.set_grid_idx(0, 0, 0)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
