"""Time peers in a Python with PyTorch: Triton's JIT on the same source, cuBLAS, cuDNN.

A request is a line of JSON on standard input, its answer one on standard output: `seconds`, or the
`problem`. This file imports nothing of aotc, so the peers' Python does not need it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

_FLUSH_BYTES = 256 << 20
_DTYPES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "i1": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2",
}  # fmt: skip
_TRITON_DTYPES = {**_DTYPES, "fp8e4nv": "float8e4nv", "fp8e5": "float8e5", "i1": "int1"}


def _tensor(torch: Any, count: int, dtype: str) -> Any:
    """Return a buffer: random numbers, or zeros for integers, since they may be indices."""
    kind = getattr(torch, _DTYPES[dtype])
    if not kind.is_floating_point:
        return torch.zeros(count, dtype=kind, device="cuda")
    return torch.randn(count, dtype=torch.float32, device="cuda").to(kind)


def _function(source: str, name: str) -> Any:
    """Import the module of a source and return its function, without an autotuner or heuristics."""
    path = Path(source).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function: Any = getattr(module, name)
    while not hasattr(function, "arg_names") or hasattr(function, "configs"):
        function = function.fn
    return function


def _triton(torch: Any, request: dict[str, Any]) -> Any:
    """Return a launch by Triton's JIT."""
    tl: Any = importlib.import_module("triton.language")
    triton: Any = importlib.import_module("triton")

    def allocate(size: int, _alignment: int, _stream: Any) -> Any:
        return torch.empty(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(allocate)
    function = _function(request["source"], request["function"])
    values: dict[str, Any] = {}
    for argument in request["args"]:
        kind = argument["kind"]
        if kind == "pointer":
            values[argument["name"]] = _tensor(torch, argument["elements"], argument["dtype"])
        elif kind == "tensor":
            tools: Any = importlib.import_module("triton.tools.tensor_descriptor")
            count = argument["shape"][0] * argument["strides"][0]
            base = _tensor(torch, count, argument["dtype"])
            parts = argument["shape"], argument["strides"], argument["block"]
            values[argument["name"]] = tools.TensorDescriptor(base, *parts)
        else:
            values[argument["name"]] = argument["value"]
    for name, value in request["constants"].items():
        is_dtype = isinstance(value, str) and value in _TRITON_DTYPES
        values[name] = getattr(tl, _TRITON_DTYPES[value]) if is_dtype else value
    grid, options = tuple(request["grid"]), request["options"]
    return lambda: function[grid](**values, **options)


def _library(torch: Any, request: dict[str, Any]) -> Any:
    """Return a launch of the equivalent operation of cuBLAS or cuDNN."""
    extents, dtype = request["extents"], request["dtype"]
    if request["peer"] == "matmul":
        m, n, k = extents
        a, b = _tensor(torch, m * k, dtype), _tensor(torch, n * k, dtype)
        a, b = a.view(m, k), b.view(n, k).t()
        if dtype.startswith("fp8"):
            unit_scale = torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(a, b, unit_scale, unit_scale, out_dtype=torch.bfloat16)  # noqa: SLF001
        out = torch.empty(m, n, dtype=a.dtype, device="cuda")
        return lambda: torch.matmul(a, b, out=out)
    batch, heads, queries, keys, size, causal = extents
    shapes = ((batch, heads, rows, size) for rows in (queries, keys, keys))
    q, k, v = (_tensor(torch, batch * heads * s[2] * size, dtype).view(s) for s in shapes)
    attention = torch.nn.attention

    def run() -> Any:
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, is_causal=bool(causal))

    return run


def _time(torch: Any, launch: Any, *, passes: int, is_cold: bool) -> float:
    """Return the median of passes; the first launches compile and do not count."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    launch()
    launch()
    torch.cuda.synchronize()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(passes)]
    for start, end in pairs:
        flush.zero_() if is_cold else launch()
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs) / 1e3


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of a request, or the problem."""
    try:
        torch: Any = importlib.import_module("torch")
        make = _triton if request["peer"] == "triton" else _library
        launch = make(torch, request)
        cold = request["is_cold"]
        return {"seconds": _time(torch, launch, passes=request["passes"], is_cold=cold)}
    except Exception as error:  # noqa: BLE001 - a peer that fails is told, and others go on
        return {"problem": f"{type(error).__name__}: {str(error).strip()[:300]}"}


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
