"""Launch a process's kernels from archives: patch Triton's launches, or use the stand-in.

Both ways share three functions: `launch` for jitted functions, `tuned_run` for autotuners, and the
launcher created at a function's first launch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aotc.runtime._native import Chain, GridSubscript
from aotc.triton.archives import Archives
from aotc.triton.heuristic import Program, program_of
from aotc.triton.launch import PROBE, Candidate, Launcher
from aotc.triton.specialization import NotInArchiveError
from aotc.triton.structured import StructuredLauncher
from aotc.triton.torch_hook import hide_triton
from aotc.triton.tuning import Tuning, probe

_STAND_IN = os.path.join(os.path.dirname(__file__), "stand_in")  # noqa: PTH118, PTH120 - start-up time
_LAUNCHER, _CHAIN = "aotc_launcher", "aotc_chain"
# Attribute of a decorator class's `run`: its kind of step, so launches can bypass it.
_STEP = "aotc_step"
TUNES, COMPUTES = "tunes", "computes"


class _Installed(NamedTuple):
    archives: Archives
    tuning: Tuning


_installed: list[_Installed] = []


def _the_installed() -> _Installed:
    if not _installed:
        raise ValueError("no archives are installed: call aotc.triton.install in this process")
    return _installed[0]


def install(
    paths: Sequence[str | os.PathLike[str]],
    *,
    strict: bool,
    stand_in: bool | None,
    record: str | os.PathLike[str],
    driver: str | None,
) -> None:
    """Implement `aotc.triton.install`."""
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
        hide_triton()
    _installed.append(_Installed(archives, Tuning(archives, strict)))


def _launcher_of(function: Any) -> Launcher | StructuredLauncher:
    """Create the launcher of a jitted function.

    Raises: ValueError if no archives are installed.
    """
    constexprs = frozenset(
        parameter.name for parameter in function.params if parameter.is_constexpr
    )
    hooks = getattr(function, "pre_run_hooks", [])
    archives = _the_installed().archives
    is_structured = archives.is_structured(function)
    return (StructuredLauncher if is_structured else Launcher)(
        function, constexprs, archives, hooks
    )


# Attributes for a class of jitted functions: `kernel.aotc_launcher`, created on first access, and
# `kernel[grid]`, bypassing `run`.
launcher_attribute = functools.cached_property(_launcher_of)
grid_subscript = GridSubscript(_LAUNCHER)


def step(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a class's `run` with its kind: it `TUNES`, or `COMPUTES` the constants in `values`."""

    def mark(run: Callable[..., Any]) -> Callable[..., Any]:
        setattr(run, _STEP, kind)
        return run

    return mark


class _ByRun:
    """`decorated[grid]` of a function with tuples or descriptors: calls its `run`."""

    def __init__(self, outermost: Any) -> None:
        self._run = outermost.run

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self._run, grid=grid, warmup=False)


def _with_programs(
    constants: Sequence[tuple[str, Any]], names: Sequence[str]
) -> tuple[tuple[str, Any, Program | None], ...]:
    return tuple((name, function, program_of(function, names)) for name, function in constants)


def _chain_of(outermost: Any) -> Chain | _ByRun:
    """Create the chain launching a function through its decorators.

    For decorators of an unknown class, such as a library's subclass with its own `run`, the chain
    calls `run`.

    Raises: ValueError if no archives are installed.
    """
    steps: list[Any] | None = []
    tuner: Any = None
    current: Any = outermost
    while not hasattr(current.__class__, _LAUNCHER):  # a jitted function is the innermost
        kind = getattr(current.__class__.run, _STEP, None)
        if steps is not None and kind == COMPUTES:
            steps.append([*current.values.items()])
        elif steps is not None and kind == TUNES and tuner is None and not steps:
            steps.append(None)
            tuner = current
        else:
            steps = None
        current = current.fn
    launcher = current.aotc_launcher
    names = {name for constants in steps or () for name, _ in constants or ()}
    if not isinstance(launcher, Launcher):
        return _ByRun(outermost)
    if steps is not None and not names <= {*launcher.names}:
        steps = None  # `run` reports the unknown constant
    tuning = _the_installed().tuning
    keys: frozenset[str] = frozenset() if tuner is None else tuning.keys(tuner, launcher.kernels)
    chosen = functools.partial(tuning.chosen, tuner)
    programs = None
    if steps is not None:
        programs = tuple(
            step_constants and _with_programs(step_constants, launcher.names)
            for step_constants in steps
        )
    return Chain(launcher, programs, tuner, keys, outermost.run, chosen)


# Likewise for decorator classes: `tuner.aotc_chain` and `tuner[grid]`.
chain_attribute = functools.cached_property(_chain_of)
chain_subscript = GridSubscript(_CHAIN)


def launch(function: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Launch a jitted function, after its hooks.

    Raises: NotInArchiveError if no archive has it.
    """
    function.aotc_launcher[grid](*args, **kwargs)


def warm(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Load the kernels for a launch, without launching.

    Raises: NotInArchiveError if no archive has it.
    """
    launcher, bound, options = function.aotc_launcher.bind(args, kwargs)
    if not launcher.candidates(bound, options):
        raise launcher.miss(bound, options, "nothing was built with these constants and options")


def find(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Candidate | None, NotInArchiveError | None]:
    """Return the kernel for a launch, or None and the error."""
    launcher, bound, options = function.aotc_launcher.bind(args, kwargs)
    candidate = launcher.probe(bound, options)
    if candidate is not None:
        return candidate, None
    return None, launcher.miss(bound, options, "no kernel of its archive takes these arguments")


def tuned_run(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Launch an autotuned function with the archive's config; time nothing.

    Raises: NotInArchiveError if the archive has none of the configs; ValueError if no archives are
        installed.
    """
    return _the_installed().tuning.run(tuner, args, kwargs)


def has_config(tuner: Any, config: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether archives have an autotuner's config for arguments."""
    return probe(tuner, config, args, kwargs)[0] is not None


# ---- Triton's own ------------------------------------------------------------------------------


def _take_over(*, strict: bool, record: str | os.PathLike[str]) -> None:
    """Patch the launching methods of Triton's classes."""
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

    def warm_tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the config for a launch; Triton's own `warmup` compiles all configs."""
        return [self.run(*args, warmup=True, **kwargs)]

    jit.JITFunction.run, autotuner.Autotuner.run = run, run_tuned
    if strict:
        autotuner.Autotuner.warmup = warm_tuned
        step(TUNES)(run_tuned)
        step(COMPUTES)(autotuner.Heuristics.run)
        chain_attribute.__set_name__(autotuner.Autotuner, _CHAIN)
        for decorator in (autotuner.Autotuner, autotuner.Heuristics):
            decorator.aotc_chain, decorator.__getitem__ = chain_attribute, chain_subscript
    launcher_attribute.__set_name__(jit.JITFunction, _LAUNCHER)
    jit.JITFunction.aotc_launcher = launcher_attribute
    jit.JITFunction.__getitem__ = grid_subscript if strict else with_grid


def _record_misses(record: str | os.PathLike[str], jit: Any, autotuner: Any) -> None:
    """Record Triton's compiles with the recorder of `aotc record`."""
    from aotc.package.record.hook import recorder  # noqa: PLC0415 - only those who serve have no need

    if recorder.FOLDER_VARIABLE not in os.environ:
        parts = os.path.join(os.path.abspath(record), "parts")  # noqa: PTH100, PTH118 - start-up time
        os.makedirs(parts, exist_ok=True)  # noqa: PTH103 - as above
        os.environ[recorder.FOLDER_VARIABLE] = parts
        recorder.wrap(jit, autotuner)
