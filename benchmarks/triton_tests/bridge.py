"""A pytest plugin to compile and run the kernels of Triton's own tests with aotc.

    python -m pytest -p benchmarks.triton_tests.bridge --aotc MODE --device DEVICE TESTS

MODE is `compile` (to a cubin), `interpret` (to a cubin, then the tile IR on CPU tensors) or `launch` (on a GPU).
The first two need no GPU: pass `--device cpu`. The environment needs Triton, PyTorch and NumPy, and Triton's
checkout with `python/conftest.py` and `python/test/unit/language`.

A test counts as `ok`, `failed`, or `inapplicable`: it reads Triton's own IR, needs a missing
GPU, or asks for a feature of another target. `report.py` tells them apart and prints the table.
"""

from __future__ import annotations

import inspect
import json
import os
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import jit

import aotc
from aotc.config import CONFIG_KEYS
from aotc.ir.diagnostics import CompileError
from benchmarks.triton_tests import interpret
from benchmarks.triton_tests.arguments import as_tensor, signature_of

TARGET = "sm_90a"
_TRITONS_STAGES = frozenset(("ttir", "ttgir", "llir", "source"))


@dataclass
class Launches:
    """The outcome of a test's launches."""

    compiled: int = 0
    run: int = 0
    refusals: list[str] = field(default_factory=list[str])
    reads_triton: list[str] = field(default_factory=list[str])
    unsupported: list[str] = field(default_factory=list[str])


@dataclass
class Session:
    """The mode of this process, the launches of the current test, and the context's fatal fault."""

    mode: str = "compile"
    launches: Launches = field(default_factory=Launches)
    fault: str = ""


_session = Session()


class Stages(dict[str, Any]):
    """The texts of a kernel's stages; notes a request for a stage of Triton's, and for the spelling of PTX."""

    def __getitem__(self, stage: str) -> Any:
        if stage == "ptx":
            _session.launches.reads_triton.append(stage)
        return super().__getitem__(stage)

    def __missing__(self, stage: str) -> str:
        _session.launches.reads_triton.append(stage)
        pytest.skip(f"reads Triton's {stage}")


class Compiled:
    """A compiled kernel with the attributes read by Triton's tests."""

    def __init__(self, kernel: aotc.LaunchableKernel) -> None:
        self._kernel = kernel
        self.asm = Stages(ptx=kernel.asm["ptx"], cubin=kernel.cubin)
        self.metadata = types.SimpleNamespace(
            name=kernel.metadata.symbol,
            shared=kernel.metadata.shared_bytes,
            num_warps=kernel.metadata.num_threads // 32,
            num_ctas=kernel.metadata.num_ctas,
        )
        self.n_regs = kernel.metadata.registers
        self.n_spills = kernel.metadata.spill_bytes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _session.launches.reads_triton.append(name)
        pytest.skip(f"reads Triton's {name}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--aotc", choices=("compile", "interpret", "launch"), default="compile")
    parser.addoption(
        "--aotc-share",
        type=float,
        default=1.0,
        help="the share of tests to run, drawn by their names",
    )
    parser.addoption(
        "--aotc-part",
        default="0/1",
        help="I/N: of the share, part I of N, for processes side by side",
    )
    parser.addoption("--aotc-json", help="append one JSON line a test to this file")


def pytest_configure(config: pytest.Config) -> None:
    _session.mode = config.getoption("--aotc")
    jit.JITFunction.run = _run
    _replace_driver("cuda" if _session.mode == "launch" else "cpu")
    from triton import _internal_testing

    # It would query a kernel compiled by Triton.
    _internal_testing._supports_cluster_size = lambda _device, num_ctas: num_ctas <= 8  # noqa: SLF001
    if _session.mode != "launch":
        _place_on_cpu()


def _replace_driver(device: str) -> None:
    """Answer questions to Triton's driver as on an H100."""
    target = GPUTarget("cuda", 90, 32)
    active = types.SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda _device=None: 0,
        get_active_torch_device=lambda: torch.device(device),
        get_device_interface=lambda: torch.cuda,
        get_empty_cache_for_benchmark=lambda: torch.empty(0),
        utils=types.SimpleNamespace(
            get_device_properties=lambda _device=0: {
                "max_shared_mem": 232448,
                "multiprocessor_count": 132,
                "warpSize": 32,
            },
        ),
    )
    triton.runtime.driver.set_active(active)


def _place_on_cpu() -> None:
    """Answer questions to torch as on an H100, and place tensors on the CPU."""
    torch.cuda.get_device_capability = lambda _device=None: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.cuda.synchronize = lambda _device=None: None
    torch.cuda.get_device_properties = lambda _device=None: types.SimpleNamespace(
        multi_processor_count=132, total_memory=80 << 30, major=9, minor=0, name="H100"
    )
    torch.set_default_device("cpu")
    _OnCpu().__enter__()


class _OnCpu(torch.overrides.TorchFunctionMode):
    """Replace a CUDA device by the CPU in every call of torch."""

    def __torch_function__(
        self,
        func: Any,
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        words = dict(kwargs or {})
        if "cuda" in str(words.get("device", "")):
            words["device"] = "cpu"
        if getattr(func, "__name__", "") == "cuda":
            return args[0]
        cpu_args = tuple(
            "cpu" if isinstance(item, str) and item.startswith("cuda") else item for item in args
        )
        return func(*cpu_args, **words)


# ---- a launch ----------------------------------------------------------------------------------


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
    """Compile a launch with aotc and run it as the mode says."""
    for hook in self.pre_run_hooks:
        hook(*args, **keywords)
    bound, options = _bind(self, args, keywords)
    if reason := _unsupported(options):
        _session.launches.unsupported.append(reason)
        pytest.skip(reason)
    signature, constants, launch_args = signature_of(self.params, bound)
    config = {
        name: value for name, value in options.items() if name in CONFIG_KEYS and value is not None
    }
    try:
        kernel = aotc.compile(
            **_function(self),
            signature=signature,
            constants=constants,
            target=TARGET,
            debug=bool(options.get("debug", self.debug)),
            **config,
        )
    except CompileError as error:
        _session.launches.refusals.append(str(error))
        raise triton.CompilationError(self.src, None, str(error)) from error
    _session.launches.compiled += 1
    if not warmup and _session.mode != "compile":
        extents = _extents(grid, bound)
        if _session.mode == "launch":
            _launch(kernel, extents, launch_args)
        else:
            interpret.run(kernel, launch_args, extents)
        _session.launches.run += 1
    return Compiled(kernel)


def _launch(
    kernel: aotc.LaunchableKernel, extents: tuple[int, ...], arguments: Mapping[str, Any]
) -> None:
    """Launch on the GPU and wait; a fault ends the process, since its context is lost."""
    try:
        kernel[extents](**{name: as_tensor(value) for name, value in arguments.items()})
        torch.cuda.synchronize()
    except (torch.AcceleratorError, aotc.runtime.CudaError) as error:
        _session.fault = str(error)
        raise


def _function(function: Any) -> dict[str, Any]:
    """Return the kernel for `aotc.compile`, as text where a test has replaced its source."""
    if function.src in textwrap.dedent(inspect.getsource(function.fn)):
        return {"kernel": function.fn}
    module = Path(inspect.getsourcefile(function.fn) or "").read_text(encoding="utf-8")
    return {"kernel": function.fn.__name__, "source": f"{module}\n\n@triton.jit\n{function.src}"}


def _bind(
    function: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments by parameter, and options of the compiler."""
    names = {parameter.name for parameter in function.params}
    signature = inspect.signature(function.fn)
    bound = signature.bind(
        *args, **{name: value for name, value in keywords.items() if name in names}
    )
    bound.apply_defaults()
    return dict(bound.arguments), {
        name: value for name, value in keywords.items() if name not in names
    }


def _unsupported(options: Mapping[str, Any]) -> str:
    """Return why an option asks for something other than this target's code, or ""."""
    if options.get("ir_override") or (options.get("launch_pdl") and _session.mode != "launch"):
        return "an option for Triton's own IR or driver"
    return ""


def _extents(grid: Any, bound: Mapping[str, Any]) -> tuple[int, ...]:
    extents = grid(dict(bound)) if callable(grid) else grid
    return (extents,) if isinstance(extents, int) else tuple(int(extent) for extent in extents)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--aotc-share")
    part, num_parts = map(int, config.getoption("--aotc-part").split("/"))
    drawn = [item for item in items if crc32(item.nodeid.encode()) < share * 2**32]
    items[:] = [item for item in drawn if crc32(item.nodeid.encode()) % num_parts == part]


# ---- outcomes ----------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _session.launches = Launches()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    path = item.config.getoption("--aotc-json")
    if path and (report.when == "call" or report.outcome != "passed"):
        line = {
            "test": item.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "seconds": round(call.duration, 3),
            "error": _last_line(call),
            **vars(_session.launches),
        }
        with Path(path).open(
            "a", encoding="utf-8"
        ) as file:  # one write a line: workers share the file
            file.write(json.dumps(line) + os.linesep)
        if _session.fault and report.when == "call":
            os._exit(1)
    return report


def _last_line(call: pytest.CallInfo[None]) -> str:
    error = call.excinfo
    if error is None:
        return ""
    frame = error.traceback[-1]
    return f"{error.typename}: {str(error.value)[:600]} [{frame.path.name}:{frame.lineno + 1}]"
