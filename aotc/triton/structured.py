"""Launches that pass tuples, each item an argument of its own as in archives, and host descriptors.

Of the argument `shape` a manifest's items are `shape_0` and `shape_1`, or `shape_rows` and `shape_cols` of a
named tuple; so a launcher for each structure of tuples has these for parameters. A kernel is built for the
blocks of its descriptors, so there is a launcher for each of these, too. Binding is done in Python: such a
launch costs some microseconds more than one without.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aotc.triton.archives import Archives
from aotc.triton.launch import Launcher
from aotc.triton.specialization import Described, is_descriptor, is_function, items_of


class StructuredLauncher:
    """A function that has kernels with tuples or descriptors: `launcher[grid](*args, **kwargs)`."""

    def __init__(
        self,
        function: Any,
        constexprs: frozenset[str],
        archives: Archives,
        hooks: list[Callable[..., object]],
    ) -> None:
        self._function, self._archives, self._hooks = function, archives, hooks
        self._plain = Launcher(function, constexprs, archives, hooks)
        self._flat: dict[str, Launcher] = {}
        self.names, self._constexprs = self._plain.names, constexprs

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> None:
        for hook in self._hooks:
            hook(*args, **kwargs)
        passed, words = self._plain.bind(args, kwargs)[1:]
        if callable(grid):
            grid = grid(passed)
        launcher, flat = self._flattened(passed)
        launcher[grid](
            **flat, **{name: option for name, option in words.items() if option is not None}
        )

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Launcher, dict[str, Any], dict[str, Any]]:
        """Return the launcher of a launch's structure, and what `Launcher.bind` returns of it."""
        _, passed, options = self._plain.bind(args, kwargs)
        return *self._flattened(passed), options

    def _flattened(self, passed: Mapping[str, Any]) -> tuple[Launcher, dict[str, Any]]:
        """Return the launcher of arguments, and these with the items of tuples in their place."""
        flat: dict[str, Any] = {}
        nested: dict[str, Any] = {}
        for name, value in passed.items():
            is_whole = name in self._constexprs
            nested[name] = name if is_whole else _keys(name, value)
            flat.update([(name, value)] if is_whole else _leaves(name, value))
        blocks = {
            name: argument.block
            for name, argument in flat.items()
            if isinstance(argument, Described)
        }
        # Functions are constants: a kernel is built for one.
        functions = sorted(name for name, argument in flat.items() if is_function(argument))
        key = repr((nested, blocks, functions))
        launcher = self._flat.get(key)
        if launcher is None:
            parameters = self._plain.signature.parameters
            empty = inspect.Parameter("_", inspect.Parameter.KEYWORD_ONLY)
            flattened = inspect.Signature(
                [
                    parameters.get(argument_name, empty).replace(
                        name=argument_name, kind=inspect.Parameter.KEYWORD_ONLY
                    )
                    for argument_name in flat
                ]
            )
            constexprs = self._constexprs.union(functions)
            launcher = self._flat[key] = Launcher(
                self._function, constexprs, self._archives, [], flattened, nested
            )
        return launcher, flat


def _items(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return the items of a tuple and what they are called, None of anything else."""
    items = items_of(value)
    if items is None:
        return None
    labels = getattr(value, "_fields", None) or range(len(items))
    return [(f"{name}_{label}", item) for label, item in zip(labels, items)]  # noqa: B905 - as many


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an argument, as a launch passes it, or the items of a tuple as arguments.

    An empty tuple in another is an argument of its own, which no kernel of an archive has.
    """
    items = _items(name, value)
    for pair in () if items is None else items:
        yield from [pair] if items_of(pair[1]) == () else _leaves(*pair)
    if items is None:
        yield name, Described(value) if is_descriptor(value) else value


def _keys(name: str, value: Any) -> Any:
    """Return a tuple of the same structure whose items are what `_leaves` calls them."""
    items = _items(name, value)
    if items is None:
        return name
    make: Callable[[list[Any]], Any] = getattr(value, "_make", tuple)
    return make([_keys(*pair) for pair in items])
