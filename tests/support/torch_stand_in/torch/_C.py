"""The part of torch's own extension used by the loader."""  # noqa: N999 - torch's name

from .cuda import current_stream


def _cuda_getCurrentRawStream(device: int) -> int:  # noqa: N802
    return current_stream(device)
