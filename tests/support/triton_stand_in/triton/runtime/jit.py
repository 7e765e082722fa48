"""`JITFunction`: a launch specialises its arguments and calls nothing."""

from __future__ import annotations

import inspect
from types import SimpleNamespace


class JITFunction:
    def __init__(self, fn):
        self.fn = fn
        self.arg_names = list(inspect.signature(fn).parameters)
        self.params = [
            SimpleNamespace(name=name, is_constexpr="constexpr" in str(parameter.annotation))
            for name, parameter in inspect.signature(fn).parameters.items()
        ]
        self.kernels = {}

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args, grid, warmup, **kwargs):
        bound = dict(zip(self.arg_names, args, strict=False))
        bound |= {name: kwargs[name] for name in self.arg_names if name in kwargs}
        options = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
        options |= {"launch_cooperative_grid": False, "default_dot_input_precision": "tf32"}
        options |= {name: value for name, value in kwargs.items() if name in options}
        if callable(grid):
            grid = grid(bound)
        signature, constants, attrs = {}, {}, {}
        for index, param in enumerate(self.params):
            value = bound[param.name]
            if param.is_constexpr or value is None or value == 1:
                signature[param.name], constants[index,] = "constexpr", value
                continue
            if isinstance(value, tuple):
                signature[param.name] = ("i32",) * len(value)
                continue
            signature[param.name] = value if isinstance(value, str) else "i32"
            if isinstance(value, str) or value % 16 == 0:
                attrs[index,] = [["tt.divisibility", 16]]
        key = str((signature, constants, attrs, options))
        target = SimpleNamespace(backend="cuda", arch=90)
        kernel = SimpleNamespace(
            src=SimpleNamespace(signature=signature, constants=constants, attrs=attrs),
            metadata=SimpleNamespace(target=target, **options),
        )
        return self.kernels.setdefault(key, kernel)
