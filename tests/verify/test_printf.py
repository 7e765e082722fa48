"""Formatting of `printf` numbers, and their offsets in its buffer."""

from __future__ import annotations

import math

import pytest

from aotc.verify.printf import format_numbers, places_of


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("100%% of %d", [-5], "100% of -5"),
        ("(%3u)", [7], "(  7)"),
        ("%u %llu", [-1, -1], "4294967295 18446744073709551615"),
        ("0x%08x 0x%016llx", [-1, -2], "0xffffffff 0xfffffffffffffffe"),
        ("%f %f", [0.5, math.inf], "0.500000 inf"),
        ("%f", [-math.nan], "nan"),
        ("%a %a %a", [1.0, -0.3, 0.0], "0x1p+0 -0x1.3333333333333p-2 0x0p+0"),
        ("%lld", [-(1 << 63)], "-9223372036854775808"),
    ],
)
def test_numbers_are_printed_as_c_does(text: str, numbers: list[float], expected: str) -> None:
    assert format_numbers(text, iter(numbers)) == expected


def test_numbers_lie_at_multiples_of_their_sizes() -> None:
    arguments = places_of("%u %f %d%% %llx %08x")
    assert [(argument.offset, argument.size_bytes) for argument in arguments] == [
        *((0, 4), (8, 8), (16, 4), (24, 8), (32, 4))
    ]
    assert arguments[2].number(b"\xff\xff\xff\xff") == -1
    assert arguments[4].number(b"\xff\xff\xff\xff") == (1 << 32) - 1
    assert arguments[1].number(b"\0\0\0\0\0\0\xf8\x3f") == 1.5
