"""Settings of Triton, with the values read by hosts; launches from archives ignore them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .absent import absent

autotuning = SimpleNamespace(cache=False, print=False)
cache = SimpleNamespace(dir=None, override_dir=None, dump_dir=None)
compilation = SimpleNamespace(
    always_compile=False, override=False, dump_ir=False, listener=None, enable_asan=False
)
language = SimpleNamespace(default_fp_fusion=True)
runtime = SimpleNamespace(
    interpret=False,
    debug=False,
    override_arch=None,
    launch_enter_hook=None,
    launch_exit_hook=None,
    kernel_load_start_hook=None,
    kernel_load_end_hook=None,
    jit_cache_hook=None,
    jit_post_compile_hook=None,
    add_stages_inspection_hook=None,
)


def __getattr__(name: str) -> Any:
    return absent(__name__, name)
