"""A program of a library's functions, to record and to run from an archive.

    python library_program.py LIBRARY OUTPUTS [--only NAMES] [--claims DIR] [--configs K]
        [--repeats N [--record DIR] [--lock FILE]] [--launches] [--expected FILES]
        [--draw N --seed S]
        [--without-gpu [--fake LIBCUDA]]

Runs functions of a library, forward and backward where it has both, and writes their results to
OUTPUTS (by torch). OUTPUTS.json gets the seconds to the first result and to the last, from the
start of the process or from the time in LIBRARY_STARTED. It also gets the functions run with
their times, the errors of the others, and the launched specialisations. With N repeats it gets
the seconds of the best extra round, with FILE locked; under the recorder as well, writing to a
folder. With `--launches` it gets the host's microseconds of each launch of the first round, alone and
repeated.

NAMES, separated by commas, selects functions. Processes with the same folder of claims share the
functions: each runs in the first process to claim it. Of an autotuner's configs the first K are
tried. FILES, separated by commas, are outputs to compare with. LIBRARY is a module `library_NAME.py`
beside this file. It has its functions (`PROGRAMS`), or entry points (`ENTRY_POINTS`) of which N are
drawn with seed S. Needs torch, the library, Triton (or archives in its place) and a GPU; without one,
launches do nothing: Triton's, or an archive's on the tests' fake driver.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

START = float(os.environ.get("LIBRARY_STARTED", time.time()))

import torch  # noqa: E402 - its import is part of the time

Programs = dict[str, Callable[[], list[Any]]]
DEVICE = "cuda"


def made(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    """Return a random tensor."""
    return torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_(grad)


def both(output: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Return an output, and the gradients of the inputs, of a sum of the output with random weights.

    A sum of squares would not do: for a norm it hardly depends on the input, so the gradient
    would be rounding error.
    """
    result = output.detach().clone()  # some functions write gradients over their output
    draw = torch.Generator("cpu").manual_seed(1)
    weights = torch.randn(output.shape, generator=draw).to(output.device)
    (output.float() * weights).sum().backward()
    return [result, *(tensor.grad for tensor in inputs if tensor.grad is not None)]


# ---- missing modules
# -----------------------------------------------------------------------------


class _Anything:
    """A value of a missing module: may be called, decorated with, derived from."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _key: object) -> Any:
        return self

    def __mro_entries__(self, _bases: object) -> tuple[type, ...]:
        return (_Base,)

    def __or__(self, _other: object) -> Any:
        return self

    __ror__ = __or__


class _Base:
    def __init_subclass__(cls, **_words: Any) -> None:
        super().__init_subclass__()


class _Module(types.ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {}) if name.endswith("Error") else _Anything()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find unused imports of a library: servers, compiled extensions.

    This finder comes after all installed modules, and only for the given names.
    """

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        top, dot, _ = fullname.partition(".")
        if top not in self._names or (dot and not isinstance(sys.modules.get(top), _Module)):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# ---- launches
# ------------------------------------------------------------------------------------


class Watch:
    """The launched specialisations, as Triton makes them, by hooks of its functions.

    Trials of the autotuner do not count. The last one is taken back if the launch fails.
    """

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        self._functions: list[Any] = []
        self._num_trials, self._last, self._is_new = 0, "", False
        jit = importlib.import_module("triton.runtime.jit").JITFunction
        tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
        first, bench = jit.__init__, getattr(tuner, "_bench", None)

        @functools.wraps(first)
        def init(function: Any, *args: Any, **kwargs: Any) -> None:
            first(function, *args, **kwargs)
            function.pre_run_hooks.append(lambda *a, **k: self._launched(function, a, k))
            self._functions.append(function)

        def tried(*args: Any, **kwargs: Any) -> Any:
            self._num_trials += 1
            try:
                return bench(*args, **kwargs)
            finally:
                self._num_trials -= 1

        jit.__init__ = init
        if bench is not None:
            tuner._bench = tried  # noqa: SLF001 - no other place

    def _launched(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._num_trials:
            return
        passed = {**dict(zip(function.arg_names, args)), **kwargs}  # noqa: B905 - defaults follow
        printed = {*function.arg_names, "num_warps", "num_stages", "num_ctas", "maxnreg"}
        words = [f"{name}={_word(passed[name])}" for name in sorted(printed & passed.keys())]
        key = f"{function.fn.__module__}.{function.fn.__qualname__}({', '.join(words)})"
        self._last, self._is_new = key, key not in self.seen
        self.seen[key] = None

    def failed(self) -> None:
        """Forget the last launch if it was the first of its specialisation."""
        if self._is_new:
            self.seen.pop(self._last, None)
        self._is_new = False

    def stop(self) -> None:
        """Call no hooks any more."""
        for function in self._functions:
            function.pre_run_hooks.clear()


def _word(value: Any) -> str:
    if hasattr(value, "data_ptr"):
        return f"*{value.dtype}{':16' * (value.data_ptr() % 16 == 0)}"
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return repr(value) if not isinstance(value, float) else "fp32"
    if isinstance(value, int):
        return (
            "1"
            if value == 1
            else f"i{32 if abs(value) < 1 << 31 else 64}{':16' * (value % 16 == 0)}"
        )
    return getattr(value, "__name__", None) or str(value)


class Launches:
    """The launches of programs, to be timed: `kernel[grid]` calls, outside of other ones."""

    NUM_CALLS, NUM_ROUNDS = 50, 4

    def __init__(self) -> None:
        self.program = ""
        self._calls: list[tuple[str, Any, Any, tuple[Any, ...], dict[str, Any]]] = []
        self._depth = 0
        self._originals: list[tuple[Any, Any]] = []
        jit = importlib.import_module("triton.runtime.jit")
        tuner = importlib.import_module("triton.runtime.autotuner")
        for kind in (jit.JITFunction, tuner.Autotuner, tuner.Heuristics):
            self._originals.append((kind, kind.__getitem__))
            kind.__getitem__ = self._watched(kind.__getitem__)

    def _watched(self, original: Any) -> Any:
        def subscript(kernel: Any, grid: Any) -> Any:
            launch = original(kernel, grid)

            def call(*args: Any, **words: Any) -> Any:
                if not self._depth:
                    self._calls.append((self.program, kernel, grid, args, words))
                self._depth += 1
                try:
                    return launch(*args, **words)
                finally:
                    self._depth -= 1

            return call

        return subscript

    def timed(self, programs: Sequence[str]) -> dict[str, float]:
        """Return the microseconds of each program's launches."""
        for kind, original in self._originals:
            kind.__getitem__ = original
        times: dict[str, float] = {}
        counts = dict.fromkeys(programs, 0)
        for program, kernel, grid, args, words in self._calls:
            if program not in counts:
                continue
            counts[program] += 1
            best = float("inf")
            for _ in range(self.NUM_ROUNDS):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(self.NUM_CALLS):
                    kernel[grid](*args, **words)
                best = min(best, time.perf_counter() - start)
            torch.cuda.synchronize()
            times[f"{program} {counts[program]}"] = best / self.NUM_CALLS * 1e6
        return times


# ---- all of it ----------------------------------------------------------------------------------


def main() -> None:
    """Run each function once, then rerun all successful ones."""
    options = _options()
    if options.without_gpu:
        if options.fake:
            importlib.import_module("torch_without_gpu").install(options.fake)
        else:
            importlib.import_module("triton_without_gpu").install()
    if options.configs:
        _limit_configs(options.configs)
    watch = Watch()
    programs = _programs(options)
    names = [*programs] if options.only is None else options.only.split(",")
    outputs, failed = dict[str, Any](), dict[str, str]()
    record: dict[str, Any] = {"names": names, "first_s": 0.0, "all_s": 0.0, "failed": failed}
    seconds: dict[str, float] = record.setdefault("seconds", {})
    launches = Launches() if options.launches else None
    for name in names:
        if options.claims is not None and not _is_claimed(options.claims / name):
            continue
        torch.manual_seed(0)
        if launches is not None:
            launches.program = name
        start = time.time()
        try:
            outputs[name] = [tensor.detach().cpu() for tensor in programs[name]()]
        except Exception as error:  # noqa: BLE001 - which of them run is a result
            watch.failed()
            failed[name] = f"{type(error).__name__}: {error}"
        seconds[name] = time.time() - start
        record["all_s"] = time.time() - START
        record["first_s"] = record["first_s"] or (record["all_s"] if outputs else 0.0)
        if options.claims is not None:  # this process may be ended before the next one
            _write(
                options.outputs, outputs, {**record, "ran": [*outputs], "launched": [*watch.seen]}
            )
    watch.stop()
    if launches is not None:
        with _locked(options.lock):
            record["launch_us"] = launches.timed([*outputs])
    ran = [programs[name] for name in outputs]
    record |= {"ran": [*outputs], "launched": [*watch.seen]}
    if options.repeats:
        with _locked(options.lock):
            record |= _rounds(ran, options.repeats, options.record)
    record["errors"] = _errors(outputs, options.expected)
    _write(options.outputs, outputs, record)
    print(json.dumps({**record, "launched": len(watch.seen)}))


def _programs(options: argparse.Namespace) -> Programs:
    """Return the functions of a library, or a draw of its entry points."""
    module = importlib.import_module(f"library_{options.library}")
    if hasattr(module, "PROGRAMS"):
        return module.PROGRAMS
    draw = importlib.import_module("library_draw")
    return draw.programs(module.ENTRY_POINTS, options.seed, options.draw)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("library")
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--claims", type=Path)
    parser.add_argument("--configs", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--launches", action="store_true")
    parser.add_argument("--draw", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-gpu", action="store_true")
    parser.add_argument("--fake")
    parser.add_argument("--expected", type=lambda text: text.split(","), default=[])
    return parser.parse_args()


def _limit_configs(num_configs: int) -> None:
    """Let autotuners try no more than their first configs."""
    tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    init = tuner.__init__

    def limited(self: Any, fn: Any, names: Any, configs: Any, *args: Any, **words: Any) -> None:
        init(self, fn, names, configs[:num_configs], *args, **words)

    tuner.__init__ = limited


def _is_claimed(path: Path) -> bool:
    """Return whether this process is the first to ask for a function."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _write(path: Path, outputs: dict[str, Any], record: dict[str, Any]) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    torch.save(outputs, unfinished)
    unfinished.replace(path)
    unfinished.write_text(json.dumps(record))
    unfinished.replace(path.with_name(f"{path.name}.json"))


@contextlib.contextmanager
def _locked(path: Path | None) -> Iterator[None]:
    """Wait until no other process has locked a file, and lock it."""
    if path is None:
        yield
        return
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _rounds(
    programs: Sequence[Callable[[], object]], repeats: int, record: Path | None
) -> dict[str, float]:
    """Return the seconds of a round of all functions; if told so, under the recorder as well."""
    kinds = ["round_s"]
    if record is not None:
        from aotc.package.record.hook import recorder

        jit, tuner = map(
            importlib.import_module, (f"triton.runtime.{m}" for m in ("jit", "autotuner"))
        )
        plain = jit.JITFunction.run, tuner.Autotuner.run
        record.mkdir(parents=True, exist_ok=True)
        os.environ[recorder.FOLDER_VARIABLE] = str(record)
        recorder.wrap(jit, tuner)
        wrapped = jit.JITFunction.run, tuner.Autotuner.run
        kinds.append("recorded_s")
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind in kinds:
            if record is not None:
                jit.JITFunction.run, tuner.Autotuner.run = wrapped if kind != "round_s" else plain
            times[kind].append(_round(programs))
    return {kind: min(samples) for kind, samples in times.items()}


def _round(programs: Sequence[Callable[[], object]]) -> float:
    torch.manual_seed(0)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for run in programs:
        run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


LIMITS = {
    torch.float32: 2 * 2.0**-10,
    torch.float16: 4 * 2.0**-10,
    torch.bfloat16: 4 * 2.0**-7,
    torch.float8_e4m3fn: 2.0**-3,
    torch.int8: 2.0**-7,
}


def _errors(outputs: dict[str, Any], files: Sequence[str]) -> dict[str, float]:
    """Return the error of outputs against the expected ones: 0 is bit-equal, 1 is the bound.

    A result may differ by a few units in the last place of its type: four, for fp32 two of tf32
    (dots multiply in it), for 8 bits one. This bounds the norm of the difference, relative to
    the norm, and the largest difference, relative to the largest element. Another shape or type,
    or NaN or infinity elsewhere, is an infinite error.
    """
    errors_by_name: dict[str, float] = {}
    for name, expected in (pair for file in files for pair in torch.load(file).items()):
        if name in outputs:
            actual = outputs[name]
            pairs = zip(expected, actual)  # noqa: B905 - their numbers are compared
            errors = [_error(a, b) for a, b in pairs]
            errors_by_name[name] = (
                max(errors, default=0.0) if len(actual) == len(expected) else float("inf")
            )
    return errors_by_name


def _error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return float("inf")
    if torch.equal(expected, actual):
        return 0.0
    a, b = expected.double(), actual.double()
    finite = a.isfinite()
    same_finite = torch.equal(finite, b.isfinite())
    if not same_finite or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return float("inf")
    a, b = a[finite], b[finite]
    if torch.equal(a, b):
        return 0.0
    norms = [torch.linalg.vector_norm, lambda x: x.abs().max()]
    worst = max(float(norm(a - b) / norm(a).clamp_min(1e-30)) for norm in norms)
    return worst / LIMITS.get(expected.dtype, 1e-30)


if __name__ == "__main__":
    sys.modules["library_program"] = sys.modules["__main__"]  # as the libraries' modules import it
    main()
