"""`TensorDescriptor`: a tensor as a kernel with descriptors is given it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class TensorDescriptor:
    """A tensor's memory, shape, strides and block."""

    base: Any
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Any, padding: Any = "zero") -> Any:
        """Return the descriptor of a whole tensor."""
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape, padding)
