"""Label variants for messages and the command line.

Invariant: a variant has the same label whether it comes from a manifest (`VariantSpec.label`) or
from the archive built of it.
"""

from __future__ import annotations

from collections.abc import Collection

from aotc.ir import expression
from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import Expression
from aotc.package.archive.index import Kernel, Variant, null_test

_MAX_LISTED = 8


def value_text(value: object) -> str:
    """Format a value as in the manifest, without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def member_label(label: str, condition: Expression | None) -> str:
    """Return a variant's label; it tells the two kernels of one config apart."""
    return label if condition is None else f"{label} with tensor maps"


def one_label(labels: Collection[str], words: str, of: str) -> str:
    """Return the label `words`, or the only label with all of them.

    Raises: ManifestError if there is none, or several.
    """
    if words in labels:
        return words
    label_words = set(words.split())
    matching = [label for label in labels if label_words <= set(label.split())]
    if len(matching) == 1:
        return matching[0]
    candidates = matching or list(labels)
    rest = len(candidates) - _MAX_LISTED
    label_list = "; ".join(candidates[:_MAX_LISTED]) + (f"; and {rest} more" if rest > 0 else "")
    actual = f"{words!r}, which fits {len(matching) or 'none'}" if words else f"{len(matching)}"
    message = f"expected one variant of {of}, got {actual}"
    raise ManifestError(message, remedy=f"name it by words of its label: --variant: {label_list}")


def absent_pointers(kernel: Kernel, variant: Variant) -> tuple[str, ...]:
    """Return the pointers fixed to None in a variant."""
    conditions = [kernel.guards[index].expression for index in variant.guards]
    return tuple(name for name in kernel.nullable if null_test(name, is_null=True) in conditions)


def variant_label(kernel: Kernel, variant: Variant) -> str:
    """Return the label of an archive's variant."""
    parts = [kernel.name, variant.target]
    parts += [f"{v.name}={d}" for v, d in zip(kernel.type_variables, variant.types, strict=True)]
    choices = zip(kernel.choices, variant.choices, strict=True)
    parts += [f"{choice.name}={value_text(value)}" for choice, value in choices]
    parts += [f"{name}=none" for name in absent_pointers(kernel, variant)]
    conditions = [expression.to_text(kernel.guards[index].expression) for index in variant.guards]
    parts += [
        f"{param.name}:{param.divisibility}"
        for param in kernel.params
        if param.is_optional and f"{param.name} % {param.divisibility} == 0" in conditions
    ]
    parts += [f"{name}={value_text(value)}" for name, value in kernel.configs[variant.config]]
    return member_label(" ".join(parts), variant.condition)
