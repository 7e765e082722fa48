"""Random expressions over the arguments of a launch."""

from __future__ import annotations

from hypothesis import strategies as st

from aotc.ir.expression import Binary, Expression, Unary

BINARY_OPS = (
    *("+", "-", "*", "//", "%", "min", "max", "cdiv"),
    *("==", "!=", "<", "<=", ">", ">=", "and", "or"),
)


def expressions(
    leaves: st.SearchStrategy[Expression], max_leaves: int
) -> st.SearchStrategy[Expression]:
    """Return expressions with every operator over these leaves."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Unary, st.sampled_from(["-", "not"]), inner),
            st.builds(Binary, st.sampled_from(BINARY_OPS), inner, inner),
        ),
        max_leaves=max_leaves,
    )
