"""The frontend: Triton source to tile IR, without executing it."""

from aotc.frontend.translate import Translation, autotune_configs, translate

__all__ = ["Translation", "autotune_configs", "translate"]
