"""Which compiled kernels are likely to hang, so that they are launched after all others.

Add a form here when it is new or was seen to hang, take it out when it is proven.
"""

from __future__ import annotations

import re

# Asynchronous copies that a thread issues under a predicate of its own: ptxas may make the predicate
# one of the warp, in a place that lanes reach apart, and then a box is copied twice.
_FORMS = (re.compile(r"@!?%\w+\s+(cp|cp\.reduce)\.async\.bulk"),)


def is_risky(ptx: str) -> bool:
    """Return whether a kernel has one of the forms."""
    return any(form.search(ptx) for form in _FORMS)
