"""Rows of tokens by their experts: in whole blocks, or in blocks of about equal size."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.harness.operands import Wide


class Padded(NamedTuple):
    """Row numbers by expert, filled up to whole blocks, and the expert of each block."""

    rows: Wide
    experts: list[int]
    num_rows: int


class Ordered(NamedTuple):
    """Row numbers in the order of blocks; where blocks start, their rows and their experts.

    Row *r* stands at `places[r]`. A launch has room for the largest possible number of blocks and rows.
    """

    rows: Wide
    places: Wide
    starts: list[int]
    counts: list[int]
    experts: list[int]
    num_blocks: int


@dataclass(frozen=True)
class Routing:
    """Tokens that go to some experts each, at random."""

    tokens: int
    each: int
    num_experts: int

    @property
    def num_rows(self) -> int:
        """Rows of all experts; their numbers are below it, and it fills up."""
        return self.tokens * self.each

    @functools.cached_property
    def chosen(self) -> Wide:
        """The expert of each row, tokens in order."""
        scores = np.random.default_rng(0).random((self.tokens, self.num_experts))
        return np.argsort(scores, 1)[:, : self.each].ravel()

    def rows_of(self, expert: int) -> Wide:
        """Return the rows of an expert."""
        return np.flatnonzero(self.chosen == expert)

    def most_blocks(self, block: int) -> int:
        """Return how many blocks of up to so many rows there can be."""
        return self.num_rows // block + self.num_experts

    def padded(self, block: int) -> Padded:
        """Return rows in whole blocks."""
        numbers: list[Wide] = []
        experts: list[int] = []
        for expert in range(self.num_experts):
            rows = self.rows_of(expert)
            numbers += [rows, np.full(-len(rows) % block, self.num_rows)]
            experts += [expert] * (-(-len(rows) // block))
        total = sum(map(len, numbers))
        numbers.append(np.full(self.num_rows + self.num_experts * block - total, self.num_rows))
        experts += [0] * (self.most_blocks(block) - len(experts))
        return Padded(np.concatenate(numbers), experts, total)

    def ordered(self, most: int, align: int, at_once: int) -> Ordered:
        """Return rows in blocks of up to `most`, longest first.

        Each expert's rows are cut into the fewest blocks, of about equal size. Each block is padded
        to a multiple of `align`, and all to one of `at_once`.
        """
        parts: list[tuple[int, Wide]] = []
        for expert in range(self.num_experts):
            rows = self.rows_of(expert)
            parts += [(expert, p) for p in np.array_split(rows, max(1, -(-len(rows) // most)))]
        parts.sort(key=lambda entry: -len(entry[1]))
        starts, numbers = [0], list[Wide]()
        for _, part in parts:
            numbers += [part, np.full(-len(part) % align, self.num_rows)]
            starts.append(starts[-1] + len(part) + len(numbers[-1]))
        capacity = self.num_rows + self.most_blocks(most) * align
        capacity += -capacity % at_once
        numbers.append(np.full(capacity - starts[-1], self.num_rows))
        rows = np.concatenate(numbers)
        places = np.empty(self.num_rows, np.int64)
        real = np.flatnonzero(rows < self.num_rows)
        places[rows[real]] = real
        empty = [0] * (self.most_blocks(most) - len(parts))
        counts, experts = [len(part) for _, part in parts], [expert for expert, _ in parts]
        lists = (starts[:-1] + empty, counts + empty, experts + empty)
        return Ordered(rows, places, *lists, len(parts))
