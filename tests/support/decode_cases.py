"""Paged caches for a batch of sequences, and references for decoding.

Pages are assigned in random order, and the last page of each sequence is partly filled. The rest
of it is finite and large, so that one token too many shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aotc.frontend.translate import translate
from aotc.ir.core import Kernel
from aotc.ir.types import BF16, ScalarType
from aotc.ir.verify import verify
from aotc.package.manifest import argument_type
from aotc.verify.interpreter.run import run
from tests.support.attention_reference import attend
from tests.support.references import Expected
from tests.support.tensors import Array, normal, wide

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
BEHIND = 50.0


def cdiv(value: int, by: int) -> int:
    """Return the quotient, rounded up."""
    return -(-value // by)


def translated(
    source: str, signature: Mapping[str, str], constants: Mapping[str, Any], **types: str
) -> Kernel:
    """Translate a kernel of `kernels/`, its signature being as a manifest has it."""
    file, _, function = source.partition(":")
    concrete = {
        name: argument_type.parse(text, tuple(types)).concrete(types, constants)
        for name, text in signature.items()
    }
    kernel_constants = {name: value for name, value in constants.items() if name != "ROWS"}
    kernel = translate(
        str(KERNELS / file), function, concrete, kernel_constants, target="sm_90a"
    ).kernel
    verify(kernel)
    return kernel


def interpret(kernel: Kernel, grid: tuple[int, ...], values: Mapping[str, Any]) -> None:
    """Run a kernel in the interpreter; outputs among the arrays are changed in place."""
    names = dict.fromkeys(info.argument for info in kernel.params)
    run(kernel, grid, [values[name] for name in names])


@dataclass
class PagedCache:
    """Keys and values of a batch, (pages, kv heads, page, features), and the page table."""

    keys: Array
    values: Array
    table: Array
    lengths: Array

    def of_sequence(self, tokens: Array, sequence: int) -> Array:
        """Return the keys or values of a sequence, (kv heads, length, features)."""
        pages = tokens[self.table[sequence]]
        together = pages.swapaxes(0, 1).reshape(tokens.shape[1], -1, tokens.shape[3])
        return together[:, : self.lengths[sequence]]


def paged_cache(
    rng: np.random.Generator,
    lengths: tuple[int, ...],
    n_kv_heads: int,
    page: int,
    features: tuple[int, int],
    scalar: ScalarType = BF16,
) -> PagedCache:
    """Return a cache of random data for sequences of these lengths."""
    max_pages = max(1, *(cdiv(length, page) for length in lengths))
    n_pages = len(lengths) * max_pages + 2
    table = rng.permutation(n_pages)[: len(lengths) * max_pages].reshape(len(lengths), max_pages)
    keys, values = (normal(rng, (n_pages, n_kv_heads, page, of), scalar) for of in features)
    for sequence, length in enumerate(lengths):
        for i, number in enumerate(table[sequence]):
            n_tokens = max(0, min(page, length - i * page))
            for tokens in (keys, values):
                tokens[number, :, n_tokens:] = np.float32(BEHIND)
    return PagedCache(keys, values, table.astype(np.int32), np.array(lengths, np.int32))


def decoded(
    q: Array,
    cache: PagedCache,
    scale: float,
    *,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
) -> Expected:
    """Return the reference output for (batch, heads, features) queries, rounded to bf16."""
    values, errors = [], []
    unit_scales = np.ones(cache.keys.shape[1])
    k_scale, v_scale = (
        unit_scales if scale_of_heads is None else wide(scale_of_heads)
        for scale_of_heads in (k_scale, v_scale)
    )
    for sequence in range(len(q)):
        group = q.shape[1] // cache.keys.shape[1]
        keys = wide(cache.of_sequence(cache.keys, sequence)) * k_scale[:, None, None]
        cached_values = wide(cache.of_sequence(cache.values, sequence)) * v_scale[:, None, None]
        keys, cached_values = (
            np.repeat(scale_of_heads, group, axis=0) for scale_of_heads in (keys, cached_values)
        )
        seen = np.ones((1, keys.shape[1]), np.bool_)
        output = attend(q[sequence][:, None], keys, cached_values, seen, scale, BF16)
        values.append(output.value[:, 0])
        errors.append(output.error[:, 0])
    value, error = np.stack(values), np.stack(errors)
    from tests.support.references import within

    return within(value, error + 2.0**-20 * np.abs(value), BF16)
