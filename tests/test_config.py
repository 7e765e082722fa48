"""Values of config keys."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from aotc.config import (
    CONFIG_DEFAULTS,
    CONFIG_KEYS,
    Config,
    config_table,
    config_value_problem,
    renamed_key,
)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("num_warps", (1, 4, 32)),
        ("num_stages", (1, 3, 32)),
        ("num_ctas", (1, 16)),
        ("num_consumer_groups", (1, 2, 3)),
        ("maxnreg", (16, 255)),
        ("warp_specialize", (True, False)),
        ("mma_stages", (1, 2)),
    ],
)
def test_what_fits(name: str, values: tuple[object, ...]) -> None:
    assert name in CONFIG_KEYS
    assert [config_value_problem(name, value) for value in values] == [""] * len(values)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("num_warps", 12, "a power of two from 1 to 32"),
        ("num_warps", True, "a power of two from 1 to 32"),
        ("num_stages", 33, "an integer from 1 to 32"),
        ("num_stages", 2.0, "an integer from 1 to 32"),
        ("num_consumer_groups", 0, "an integer from 1 to 3"),
        ("num_consumer_groups", 4, "an integer from 1 to 3"),
        ("maxnreg", 15, "an integer from 16 to 255"),
        ("warp_specialize", 0, "a boolean"),
        ("warp_specialize", "true", "a boolean"),
        ("warp_specialize", None, "a boolean"),
        ("mma_stages", 3, "an integer from 1 to 2"),
        ("mma_stages", True, "an integer from 1 to 2"),
    ],
)
def test_what_does_not(name: str, value: object, expected: str) -> None:
    problem = config_value_problem(name, value)
    assert problem == f"expected {expected} for {name}, got {value!r}"


def test_defaults_are_values_of_their_keys() -> None:
    assert not any(config_value_problem(name, value) for name, value in CONFIG_DEFAULTS.items())


def test_a_key_of_an_earlier_release_is_no_key_and_has_a_successor() -> None:
    assert "advance_products" not in CONFIG_KEYS
    assert "mma_stages = 2" in renamed_key("advance_products")
    assert not any(map(renamed_key, CONFIG_KEYS))


def test_every_key_is_a_field_that_has_its_default() -> None:
    assert [field.name for field in fields(Config)] == list(CONFIG_KEYS)
    for name, key in CONFIG_KEYS.items():
        assert getattr(Config(), name) == key.default
        assert (key.default is None) == bool(key.open_choice)
        assert key.doc


def test_a_config_takes_its_keys_from_among_other_values() -> None:
    values = {"BLOCK": 64, "num_warps": 8, "warp_specialize": False}
    assert Config.of(values) == Config(num_warps=8, warp_specialize=False)


def test_the_reference_has_the_table_of_keys() -> None:
    docs = Path(__file__).parents[1] / "docs"
    assert any(config_table() in page.read_text("utf-8") for page in docs.rglob("manifest.md"))
