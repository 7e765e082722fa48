"""The search against simulated times: near the best, with a quarter of the launches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean

import pytest

from aotc.tuning.search import Passes, exhaustive_launches, halve


class Simulated:
    """Configs with true times, clock drift from pass to pass, noise, and rare outliers."""

    def __init__(self, times: Sequence[float], noise: float) -> None:
        self.times = times
        self.noise = noise
        self.launches: dict[int, int] = dict.fromkeys(range(len(times)), 0)

    def __call__(self, _index: int, passes: Passes) -> list[list[float]]:
        return [self._pass(order) for order in passes]

    def _pass(self, order: Sequence[int]) -> list[float]:
        drift = random.uniform(0.9, 1.1)
        for config in order:
            self.launches[config] += 1
        noise = [
            random.gauss(1, self.noise) * (1.3 if random.random() < 0.01 else 1) for _ in order
        ]
        return [self.times[c] * drift * part for c, part in zip(order, noise, strict=True)]


@pytest.mark.parametrize("num_configs", [2, 3, 32])
@pytest.mark.parametrize("noise", [0.005, 0.03])
def test_the_best_is_found_with_a_quarter_of_the_launches(num_configs: int, noise: float) -> None:
    shares: list[float] = []
    for seed in range(40):
        spread = random.choice([0.02, 0.2, 1.0])
        times = [1e-4 * (1 + abs(random.gauss(0, spread))) for _ in range(num_configs)]
        search = Simulated(times, noise)
        ranking = halve(range(num_configs), search, seed=seed)
        assert ranking.num_launches == sum(search.launches.values()) + num_configs
        assert ranking.num_launches <= exhaustive_launches(num_configs) / 4
        assert set(ranking.seconds) == set(range(num_configs))
        shares.append(min(times) / times[ranking.best])
    assert mean(shares) >= 0.98


def test_a_config_that_is_much_slower_is_launched_least() -> None:
    search = Simulated([1e-3, 1e-4, 1.1e-4, 5e-4], 0.01)
    ranking = halve(range(4), search)
    assert ranking.best == 1
    assert search.launches[0] == search.launches[3] == 2
    # Its time is from the passes with both configs, for any clock.
    assert ranking.seconds[0] / ranking.seconds[1] == pytest.approx(10, rel=0.4)


def test_equal_configs_keep_the_order_that_they_are_given_in() -> None:
    ranking = halve([5, 2, 9], lambda _, passes: [[1e-5] * len(order) for order in passes])
    assert ranking.best == 5


def test_one_config_is_timed_and_wins() -> None:
    ranking = halve([3], Simulated([1, 1, 1, 1e-5], 0.01))
    assert list(ranking.seconds) == [3]
    assert ranking.seconds[3] == pytest.approx(1e-5, rel=0.4)


def test_an_exhaustive_search_drops_nothing() -> None:
    search = Simulated([1e-3, 1e-4, 5e-4], 0.01)
    ranking = halve(range(3), search, is_exhaustive=True)
    assert ranking.num_launches == exhaustive_launches(3)
    assert len(set(search.launches.values())) == 1


def test_passes_are_drawn_by_the_seed() -> None:
    def orders(seed: int) -> list[Passes]:
        seen: list[Passes] = []

        def measure(_index: int, passes: Passes) -> list[list[float]]:
            seen.append(passes)
            return [[1e-5 + config * 1e-9 for config in order] for order in passes]

        halve(range(9), measure, seed=seed)
        return seen

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    for passes in orders(1):
        assert all(sorted(order) == sorted(passes[0]) for order in passes)
