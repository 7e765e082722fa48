"""`JITFunction`: a function whose launches are those of archives."""

from __future__ import annotations

import functools
import inspect

from aotc.triton.installation import PROBE, call_with_grid, find, launch, warm


class KernelInterface:
    """What can be launched as `kernel[grid](…)`."""

    def __getitem__(self, grid):
        return functools.partial(self.run, grid=grid, warmup=False)

    def warmup(self, *args, grid=None, **kwargs):
        """Load what such a launch takes."""
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def run(self, *args, grid, warmup, **kwargs):
        """Launch."""
        raise NotImplementedError


class KernelParam:
    """A parameter of a jitted function."""

    def __init__(self, num, parameter):
        self.num = num
        self.name = parameter.name
        self.default = parameter.default
        self.has_default = parameter.default is not inspect.Parameter.empty
        annotation = parameter.annotation
        self.annotation = "" if annotation is inspect.Parameter.empty else annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        self.is_constexpr = "constexpr" in text


class JITFunction(KernelInterface):
    """A function of Triton's language; it runs on GPUs only."""

    def __init__(self, fn, **options):
        self.fn = fn
        self.signature = inspect.signature(fn)
        self.params = [KernelParam(i, p) for i, p in enumerate(self.signature.parameters.values())]
        self.arg_names = [one.name for one in self.params]
        self.options = options
        self.pre_run_hooks = []
        functools.update_wrapper(self, fn)

    def add_pre_run_hook(self, hook):
        """Call a function before each launch, with what it passes."""
        self.pre_run_hooks.append(hook)
        self.__dict__.pop("aotc_call", None)

    def __getitem__(self, grid):
        try:
            return functools.partial(self.aotc_call, grid)
        except AttributeError:
            return call_with_grid(self, grid)

    def run(self, *args, grid, warmup=False, **kwargs):
        """Launch, or find or load what a launch takes."""
        if warmup is PROBE:
            return find(self, args, kwargs)
        if warmup:
            return warm(self, args, kwargs)
        return launch(self, grid, args, kwargs)

    def __call__(self, *args, **kwargs):
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")

    def __repr__(self):
        return f"JITFunction({self.fn.__module__}:{self.fn.__qualname__})"


def jit(fn=None, **options):
    """Make a function one that archives launch."""
    if fn is None:
        return lambda function: JITFunction(function, **options)
    return JITFunction(fn, **options)


def constexpr_function(fn):
    """Return the function: a host calls it as it is."""
    return fn
