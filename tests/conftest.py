"""Settings for all tests: Hypothesis without deadlines, since the machine may be busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "aotc", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("aotc")
