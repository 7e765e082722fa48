"""What the loader asks of torch's own extension."""  # noqa: N999 - torch's name

from .cuda import current_stream


def _cuda_getCurrentRawStream(device: int) -> int:  # noqa: N802
    return current_stream(device)
