"""Compiled kernels likely to hang, to be launched after all others.

Add a form here when it is new or was seen to hang, take it out when it is proven.
"""

from __future__ import annotations

import re

# Asynchronous copies under a thread's own predicate: ptxas may make the predicate warp-uniform at
# a point of divergent lanes, and then a box is copied twice.
_FORMS = (re.compile(r"@!?%\w+\s+(cp|cp\.reduce)\.async\.bulk"),)


def is_risky(ptx: str) -> bool:
    """Return whether a kernel has one of the forms."""
    return any(form.search(ptx) for form in _FORMS)
