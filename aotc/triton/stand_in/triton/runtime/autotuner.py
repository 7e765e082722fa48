"""`autotune` and `heuristics`: the config that the archive has; constants as functions compute them."""

from __future__ import annotations

from aotc.triton.installation import tuned_run

from .jit import KernelInterface


class Config:
    """A config of a kernel: constants and options."""

    def __init__(
        self,
        kwargs,
        num_warps=4,
        num_stages=3,
        num_ctas=1,
        maxnreg=None,
        pre_hook=None,
        ir_override=None,
        **_others,
    ):
        self.kwargs = kwargs
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.ir_override = ir_override

    def all_kwargs(self):
        """Return constants and options together."""
        names = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
        options = {name: getattr(self, name) for name in names}
        return {**self.kwargs, **{k: v for k, v in options.items() if v is not None}}

    def __str__(self):
        return ", ".join(f"{name}: {value}" for name, value in self.all_kwargs().items())

    def __eq__(self, other):
        return (self.all_kwargs(), self.pre_hook) == (other.all_kwargs(), other.pre_hook)

    def __hash__(self):
        return hash((*self.all_kwargs().items(), self.pre_hook))


class Autotuner(KernelInterface):
    """A kernel that has several configs, of which the archive has those that were chosen."""

    def __init__(self, fn, arg_names, configs, key, prune_configs_by=None, **options):
        self.fn = fn
        self.arg_names = arg_names
        self.configs = configs or [Config({})]
        self.keys = key
        self.options = options
        self.early_config_prune = (prune_configs_by or {}).get("early_config_prune")
        self.cache = {}
        self.base_fn = fn
        while hasattr(self.base_fn, "fn"):
            self.base_fn = self.base_fn.fn

    def run(self, *args, **kwargs):
        """Launch with the config that the archive has."""
        return tuned_run(self, args, kwargs)


class Heuristics(KernelInterface):
    """A kernel some of whose constants are computed from its arguments."""

    def __init__(self, fn, arg_names, values):
        self.fn = fn
        self.arg_names = arg_names
        self.values = values

    def run(self, *args, **kwargs):
        """Compute the constants, and launch."""
        for name, compute in self.values.items():
            kwargs[name] = compute({**dict(zip(self.arg_names, args)), **kwargs})  # noqa: B905
        return self.fn.run(*args, **kwargs)


def autotune(configs, key, prune_configs_by=None, **options):
    """Return a decorator for a kernel with several configs."""
    return lambda fn: Autotuner(fn, fn.arg_names, configs, key, prune_configs_by, **options)


def heuristics(values):
    """Return a decorator for a kernel with constants that are computed."""
    return lambda fn: Heuristics(fn, fn.arg_names, values)
