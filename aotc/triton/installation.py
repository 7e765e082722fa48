"""Make a process launch from archives: take over Triton's launches, or stand in for it.

Both come to the same three functions: `launch` of a jitted function, `tuned_run` of an autotuner,
and the launcher that a function is given when it is first launched.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aotc.runtime._native import GridSubscript
from aotc.triton.archives import Archives
from aotc.triton.launch import PROBE, Candidate, Launcher
from aotc.triton.specialization import NotInArchiveError

_STAND_IN = os.path.join(os.path.dirname(__file__), "stand_in")  # noqa: PTH118, PTH120 - start-up time
_LAUNCHER = "aotc_launcher"


class _Installed(NamedTuple):
    archives: Archives
    strict: bool


_installed: list[_Installed] = []


def install(
    paths: Sequence[str | os.PathLike[str]],
    *,
    strict: bool,
    stand_in: bool | None,
    record: str | os.PathLike[str],
    driver: str | None,
) -> None:
    """Do what `aotc.triton.install` says."""
    if _installed:
        raise ValueError("archives are installed already; name all of them in one call")
    archives = Archives(paths, driver)
    if stand_in is None:
        stand_in = importlib.util.find_spec("triton") is None
    if not stand_in:
        _take_over(strict=strict, record=record)
    elif not strict:
        raise ValueError("strict=False lets Triton compile, and Triton is not installed")
    elif "triton" in sys.modules:
        raise ValueError("triton is imported already; install archives before modules with kernels")
    else:
        sys.path.insert(0, _STAND_IN)
    _installed.append(_Installed(archives, strict))


def _launcher_of(function: Any) -> Launcher:
    """Return what launches a jitted function.

    Raises: ValueError if no archives are installed.
    """
    if not _installed:
        raise ValueError("no archives are installed: call aotc.triton.install in this process")
    constexprs = frozenset(one.name for one in function.params if one.is_constexpr)
    hooks = getattr(function, "pre_run_hooks", [])
    return Launcher(function.fn, constexprs, _installed[0].archives, hooks)


# Attributes of a class of jitted functions: `kernel.aotc_launcher`, made when it is first asked for, and
# `kernel[grid]`, past `run`.
launcher_attribute = functools.cached_property(_launcher_of)
grid_subscript = GridSubscript(_LAUNCHER)


def launch(function: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Launch a jitted function, after its hooks.

    Raises: NotInArchiveError if no archive has it.
    """
    function.aotc_launcher[grid](*args, **kwargs)


def warm(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Load what a launch would take, launch nothing.

    Raises: NotInArchiveError if no archive has it.
    """
    launcher: Launcher = function.aotc_launcher
    bound, options = launcher.bind(args, kwargs)
    if not launcher.candidates(bound, options):
        raise launcher.miss(bound, options, "nothing was built with these constants and options")


def find(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Candidate | None, NotInArchiveError | None]:
    """Return the kernel that a launch would take; or none, and the error that it would be."""
    launcher: Launcher = function.aotc_launcher
    bound, options = launcher.bind(args, kwargs)
    found = launcher.probe(bound, options)
    if found is not None:
        return found, None
    return None, launcher.miss(bound, options, "no kernel of its archive takes these arguments")


# ---- the autotuner -----------------------------------------------------------------------------


def tuned_run(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Launch an autotuned function with the config that its archive has; time nothing.

    Of several the first in the order of the manifest, among those that `prune_configs_by` leaves.

    Raises: NotInArchiveError if the archive has none of the configs.
    """
    if kwargs.get("warmup") is PROBE:
        return _choose(tuner, args, kwargs)[1]
    key = _tuning_key(tuner, args, kwargs)
    known = tuner.__dict__.setdefault("_aotc_configs", {})
    found = known.get(key)
    if found is not None:
        try:
            return _run_with(tuner, found, args, kwargs)
        except NotInArchiveError:
            pass  # arguments that are in no key made the difference
    config, _ = _choose(tuner, args, kwargs)
    known[key] = (config, config.all_kwargs())
    return _run_with(tuner, known[key], args, kwargs)


def _run_with(
    tuner: Any, found: tuple[Any, dict[str, Any]], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    config, settings = found
    if config.pre_hook is not None:
        passed = dict(zip(tuner.arg_names, args))  # noqa: B905 - fewer are passed than there are
        config.pre_hook({**passed, **kwargs, **settings})
    tuner.best_config = config
    return tuner.fn.run(*args, **kwargs, **settings)


def _tuning_key(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what a config is kept by: the values of the tuner's key, and dtypes."""
    if len(tuner.configs) == 1:
        return None
    places = tuner.__dict__.get("_aotc_places")
    if places is None:
        names = list(tuner.arg_names)
        places = [(one, names.index(one)) for one in tuner.keys if one in names]
        tuner.__dict__["_aotc_places"] = places
    given = [args[at] if at < len(args) else kwargs.get(name) for name, at in places]
    dtypes = [getattr(one, "dtype", None) for one in args]
    return (*given, *dtypes)


def _choose(
    tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Candidate | None, NotInArchiveError | None]]:
    """Return the config to take, and what was found for it.

    Raises: NotInArchiveError if there is none, and nobody probes.
    """
    # A subclass may keep configs of its own in the cache.
    configs = [*tuner.configs, *(one for one in tuner.cache.values() if one not in tuner.configs)]
    prune = getattr(tuner, "early_config_prune", None)
    if prune is not None:
        tuner.nargs = dict(zip(tuner.arg_names, args))  # noqa: B905 - as Triton
        configs = prune(configs, tuner.nargs, **kwargs) or configs
    best: tuple[tuple[int, ...], Any, Candidate] | None = None
    problem: NotInArchiveError | None = None
    for config in configs:
        words = {**kwargs, **config.all_kwargs(), "warmup": PROBE}
        candidate, error = tuner.fn.run(*args, **words)
        problem = problem or error
        if candidate is not None and (best is None or candidate.rank < best[0]):
            best = (candidate.rank, config, candidate)
    if best is not None:
        return best[1], (best[2], None)
    if kwargs.get("warmup") is PROBE:
        return None, (None, problem)
    raise problem or ValueError("no configs are left after pruning")


# ---- Triton's own ------------------------------------------------------------------------------


def _take_over(*, strict: bool, record: str | os.PathLike[str]) -> None:
    """Replace what launches in Triton's classes."""
    jit = importlib.import_module("triton.runtime.jit")
    autotuner = importlib.import_module("triton.runtime.autotuner")

    if not strict:
        _record_misses(record, jit, autotuner)
    jitted, tuned = jit.JITFunction.run, autotuner.Autotuner.run

    @functools.wraps(jitted)
    def run(self: Any, *args: Any, grid: Any, warmup: Any, **kwargs: Any) -> Any:
        if warmup is PROBE:
            return find(self, args, kwargs)
        try:
            return warm(self, args, kwargs) if warmup else launch(self, grid, args, kwargs)
        except NotInArchiveError:
            if strict:
                raise
        return jitted(self, *args, grid=grid, warmup=warmup, **kwargs)

    @functools.wraps(tuned)
    def run_tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return tuned_run(self, args, kwargs)
        except NotInArchiveError:
            if strict:
                raise
        return tuned(self, *args, **kwargs)

    def with_grid(self: Any, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid, warmup=False)

    jit.JITFunction.run, autotuner.Autotuner.run = run, run_tuned
    launcher_attribute.__set_name__(jit.JITFunction, _LAUNCHER)
    jit.JITFunction.aotc_launcher = launcher_attribute
    jit.JITFunction.__getitem__ = grid_subscript if strict else with_grid


def _record_misses(record: str | os.PathLike[str], jit: Any, autotuner: Any) -> None:
    """Let the recorder of `aotc record` write down what Triton compiles."""
    from aotc.package.record.hook import recorder  # noqa: PLC0415 - only those who serve have no need

    if recorder.FOLDER_VARIABLE not in os.environ:
        parts = os.path.join(os.path.abspath(record), "parts")  # noqa: PTH100, PTH118 - start-up time
        os.makedirs(parts, exist_ok=True)  # noqa: PTH103 - as above
        os.environ[recorder.FOLDER_VARIABLE] = parts
        recorder.wrap(jit, autotuner)
