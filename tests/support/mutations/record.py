"""Bugs in a variant's record: guards, promises, grid, threads, memory, computed parameters, maps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from aotc.ir.expression import Binary, Integer
from aotc.package.archive.index import CubinParam, Guard, TensorMap, Variant
from aotc.package.builder import assemble
from tests.support.mutations.plant import Mutation, wrapping

Plant = Callable[[], AbstractContextManager[None]]


def _changed(part: str, change: Callable[[Any], Any]) -> Plant:
    """Return a plant: change the record field made by a function of `assemble`."""
    return wrapping(assemble, part, lambda make: lambda *given: change(make(*given)))


def _variant(change: Callable[[Variant], dict[str, Any]]) -> Plant:
    return _changed("_variant", lambda variant: replace(variant, **change(variant)))


def _each(part: str, change: Callable[[Any], Any]) -> Plant:
    return _changed(part, lambda items: tuple(map(change, items)))


def _first_half(guard: Guard) -> Guard:
    match guard.expression:
        case Binary("or", left, _):
            return replace(guard, expression=left)
        case _:
            return guard


def _one_less(variant: Variant) -> dict[str, Any]:
    first, *rest = variant.grid
    return {"grid": (Binary("-", first, Integer(1)), *rest)}


def _one_byte_less(variant: Variant) -> dict[str, Any]:
    whole = variant.scratch_bytes
    return {} if whole is None else {"scratch_bytes": Binary("-", whole, Integer(1))}


def _of_the_first(params: tuple[CubinParam, ...]) -> tuple[CubinParam, ...]:
    computed = [param for param in params if param.source == "expression"]
    return tuple(
        replace(param, expression=computed[0].expression) if param in computed else param
        for param in params
    )


def _without_promise(guard: Guard) -> Guard:
    return replace(guard, expression=Integer(1)) if guard.is_promise else guard


def _in_bytes(tensor_map: TensorMap) -> TensorMap:
    return replace(tensor_map, data_type=0)


MUTATIONS = tuple(
    Mutation(name, stands_for, kernel, plant, "sm_90a")
    for name, stands_for, kernel, plant in (
        (
            "guards of a variant are lost",
            "the record of a variant does not say which must hold",
            "negate_rows",
            _variant(lambda _: {"guards": ()}),
        ),
        (
            "half of a guard is lost",
            "what stands behind an `or` is left out",
            "negate_rows",
            _each("guards_of", _first_half),
        ),
        (
            "a promise is lost",
            "the launcher does not ask for what the signature promises",
            "add_aligned",
            _each("guards_of", _without_promise),
        ),
        (
            "axes of the grid swapped",
            "outermost first is taken for innermost first",
            "turn",
            _variant(lambda variant: {"grid": variant.grid[::-1]}),
        ),
        (
            "a grid of one program less",
            "a count is taken for the last index",
            "turn",
            _variant(_one_less),
        ),
        (
            "half of the threads",
            "threads are those of another config",
            "turn",
            _variant(lambda variant: {"num_threads": variant.num_threads // 2}),
        ),
        (
            "no cluster",
            "the launcher is not told that a program has several CTAs",
            "spread_rows",
            _variant(lambda _: {"cluster": (1, 1, 1)}),
        ),
        (
            "no dynamic shared memory",
            "all of it is taken for static",
            "turn",
            _variant(lambda _: {"dynamic_shared_bytes": 0}),
        ),
        (
            "every launch is cooperative",
            "a flag of another variant",
            "turn",
            _variant(lambda _: {"cooperative": True}),
        ),
        (
            "scratch memory of one byte less",
            "a size is taken for the last index",
            "add_groups",
            _variant(_one_byte_less),
        ),
        (
            "a computed parameter is the first one",
            "expressions are counted within their parameter",
            "add_corners",
            _changed("_cubin_params", _of_the_first),
        ),
        (
            "elements of a map are bytes",
            "its type is that of what is copied as bits",
            "add_corners",
            _each("_tensor_maps", _in_bytes),
        ),
    )
)
