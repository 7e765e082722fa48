"""Names of `triton.testing`, none of which serves."""

from __future__ import annotations


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise RuntimeError(f"triton.testing.{name} needs Triton, which is not installed")

    return missing
