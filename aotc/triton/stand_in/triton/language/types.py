"""Types of the language as hosts use them: dtypes to pass as constants, `constexpr` around values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


def _value_of(value: Any) -> Any:
    return value.value if isinstance(value, constexpr) else value


class constexpr:  # noqa: N801 - as Triton has it
    """A compile-time constant of a kernel."""

    def __init__(self, value: Any) -> None:
        self.value: Any = _value_of(value)

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.value[_value_of(index)]


def _forward(function: Callable[[Any, Any], Any]) -> Callable[[constexpr, Any], constexpr]:
    return lambda self, other: constexpr(function(self.value, _value_of(other)))


def _backward(function: Callable[[Any, Any], Any]) -> Callable[[constexpr, Any], constexpr]:
    return lambda self, other: constexpr(function(_value_of(other), self.value))


def _unary(function: Callable[[Any], Any]) -> Callable[[constexpr], constexpr]:
    return lambda self: constexpr(function(self.value))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and",
              "or", "xor"):  # fmt: skip
    _function = getattr(operator, f"__{_name}__")
    setattr(constexpr, f"__{_name}__", _forward(_function))
    setattr(constexpr, f"__r{_name}__", _backward(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(constexpr, f"__{_name}__", _forward(getattr(operator, _name)))
for _name in ("neg", "pos", "invert"):
    setattr(constexpr, f"__{_name}__", _unary(getattr(operator, _name)))


class dtype:  # noqa: N801 - as Triton has it
    """A scalar type."""

    def __init__(self, name: Any) -> None:
        self.name = name
        self.primitive_bitwidth = _BITS[name]
        self.itemsize = self.primitive_bitwidth // 8
        self.scalar = self

    def is_fp8(self) -> Any:
        """Return whether it is a floating type of 8 bits."""
        return self.name.startswith("fp8")

    def is_floating(self) -> Any:
        """Return whether it is a floating type."""
        return self.name.startswith(("fp", "bf"))

    def is_int(self) -> Any:
        """Return whether it is an integer type."""
        return "int" in self.name

    def is_bool(self) -> Any:
        """Return whether it is the type of conditions."""
        return self.name == "int1"

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("is_"):
            return lambda: self.name == name[3:]
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dtype) and self.name == other.name

    def __hash__(self) -> int:
        return hash((self.name,))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"triton.language.{_ATTRIBUTES.get(self.name, self.name)}"


_BITS = {
    "void": 0, "int1": 1, "fp16": 16, "bf16": 16, "fp32": 32, "fp64": 64,
    **{f"{kind}{bits}": bits for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("fp8e4nv", "fp8e4b8", "fp8e4b15", "fp8e5", "fp8e5b16"), 8),
}  # fmt: skip
_ATTRIBUTES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
    "fp8e4nv": "float8e4nv", "fp8e4b8": "float8e4b8", "fp8e4b15": "float8e4b15",
    "fp8e5": "float8e5", "fp8e5b16": "float8e5b16",
}  # fmt: skip
DTYPES = {_ATTRIBUTES.get(name, name): dtype(name) for name in _BITS}


class pointer_type:  # noqa: N801 - as Triton has it
    """A pointer to a type."""

    def __init__(self, element_ty: Any, address_space: Any = 1, const: Any = False) -> None:  # noqa: FBT002 - as Triton has it
        self.element_ty = element_ty
        self.address_space = address_space
        self.const = const


class block_type:  # noqa: N801 - as Triton has it
    """A tile of a type."""

    def __init__(self, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.shape = tuple(shape)


class tensor:  # noqa: N801 - as Triton has it
    """A tile; there are none on the host."""
