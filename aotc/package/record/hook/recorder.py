"""Record launches of Triton kernels, by wrapping `JITFunction.run` and the autotuner on import.

The specialisation is read from the compiled kernel returned by Triton. Once enough launches of it
are recorded, a further one costs two dictionary lookups. Of the autotuner, its choice is recorded,
not its trials.

Launches are counted by compiled kernel, grid, integer arguments and shapes of tensor descriptors.
A count is written at powers of two, at multiples of 1024, and at exit. A killed process loses less
than half of a count, and at most 1023.

A record is a line of JSON, appended by one `write` to the process's own file. A killed process
leaves complete lines and at most one partial line; readers skip it.

Invariant: the program's behaviour does not change. Errors here are recorded, never raised.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.util
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

FOLDER_VARIABLE = "AOTC_RECORD_DIR"
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - start-up time
_NUM_SAMPLES = 8  # launches to record per compiled kernel and call site, for their grids
_MAX_COUNTS = 4096  # limit of distinct launches to count per process
_OPTIONS = (
    *("num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("enable_fp_fusion", "enable_reflect_ftz", "launch_cooperative_grid"),
)


_OPTION_DEFAULTS = {
    "default_dot_input_precision": "tf32",
    "ptx_options": None,
}
_frame = sys._getframe  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no import


class _State(threading.local):
    num_trials = 0  # this thread's nesting depth of autotuner benchmarks


_state = _State()
# Keyed by `id` of objects kept alive here: hashing a code object takes microseconds.
_samples: dict[
    tuple[int, int, int], list[Any]
] = {}  # by kernel, code, line: count, and owners to keep alive
_inside: dict[int, tuple[bool, Any]] = {}  # by code: True for Triton's code or ours
_counts: dict[
    tuple[Any, ...], list[int]
] = {}  # by kernel and integers: count, number, last written
_counted: dict[int, Any] = {}  # keeps the kernels of `_counts` alive


def install() -> None:
    """Wrap Triton's classes when the program imports them."""
    if os.environ.get(FOLDER_VARIABLE):
        sys.meta_path.insert(0, _Finder())
        atexit.register(_write_counts)
        os.register_at_fork(after_in_child=_counts.clear)  # the parent writes its own


def wrap(jit: ModuleType, autotuner: ModuleType) -> None:
    """Wrap Triton's classes in a program with Triton imported."""
    _wrap_jit(jit)
    _wrap_autotuner(autotuner)


def _write(record: dict[str, Any]) -> None:
    """Append a record to the file of this process."""
    try:
        folder = os.environ[FOLDER_VARIABLE]
        path = os.path.join(folder, f"{os.getpid()}-{_START}.jsonl")  # noqa: PTH118 - start-up time
        line = (json.dumps(record) + "\n").encode()
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
    except (OSError, KeyError, ValueError, TypeError):
        return  # the program goes on; the manifest shows the gap


_START = os.urandom(4).hex()  # process ids are reused


# ---- launches ---------------------------------------------------------------------------------


def _wrap_jit(module: ModuleType) -> None:
    original = module.JITFunction.run

    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        launch_grid: Any = grid
        grids: list[Any] | None = None
        if callable(grid):
            grids = []

            def called(meta: Any) -> Any:
                extents = launch_grid(meta)
                grids.append(extents)
                return extents

            grid = called
        kernel = original(self, *args, grid=grid, warmup=warmup, **kwargs)
        frame: Any = _frame(1)  # the launching code, outside of Triton
        site = _inside.get(id(frame.f_code)) or _look_at(frame)
        while site[0] and frame.f_back is not None:
            frame = frame.f_back
            site = _inside.get(id(frame.f_code)) or _look_at(frame)
        code, line = site[1], frame.f_lineno
        sample = _samples.get((id(kernel), id(code), line))
        if sample is None or sample[0] < _NUM_SAMPLES:
            _sample(self, kernel, grids[0] if grids else launch_grid, args, kwargs, (code, line))
        if not warmup:
            try:
                _count(self, kernel, grids[0] if grids else launch_grid, args, kwargs)
            except Exception as error:  # noqa: BLE001 - the program goes on
                _write_once(f"{type(error).__name__}: {error}")
        return kernel

    module.JITFunction.run = run


def _sample(
    function: Any,
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    caller: tuple[Any, int],
) -> None:
    if kernel is None or _state.num_trials:
        return
    code, line = caller
    _samples.setdefault((id(kernel), id(code), line), [0, kernel, code])[0] += 1
    try:
        file = os.path.abspath(code.co_filename)  # noqa: PTH100 - start-up time
        location = {"file": file, "line": line}
        launch = _launch(function, kernel, grid, args, kwargs)
        overlaps = _overlaps(_passed(function.arg_names, args, kwargs))
        _write(
            {**launch, "caller": location, **({} if overlaps is None else {"overlaps": overlaps})}
        )
    except Exception as error:  # noqa: BLE001 - the program goes on
        _write({"problem": f"{type(error).__name__}: {error}", "kernel": _kernel(function)})


def _launch(
    function: Any, kernel: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    names = list(function.arg_names)
    source = kernel.src
    constants = {_name(names, key): value for key, value in source.constants.items()}
    divisible = [
        _name(names, key)
        for key, attributes in dict(source.attrs).items()
        if ["tt.divisibility", 16] in [list(attribute) for attribute in attributes]
    ]
    passed = _passed(names, args, kwargs)
    types = {_name(names, key): text for key, text in source.signature.items()}
    signature = {name: _type(text, passed.get(name)) for name, text in types.items()}
    metadata = kernel.metadata
    extents: Sequence[Any] = (grid,) if isinstance(grid, int) else grid
    return {
        "kernel": _kernel(function),
        "constexprs": [parameter.name for parameter in function.params if parameter.is_constexpr],
        "signature": signature,
        "divisible": divisible,
        "constants": {name: _constant(value) for name, value in constants.items()},
        "options": {name: getattr(metadata, name, None) for name in _OPTIONS},
        **_unbuilt(metadata),
        "target": [metadata.target.backend, metadata.target.arch],
        "grid": [int(extent) for extent in extents or ()],
        "integers": {k: v for k, v in passed.items() if type(v) is int},
    }


def _unbuilt(metadata: Any) -> dict[str, Any]:
    """Return a compiled kernel's options unsupported by archives."""
    options: dict[str, Any] = {
        name: str(getattr(metadata, name))
        for name, usual in _OPTION_DEFAULTS.items()
        if getattr(metadata, name, usual) not in (usual, None, "")
    }
    libraries: dict[str, Any] = dict(getattr(metadata, "extern_libs", None) or ())
    options.update(
        {f"extern_libs {name}": path for name, path in libraries.items() if name != "libdevice"}
    )
    return {"unbuilt": options} if options else {}


def _overlaps(passed: dict[str, Any]) -> list[list[str]] | None:
    """Return pairs of arguments with overlapping memory; None for fewer than two ranges."""
    ranges = [(name, *bounds) for name, value in passed.items() for bounds in _ranges(value)]
    if len(ranges) < 2:
        return None
    pairs = itertools.combinations(ranges, 2)
    overlaps = [[a[0], b[0]] for a, b in pairs if a[1] < b[2] and b[1] < a[2]]
    return [list(pair) for pair in dict.fromkeys(map(tuple, overlaps))]


def _ranges(value: Any) -> Iterable[tuple[int, int]]:
    """Yield the address range of an argument, or of each item of a tuple."""
    if isinstance(value, tuple):
        for element in _items(value):
            yield from _ranges(element)
        return
    value = getattr(value, "base", value) if hasattr(value, "block_shape") else value
    try:
        begin, size = int(value.data_ptr()), int(value.element_size())
        last = sum((int(n) - 1) * int(s) for n, s in zip(value.shape, value.stride()))  # noqa: B905 - Python 3.9
    except Exception:  # noqa: BLE001 - no memory, or one that does not say how much
        return
    yield begin, begin if 0 in value.shape else begin + (last + 1) * size


# ---- counts -----------------------------------------------------------------------------------


def _count(
    function: Any, kernel: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    if kernel is None or _state.num_trials:
        return
    extents: Any = grid if type(grid) in (int, tuple) else tuple(grid)
    key = (id(kernel), extents, *_sizes(args), *_sizes(kwargs.values()))
    entry = _counts.get(key)
    if entry is None:
        if len(_counts) >= _MAX_COUNTS:
            _write_once(
                f"of more than {_MAX_COUNTS} distinct launches of a process, the first are counted"
            )
            return
        entry = _counts[key] = [0, len(_counts), 0]
        _counted[id(kernel)] = kernel
        launch = _counted_launch(function, kernel, grid, args, kwargs)
        _write({"of": entry[1], "launch": launch})
    entry[0] += 1
    count = entry[0]
    if not count & (count - 1) or not count & 1023:
        _write_count(entry)


class _Sized(dict[type, bool]):
    """Cache of types used as sizes: integers, tuples, tensor descriptors.

    Read at every launch.
    """

    def __missing__(self, kind: type) -> bool:
        is_size = kind is int or issubclass(kind, tuple) or kind.__name__ == "TensorDescriptor"
        self[kind] = is_size
        return is_size


_sized = _Sized()


def _sizes(values: Iterable[Any]) -> list[Any]:
    """Return the sizes among arguments, hashable, to distinguish launches."""
    return [v if type(v) is int else _plain(v) for v in values if _sized[type(v)]]


def _plain(value: Any) -> Any:
    return tuple(_sizes(value) if isinstance(value, tuple) else map(int, value.shape))  # pyright: ignore[reportUnknownArgumentType]


def _counted_launch(
    function: Any, kernel: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return a launch with the extents of tensor descriptors."""
    launch = _launch(function, kernel, grid, args, kwargs)
    passed = _passed(function.arg_names, args, kwargs)
    return {
        **launch,
        "integers": {k: v for name, argument in passed.items() for k, v in _key(name, argument)},
    }


def _key(name: str, value: Any) -> list[tuple[str, int]]:
    """Return the integers of an argument, named as in manifest expressions."""
    if type(value) is int:
        return [(name, value)]
    if isinstance(value, tuple):
        items = _items(value)
        labels = _fields(value) or range(len(items))
        pairs = zip(labels, items)  # noqa: B905 - Python 3.9
        return [pair for label, element in pairs for pair in _key(f"{name}_{label}", element)]
    if _sized[type(value)]:
        return [(f"{name}.shape[{axis}]", int(extent)) for axis, extent in enumerate(value.shape)]
    return []


def _passed(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args)), **{k: v for k, v in kwargs.items() if k in names}}  # noqa: B905 - Python 3.9


def _write_count(entry: list[int]) -> None:
    entry[2] = entry[0]
    _write({"of": entry[1], "count": entry[0]})


def _write_counts() -> None:
    """Write the changed counts."""
    for entry in list(_counts.values()):
        if entry[0] != entry[2]:
            _write_count(entry)


@functools.lru_cache(None)
def _write_once(problem: str) -> None:
    _write({"problem": problem})


def _name(names: Sequence[str], key: Any) -> str:
    """Return the parameter of a key: a name, an index, or a path of indices."""
    if isinstance(key, str):
        return key
    path: Sequence[int] = (key,) if isinstance(key, int) else key
    return ".".join([names[path[0]], *map(str, path[1:])])


def _type(text: Any, value: Any) -> Any:
    """Return a type as JSON: its text, or of a tuple its items, and the names of its fields."""
    if not isinstance(text, tuple):
        return str(text)
    texts, values = _items(text), _items(value)
    if len(values) != len(texts):
        values = [None] * len(texts)
    items = [_type(*pair) for pair in zip(texts, values)]  # noqa: B905 - Python 3.9
    return {"items": items, "fields": _fields(value)}


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else []  # pyright: ignore[reportUnknownArgumentType]


def _fields(value: Any) -> list[str]:
    return list(getattr(value, "_fields", ()))


def _kernel(function: Any) -> dict[str, Any]:
    inner = function.fn
    code = inner.__code__
    identity: dict[str, Any] = {
        "file": os.path.abspath(code.co_filename),  # noqa: PTH100 - start-up time
        "function": inner.__qualname__,
        "module": inner.__module__,
    }
    if code.co_freevars:
        identity["captured"] = list(code.co_freevars)
    return {**identity, **_extracted(function)}


_extracts: dict[int, tuple[dict[str, Any], Any]] = {}  # by id of function, kept alive


def _extracted(function: Any) -> dict[str, Any]:
    """Return the name of a function's extract; write it on the first call."""
    extracted = _extracts.get(id(function))
    if extracted is None:
        extracted = _extracts[id(function)] = (_extract(function), function)
    return extracted[0]


def _extract(function: Any) -> dict[str, Any]:
    try:
        extract = _extracting().extract(function)
        is_changed = _extracting().has_other_source(function)
    except Exception as error:  # noqa: BLE001 - the program goes on, and the kernel's file may do
        return {"unsaid": str(error)}
    for file, text in extract.files.items():
        _write({"extract": file, "text": text})
    return {"extract": extract.file, **({"changed": True} if is_changed else {})}


@functools.lru_cache(None)
def _extracting() -> Any:
    """Load `aotc.triton.extract` from its file: the package may not be importable."""
    path = os.path.join(_HERE, "..", "..", "..", "triton", "extract.py")  # noqa: PTH118 - start-up time
    spec: Any = importlib.util.spec_from_file_location("_aotc_extract", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_TORCH_DTYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "int1",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip


def _constant(value: Any) -> dict[str, Any]:
    """Return a constant as JSON: a value, a dtype, a tuple's text, a function, or its repr."""
    if type(value).__name__ == "constexpr":
        value = value.value
    if isinstance(value, Enum):
        value = value.value
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if type(value).__name__ == "dtype" and hasattr(value, "name"):
        return {"value": str(value.name)}
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        word = str(value).rpartition(".")[2]
        return {"value": _TORCH_DTYPES.get(word, word)}
    if hasattr(value, "fn") and hasattr(value.fn, "__code__"):
        return {"function": _kernel(value)}
    text = _tuple_text(value)
    return {"value": text} if text else {"other": repr(value)[:200]}


def _tuple_text(value: Any) -> str:
    """Return a tuple of constants as a Python literal, "" for other values."""
    if not isinstance(value, tuple) or hasattr(value, "_fields"):  # pyright: ignore[reportUnknownArgumentType]
        return ""
    texts: list[str] = []
    for item in _items(value):
        constant = _constant(item)
        if "value" not in constant or constant["value"] in (float("inf"), -float("inf")):
            return ""
        texts.append(constant["value"] if isinstance(item, tuple) else repr(constant["value"]))
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _look_at(frame: FrameType) -> tuple[bool, Any]:
    """Classify a frame: whether it is Triton's or this module's, and its code."""
    code = frame.f_code
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    site = (package in ("triton", "aotc") or code.co_filename == __file__, code)
    _inside[id(code)] = site
    return site


# ---- the autotuner ----------------------------------------------------------------------------


def _wrap_autotuner(module: ModuleType) -> None:
    bench, original = module.Autotuner._bench, module.Autotuner.run  # noqa: SLF001 - no other place
    cache_sizes: dict[int, list[Any]] = {}

    @functools.wraps(bench)
    def tried(self: Any, *args: Any, **kwargs: Any) -> Any:
        _state.num_trials += 1
        try:
            return bench(self, *args, **kwargs)
        finally:
            _state.num_trials -= 1

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        size = len(self.cache)
        last_size = cache_sizes.get(id(self))
        if last_size is None or last_size[0] != size:  # it has chosen a config for these arguments
            cache_sizes[id(self)] = [size, self]
            try:
                _write(_tuned(self, result, args, kwargs))
            except Exception as error:  # noqa: BLE001 - the program goes on
                _write({"problem": f"{type(error).__name__}: {error}"})
        return result

    module.Autotuner._bench, module.Autotuner.run = tried, run  # noqa: SLF001 - as above


def _tuned(tuner: Any, kernel: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    passed = _passed(tuner.arg_names, args, kwargs)
    function = tuner.fn
    while not hasattr(function, "arg_names") or not hasattr(function.fn, "__code__"):
        function = function.fn
    timings: dict[Any, Any] = getattr(tuner, "configs_timings", None) or {}
    key = {name: _key_value(passed[name]) for name in tuner.keys if name in passed}
    dtypes = {k: str(v.dtype) for k, v in passed.items() if hasattr(v, "dtype")}
    launch = (
        {} if kernel is None else {"launch": _counted_launch(function, kernel, (), args, kwargs)}
    )
    return {
        "kernel": _kernel(function),
        **launch,
        "gpu": _gpu(),
        "tuned": sorted({name for config in tuner.configs for name in config.kwargs}),
        "configs": [_settings(config) for config in tuner.configs],
        **({"key": key, "dtypes": dtypes} if tuner.cache else {}),  # else there is but one config
        "choice": _settings(tuner.best_config),
        "timings": [[_settings(config), times] for config, times in timings.items()],
    }


def _gpu() -> str:
    """Return the current GPU's name from PyTorch, "" without it."""
    torch: Any = sys.modules.get("torch")
    try:
        return str(torch.cuda.get_device_name())
    except Exception:  # noqa: BLE001 - no PyTorch, or none with a GPU
        return ""


def _key_value(value: Any) -> Any:
    """Return a value of an autotuner's key as JSON."""
    constant = _constant(value)
    return constant["value"] if "value" in constant else str(value)[:200]


def _settings(config: Any) -> dict[str, Any]:
    return {k: v for k, v in config.all_kwargs().items() if isinstance(v, (bool, int, float, str))}


# ---- import hooks -----------------------------------------------------------------------------

_WRAPPERS: dict[str, Callable[[ModuleType], None]] = {
    "triton.runtime.jit": _wrap_jit,
    "triton.runtime.autotuner": _wrap_autotuner,
}


class _Loader(importlib.abc.Loader):
    """Load a module with its own loader, then wrap its classes."""

    def __init__(self, loader: Any, wrap: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            self._wrap(module)
        except Exception as error:  # noqa: BLE001 - a Triton that has other names runs as it is
            _write({"problem": f"{module.__name__}: {type(error).__name__}: {error}"})


class _Finder(importlib.abc.MetaPathFinder):
    """Find the modules to wrap, through the other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        wrap = _WRAPPERS.get(fullname)
        if wrap is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader, wrap)
                return spec
        return None
