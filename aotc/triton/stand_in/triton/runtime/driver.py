"""`driver.active`: what programs ask of a GPU, answered by torch."""

from __future__ import annotations

from types import SimpleNamespace


class _Utils:
    @staticmethod
    def get_device_properties(device):
        """Return the few properties that programs size grids and tiles by."""
        import torch  # noqa: PLC0415 - it need not be there

        found = torch.cuda.get_device_properties(device)
        return {
            "multiprocessor_count": found.multi_processor_count,
            "max_shared_mem": getattr(found, "shared_memory_per_block_optin", 49152),
            "warpSize": 32,
            "max_num_regs": 65536,
        }


class _Active:
    utils = _Utils()

    @staticmethod
    def get_current_device():
        """Return the current device's ordinal."""
        import torch  # noqa: PLC0415 - as above

        return torch.cuda.current_device()

    @staticmethod
    def get_current_target():
        """Return the backend and the compute capability."""
        import torch  # noqa: PLC0415 - as above

        major, minor = torch.cuda.get_device_capability()
        return SimpleNamespace(backend="cuda", arch=10 * major + minor, warp_size=32)

    @staticmethod
    def get_current_stream(device=None):
        """Return the handle of torch's current stream."""
        import torch  # noqa: PLC0415 - as above

        return torch.cuda.current_stream(device).cuda_stream

    @staticmethod
    def get_active_torch_device():
        """Return torch's current device."""
        import torch  # noqa: PLC0415 - as above

        return torch.device("cuda", torch.cuda.current_device())


driver = SimpleNamespace(active=_Active())
