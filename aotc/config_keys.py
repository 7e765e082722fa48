"""The reserved config keys: what values they take, wherever a config comes from.

A manifest, a source's autotuner, the command line and `aotc.compile` are held to the same.
"""

from __future__ import annotations

# Lowest and highest value, and whether it must be a power of two. More warps than a target has
# threads for are no mistake: such a config is dropped for that target.
_RANGES: dict[str, tuple[int, int, bool]] = {
    "num_warps": (1, 64, True),
    "num_stages": (1, 32, False),
    "num_ctas": (1, 16, True),
    "num_consumer_groups": (1, 3, False),
    "mma_stages": (1, 2, False),
    "maxnreg": (16, 255, False),
}
_SWITCHES = ("warp_specialize",)
CONFIG_KEYS = (*_RANGES, *_SWITCHES)
# Keys that are left out here are the compiler's to choose.
CONFIG_DEFAULTS: dict[str, int] = {
    "num_warps": 4,
    "num_stages": 3,
    "num_ctas": 1,
    "num_consumer_groups": 1,
    "mma_stages": 1,
}
# Keys of earlier releases, and what to write now.
_RENAMED = {"advance_products": "mma_stages = 2"}


def config_value_problem(name: str, value: object) -> str:
    """Return what is wrong with the value of a reserved config key, or an empty string."""
    if name in _SWITCHES:
        return "" if isinstance(value, bool) else f"expected a boolean for {name}, got {value!r}"
    low, high, must_be_power = _RANGES[name]
    if isinstance(value, int) and not isinstance(value, bool):
        is_power = value & (value - 1) == 0
        if low <= value <= high and (is_power or not must_be_power):
            return ""
    kind = "a power of two" if must_be_power else "an integer"
    return f"expected {kind} from {low} to {high} for {name}, got {value!r}"


def renamed_key(name: str) -> str:
    """Return what to write instead of a config key of an earlier release, as a remedy, or ""."""
    return f"write {_RENAMED[name]}, the new name" if name in _RENAMED else ""
