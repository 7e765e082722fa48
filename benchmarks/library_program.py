"""A program of a library's kernels, to record and to run from an archive.

    python library_program.py liger_kernel|fla OUTPUTS

Runs forward and backward passes of the library's functions, writes the results to OUTPUTS, and
prints, as JSON, the seconds to the first result. A function that fails is named and skipped. Needs
torch, the library, Triton (or archives in its place) and a GPU.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402 - its import is part of the time

ROWS, COLS = 512, 1024


def _made(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


def _liger_norm():
    function = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    x, weight = _made(ROWS, COLS), _made(COLS)
    return _both(function.apply(x, weight, 1e-6), x, weight)


def _liger_layer_norm():
    function = importlib.import_module("liger_kernel.ops.layer_norm").LigerLayerNormFunction
    x, weight, bias = _made(ROWS, COLS), _made(COLS), _made(COLS)
    return _both(function.apply(x, weight, bias, 1e-6), x, weight, bias)


def _liger_swiglu():
    function = importlib.import_module("liger_kernel.ops.swiglu").LigerSiLUMulFunction
    a, b = _made(ROWS, COLS), _made(ROWS, COLS)
    return _both(function.apply(a, b), a, b)


def _liger_geglu():
    function = importlib.import_module("liger_kernel.ops.geglu").LigerGELUMulFunction
    a, b = _made(ROWS, COLS), _made(ROWS, COLS)
    return _both(function.apply(a, b), a, b)


def _fla(name):
    def run():
        function = getattr(importlib.import_module(f"fla.ops.{name}"), f"chunk_{name}")
        q, k, v = (_made(1, 512, 4, 64, dtype=torch.bfloat16) for _ in range(3))
        gates = [torch.nn.functional.logsigmoid(_made(1, 512, 4, 64))] if name == "gla" else []
        output = function(q, k, v, *gates)
        return _both(output[0], q, k, v)

    return run


def _both(output, *inputs):
    output.float().square().sum().backward()
    return [output.detach(), *(one.grad for one in inputs)]


PROGRAMS = {
    "liger_kernel": {
        "rms_norm": _liger_norm,
        "layer_norm": _liger_layer_norm,
        "swiglu": _liger_swiglu,
        "geglu": _liger_geglu,
    },
    "fla": {"retention": _fla("retention"), "gla": _fla("gla")},
}


def main() -> None:
    """Run each function once."""
    outputs, failed, first = {}, {}, None
    for name, run in PROGRAMS[sys.argv[1]].items():
        torch.manual_seed(0)
        try:
            outputs[name] = run()
        except Exception as error:  # noqa: BLE001 - which of them run is a result
            failed[name] = f"{type(error).__name__}: {error}"
            continue
        torch.cuda.synchronize()
        first = first or time.perf_counter() - START
    torch.save(outputs, sys.argv[2])
    print(json.dumps({"first_s": first, "ran": [*outputs], "failed": failed}))


if __name__ == "__main__":
    main()
