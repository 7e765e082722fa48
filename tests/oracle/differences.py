"""Cases with a different outcome in aotc and in Triton's interpreter, with the reasons.

`repairs.py` replaces wrong computations of the interpreter. This list has the cases refused by only one
of the two, and the ones with results of another type. Each row must match a case, and each matched
case must differ.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

DIFFERENCES: tuple[tuple[str, str], ...] = (
    (
        "unary/plus,*",
        "Triton's tensors have no unary plus; in Python a number's plus is the number, so aotc has it",
    ),
    (
        "function/fma,*int*",
        "the interpreter multiplies integers; the compiler's op, `math.fma`, takes floats only",
    ),
    ("mixed/fma,uint32,int32,int64", "as above"),
    ("mixed/fma,int64,uint64,int8", "as above"),
    (
        "shape/full fraction,*int8",
        "NumPy truncates 2.5 to an integer; the compiler's builder takes no float for one",
    ),
    ("shape/full fraction,*int[136][624]", "as above"),
    (
        "dot/uint8",
        (
            "Triton multiplies matrices of int8 only; the instructions take uint8 as well, and so does "
            "aotc"
        ),
    ),
    ("dot/uint8 to float*", "as above"),
    (
        "dot/int8 on float*",
        (
            "the interpreter adds to an accumulator of any type; the compiler's verifier wants that of "
            "the result"
        ),
    ),
    ("dot/bfloat16 on float16*", "as above"),
    ("dot/float32 on float16*", "as above"),
    ("dot/float64 on float*", "as above"),
    (
        "atomic/add,bfloat16",
        "the interpreter's atomics know no bf16, the compiler's do",
    ),
    ("atomic/xchg,float32", "the interpreter exchanges integers only, the compiler floats, too"),
    ("atomic/xchg,float64", "as above"),
    *(
        (
            f"scan/{scan},bfloat16*",
            (
                "cumulative sums and products of bf16 are fp32, as kernels that run today mean them: "
                "Triton's library widens there up to 3.8, and 3.9 has ended it"
            ),
        )
        for scan in ("cumsum", "cumprod", "cumprod back")
    ),
)


def reason(name: str) -> str | None:
    """Return the reason for a case's difference, or None."""
    return next((why for pattern, why in DIFFERENCES if fnmatchcase(name, pattern)), None)
