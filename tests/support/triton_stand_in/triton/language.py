"""Names for annotations of test kernels."""


class constexpr:  # noqa: N801 - as Triton has it
    pass
