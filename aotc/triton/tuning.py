"""Launch autotuned functions from archives with the recorded config; time nothing.

An archive has the choices of each function's autotuner, by key and tensor dtypes. Configs are
restricted to those left by `early_config_prune` and built for the arguments. Among them, in order:

1. the choice recorded for this key, else for the nearest key;
2. without records, the choice of the archive's selection;
3. without a selection, the first config in the manifest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aotc.runtime import AotcError
from aotc.triton.archives import ArchivedKernel, Archives, TunedConfig
from aotc.triton.launch import PROBE, Candidate, common_config
from aotc.triton.specialization import (
    NotInArchiveError,
    constant,
    dtype_of,
    is_descriptor,
    is_pointer,
)

_KNOWN, _PLACES = "_aotc_configs", "_aotc_places"
_MAX_KNOWN = 4096
Found = tuple[Candidate | None, NotInArchiveError | None]


class Tuning:
    """Autotuners' choices from archives; `strict` as for `aotc.triton.install`."""

    def __init__(self, archives: Archives, strict: bool) -> None:  # noqa: FBT001 - as `install`
        self._archives = archives
        self._strict = strict

    def run(self, tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Launch an autotuned function.

        Raises: NotInArchiveError if none of its configs was built for the arguments; or, unless
            `strict`, if something was recorded, but not for these values of the key.
        """
        if kwargs.get("warmup") is PROBE:
            return self._choose(tuner, args, kwargs)[1]
        cache = tuner.__dict__.setdefault(_KNOWN, {})
        if len(cache) >= _MAX_KNOWN:
            cache.clear()
        quick = _quick_key(tuner, args, kwargs)
        key, choice = _find(cache, quick, args, kwargs)
        if choice is None and quick in cache:
            config = cache[quick].config_for(tuner, args, kwargs)
            if config is not None:
                choice = cache[key] = (config, config.all_kwargs())
        if choice is not None:
            try:
                return _run_with(tuner, choice, args, kwargs)
            except NotInArchiveError:
                pass  # arguments outside the key differ
        config, _, selected = self._choose(tuner, args, kwargs)
        key = quick
        if selected is not None:
            cache[quick] = selected
            key = (quick, _integers(args, kwargs))
        cache[key] = (config, config.all_kwargs())
        return _run_with(tuner, cache[key], args, kwargs)

    @staticmethod
    def chosen(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the cached config and settings for arguments, None with a pre-hook."""
        cache = tuner.__dict__.get(_KNOWN, {})
        _, choice = _find(cache, _quick_key(tuner, args, kwargs), args, kwargs)
        return None if choice is None or choice[0].pre_hook is not None else choice

    def keys(self, tuner: Any, kernels: Sequence[ArchivedKernel]) -> frozenset[str]:
        """Return the arguments deciding on the config of a launch."""
        names = frozenset(tuner.keys)
        if self._archives.tuned(_function_of(tuner)):
            return names
        return names.union(
            param.name
            for kernel in kernels
            if kernel.info.num_selections
            for param in kernel.info.params
            if param.kind == "scalar"
        )

    def _choose(
        self, tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, Found, _Selected | None]:
        """Return the config, its candidate or error, and its selection, if any.

        Raises: as `run`, unless probing.
        """
        configs = _configs(tuner, args, kwargs)
        for tuned in self._recorded(tuner, args, kwargs):
            config = next(
                (
                    candidate_config
                    for candidate_config in configs
                    if _has(candidate_config, tuned.config)
                ),
                None,
            )
            candidate = None if config is None else probe(tuner, config, args, kwargs)[0]
            if candidate is not None:
                return config, (candidate, None), None
        problem: NotInArchiveError | None = None
        fitting: list[tuple[Any, Candidate]] = []
        for config in configs:
            candidate, error = probe(tuner, config, args, kwargs)
            problem = problem or error
            if candidate is not None:
                fitting.append((config, candidate))
        if fitting:
            config, candidate, selected = _selected(fitting)
            return config, (candidate, None), selected
        if kwargs.get("warmup") is PROBE or problem is None:
            return None, (None, problem), None
        raise problem

    def _recorded(
        self, tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Sequence[TunedConfig]:
        """Return an autotuner's recorded choices, the nearest key first.

        Raises: NotInArchiveError unless `strict`, if the nearest is another key.
        """
        function = _function_of(tuner)
        recorded = self._archives.tuned(function) if len(tuner.configs) > 1 or tuner.cache else ()
        if not recorded:
            return ()
        passed = {**dict(zip(tuner.arg_names, args)), **kwargs}  # noqa: B905 - fewer may be passed
        by_parameter = {name: passed[name] for name in tuner.arg_names if name in passed}
        key = {name: constant(by_parameter[name]) for name in tuner.keys if name in by_parameter}
        dtypes = {
            name: dtype_of(argument)
            for name, argument in by_parameter.items()
            if hasattr(argument, "dtype")
        }
        ordered = sorted(recorded, key=lambda tuned: _distance(tuned, key, dtypes))
        if not self._strict and _distance(ordered[0], key, dtypes) != (0, 0.0):
            values = ", ".join(f"{name}={value!r}" for name, value in key.items())
            raise NotInArchiveError(f"{function.fn.__qualname__} was not tuned for {values}")
        return ordered


def _configs(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the configs left by pruning; `perf_model` is not used."""
    # A subclass may keep configs of its own in the cache.
    configs = [
        *tuner.configs,
        *(config for config in tuner.cache.values() if config not in tuner.configs),
    ]
    prune = getattr(tuner, "early_config_prune", None)
    if prune is None:
        return configs
    tuner.nargs = dict(zip(tuner.arg_names, args))  # noqa: B905 - as Triton
    try:
        left = [*prune(configs, tuner.nargs, **kwargs)]
    finally:
        tuner.nargs = None  # tensors are the caller's
    if not left:
        raise ValueError("expected early_config_prune to leave at least one config, got none")
    return left


def probe(tuner: Any, config: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Found:
    """Find the kernel for a config; pre-hooks set the blocks of descriptors."""
    if config.pre_hook is not None and any(map(is_descriptor, (*args, *kwargs.values()))):
        passed = dict(zip(tuner.arg_names, args))  # noqa: B905 - fewer are passed than there are
        config.pre_hook({**passed, **kwargs, **config.all_kwargs()})
    return tuner.fn.run(*args, **{**kwargs, **config.all_kwargs(), "warmup": PROBE})


class _Selected(NamedTuple):
    """An autotuner's configs left to a kernel's selection, with their built configs."""

    kernel: ArchivedKernel
    passed: tuple[str, ...]
    choices: Mapping[str, Any]
    configs: tuple[tuple[Any, Mapping[str, Any]], ...]
    common: dict[str, Any]

    def select(self, arguments: Sequence[Any]) -> Any:
        """Return the selected config for arguments, None if not among `configs`.

        Raises: AotcError if the kernel refuses the arguments.
        """
        chosen = self.kernel.kernel.select(
            arguments, grid=1, config=self.common, choices=self.choices
        )
        built = self.kernel.info.variants[chosen.variant].config
        return next((config for config, settings in self.configs if settings == built), None)

    def config_for(self, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the config for new argument values, None if the set of configs may change."""
        is_same = getattr(tuner, "early_config_prune", None) is None
        is_jitted = hasattr(tuner.fn.__class__, "aotc_launcher")  # no heuristics computing choices
        if not is_same or not is_jitted or any(config.pre_hook for config, _ in self.configs):
            return None
        passed = {**dict(zip(tuner.arg_names, args)), **kwargs}  # noqa: B905 - fewer may be passed
        try:
            return self.select([passed[name] for name in self.passed])
        except (KeyError, AotcError):
            return None


def _selected(
    fitting: Sequence[tuple[Any, Candidate]],
) -> tuple[Any, Candidate, _Selected | None]:
    """Return the config chosen by the archive's selection, else the best by rank."""
    config, best = min(fitting, key=lambda pair: pair[1].rank)
    if len(fitting) == 1 or not best.kernel.info.num_selections:
        return config, best, None
    alike = [
        (member, candidate)
        for member, candidate in fitting
        if candidate.kernel.order == best.kernel.order
        if (candidate.passed, candidate.choices) == (best.passed, best.choices)
    ]
    built = [candidate.config or {} for _, candidate in alike]
    selected = _Selected(
        best.kernel,
        best.passed,
        best.choices,
        tuple((member, candidate.config or {}) for member, candidate in alike),
        common_config(built),
    )
    selected_config = selected.select(best.arguments)
    pair = next((pair for pair in alike if pair[0] is selected_config), (config, best))
    return *pair, selected


def _find(
    cache: Mapping[Any, Any], quick: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return a launch's cache key, and the cached config with settings, if any."""
    choice = cache.get(quick)
    if not isinstance(choice, _Selected):
        return quick, choice
    key = (quick, _integers(args, kwargs))
    return key, cache.get(key)


def _integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the integers of a launch, the input of a selection."""
    named = sorted(
        (name, argument) for name, argument in kwargs.items() if isinstance(argument, int)
    )
    return (*(argument if isinstance(argument, int) else None for argument in args), *named)


def _run_with(
    tuner: Any, choice: tuple[Any, dict[str, Any]], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    config, settings = choice
    if config.pre_hook is not None:
        passed = dict(zip(tuner.arg_names, args))  # noqa: B905 - fewer are passed than there are
        config.pre_hook({**passed, **kwargs, **settings})
    tuner.best_config = config
    words = {**kwargs, **settings}
    if words.get("warmup", True) is not False:
        return tuner.fn.run(*args, **words)
    del words["warmup"]
    return tuner.fn[words.pop("grid")](*args, **words)


def _quick_key(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a cache key for a config: the values of the tuner's key, and all dtypes.

    It outlives the launch, so it holds no tensors, only their dtypes.
    """
    if len(tuner.configs) == 1:
        return None
    positions = tuner.__dict__.get(_PLACES)
    if positions is None:
        names = list(tuner.arg_names)
        positions = [(name, names.index(name)) for name in tuner.keys if name in names]
        tuner.__dict__[_PLACES] = positions
    key_values = [
        args[index] if index < len(args) else kwargs.get(name) for name, index in positions
    ]
    values = [None if is_pointer(argument) else argument for argument in key_values]
    dtypes = [getattr(argument, "dtype", None) for argument in (*args, *kwargs.values())]
    return (*values, *dtypes)


def _function_of(tuner: Any) -> Any:
    """Return the jitted function of an autotuner."""
    function = tuner.fn
    while not hasattr(function.fn, "__code__"):
        function = function.fn
    return function


def _has(config: Any, recorded: Mapping[str, Any]) -> bool:
    """Return whether a config has all recorded settings."""
    settings = config.all_kwargs()
    return all(name in settings and settings[name] == value for name, value in recorded.items())


def _distance(
    tuned: TunedConfig, key: Mapping[str, Any], dtypes: Mapping[str, str]
) -> tuple[int, float]:
    """Return the number of differing non-numeric values, and the log distance of the numbers."""
    num_other = sum(tuned.dtypes.get(name) != dtypes.get(name) for name in {*tuned.dtypes, *dtypes})
    factor = 0.0
    for name in {*tuned.key, *key}:
        tuned_value, launch_value = tuned.key.get(name), key.get(name)
        numbers = [
            _magnitude(number) for number in (tuned_value, launch_value) if _is_number(number)
        ]
        if len(numbers) == 2:
            factor += abs(numbers[0] - numbers[1])
        else:
            num_other += tuned_value != launch_value
    return num_other, factor


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _magnitude(number: Any) -> float:
    return math.copysign(math.log2(1 + abs(number)), number)
