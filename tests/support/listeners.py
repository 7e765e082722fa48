"""A listener to discard the progress of builds."""

from __future__ import annotations

from aotc.package.builder.workers import Outcome


class Silent:
    """Follow a build without a word."""

    def started(self, num_variants: int, num_cached: int) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...

    def warned(self, message: str) -> None: ...
