"""Names that kernels of tests are annotated with."""


class constexpr:  # noqa: N801 - as Triton has it
    pass
