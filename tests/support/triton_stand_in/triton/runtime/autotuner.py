"""`Autotuner`: the last config is the fastest."""

from __future__ import annotations


class Config:
    pre_hook = None

    def __init__(self, kwargs, num_warps=4):
        self.kwargs = kwargs
        self.num_warps = num_warps

    def all_kwargs(self):
        return {**self.kwargs, "num_warps": self.num_warps}


class Autotuner:
    def __init__(self, fn, configs, key):
        self.fn, self.configs, self.keys = fn, configs, key
        self.arg_names = fn.arg_names
        self.cache = {}

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def _bench(self, *args, config, **meta):
        self.fn.run(*args, **meta, **config.all_kwargs())
        return [1.0 / config.num_warps]

    def run(self, *args, **kwargs):
        key = str(args)
        if key not in self.cache:
            timings = {
                config: self._bench(*args, config=config, **kwargs) for config in self.configs
            }
            self.configs_timings = timings
            self.cache[key] = min(timings, key=timings.get)
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())


class Heuristics:
    def __init__(self, fn, arg_names, values):
        self.fn, self.arg_names, self.values = fn, arg_names, values

    def run(self, *args, **kwargs):
        for name, compute in self.values.items():
            kwargs[name] = compute({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return self.fn.run(*args, **kwargs)
