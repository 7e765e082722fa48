"""`autotune` with the archive's configs, and `heuristics` with constants computed by functions."""

from __future__ import annotations

from typing import Any

from aotc.runtime._native import Chained
from aotc.triton.installation import COMPUTES, TUNES, chain_attribute, has_config, step, tuned_run

from .errors import OutOfResources, PTXASError
from .jit import KernelInterface

__all__ = [
    "Autotuner",
    "Config",
    "Heuristics",
    "OutOfResources",
    "PTXASError",
    "autotune",
    "heuristics",
]


class Config:
    """A config of a kernel: constants and options."""

    def __init__(
        self,
        kwargs: Any,
        num_warps: Any = 4,
        num_stages: Any = 3,
        num_ctas: Any = 1,
        maxnreg: Any = None,
        pre_hook: Any = None,
        ir_override: Any = None,
        **_others: Any,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.ir_override = ir_override

    def all_kwargs(self) -> Any:
        """Return constants and options together."""
        names = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
        options = {name: getattr(self, name) for name in names}
        return {**self.kwargs, **{k: v for k, v in options.items() if v is not None}}

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self.all_kwargs().items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return False
        return (self.all_kwargs(), self.pre_hook) == (other.all_kwargs(), other.pre_hook)

    def __hash__(self) -> int:
        return hash((*self.all_kwargs().items(), self.pre_hook))


class Autotuner(Chained, KernelInterface):
    """A kernel with several configs; the archive has the chosen ones."""

    def __init__(
        self,
        fn: Any,
        arg_names: Any,
        configs: Any,
        key: Any,
        reset_to_zero: Any = None,
        restore_value: Any = None,
        pre_hook: Any = None,
        post_hook: Any = None,
        prune_configs_by: Any = None,
        *timing: Any,
        **options: Any,
    ) -> None:
        del timing  # `warmup`, `rep` and others, by position: nothing is timed
        self.fn = fn
        self.arg_names = arg_names
        self.configs = configs or [Config({})]
        self.keys = key
        # Used only by trials, and there are none.
        self.reset_to_zero, self.restore_value = reset_to_zero, restore_value
        self.pre_hook, self.post_hook = pre_hook, post_hook
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        self.options = options
        prune: dict[str, Any] = prune_configs_by or {}
        self.early_config_prune: Any = prune.get("early_config_prune")
        self.perf_model, self.configs_top_k = prune.get("perf_model"), prune.get("top_k", 1.0)
        self.cache: dict[Any, Any] = {}
        self.nargs: Any = None
        self.base_fn = fn
        while hasattr(self.base_fn, "fn"):
            self.base_fn = self.base_fn.fn

    aotc_chain = chain_attribute

    @step(TUNES)
    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch with the archive's config."""
        return tuned_run(self, args, kwargs)

    def prune_configs(self, kwargs: Any) -> Any:
        """Return the configs left by pruning, for subclasses with their own tuning."""
        if self.early_config_prune is None:
            return self.configs
        return self.early_config_prune(self.configs, self.nargs, **kwargs)

    def _bench(self, *args: Any, config: Any, **meta: Any) -> list[float]:
        """Return a nominal time for an archived config, infinity for others; launch nothing."""
        return [1.0 if has_config(self, config, args, meta) else float("inf")] * 3

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        """Load the kernels for a launch."""
        return [super().warmup(*args, **kwargs)]


class Heuristics(Chained, KernelInterface):
    """A kernel with constants computed from its arguments."""

    def __init__(self, fn: Any, arg_names: Any, values: Any) -> None:
        self.fn = fn
        self.arg_names = arg_names
        self.values = values

    aotc_chain = chain_attribute

    @step(COMPUTES)
    def run(self, *args: Any, grid: Any, warmup: Any = False, **kwargs: Any) -> Any:
        """Compute the constants in order (each may use the earlier ones), and launch."""
        passed = dict(zip(self.arg_names, args))  # noqa: B905 - fewer may be passed
        passed.update(kwargs)
        for name, compute in self.values.items():
            passed[name] = kwargs[name] = compute(passed)
        if warmup is False:
            return self.fn[grid](*args, **kwargs)
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)


def autotune(configs: Any, key: Any, prune_configs_by: Any = None, **options: Any) -> Any:
    """Return a decorator for a kernel with several configs."""

    def decorate(fn: Any) -> Autotuner:
        words = {"prune_configs_by": prune_configs_by, **options}
        return Autotuner(fn, fn.arg_names, configs, key, **words)

    return decorate


def heuristics(values: Any) -> Any:
    """Return a decorator for a kernel with computed constants."""

    def decorate(fn: Any) -> Heuristics:
        return Heuristics(fn, fn.arg_names, values)

    return decorate
