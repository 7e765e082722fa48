"""Small PTX kernels written in tests: a body with registers ready, run by the emulator."""

import numpy as np
import pytest

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.run import emulate

HEAD = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(
{params}
)
.reqntid {threads}
{{
    .reg .pred %p<16>;
    .reg .b16 %h<32>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<64>;
    .shared .align 128 .b8 smem[{shared}];
    .local .align 16 .b8 depot[64];
    mov.u32 %r0, %tid.x;
    mov.b32 %r1, smem;
{loads}
"""


def ptx(body, num_args, *, threads=32, shared=1024, maps=()):
    """Return a kernel: %r0 is the thread, %r1 shared memory, %rd0… the 64-bit arguments.

    Arguments with an index in `maps` are tensor maps; their register has the address.
    """
    params = ",\n".join(
        f"    .param .align 64 .b8 k_param_{i}[128]"
        if i in maps
        else f"    .param .u64 k_param_{i}"
        for i in range(num_args)
    )
    loads = "\n".join(
        f"    mov.b64 %rd{i}, k_param_{i}; cvta.param.u64 %rd{i}, %rd{i};"
        if i in maps
        else f"    ld.param.b64 %rd{i}, [k_param_{i}];"
        for i in range(num_args)
    )
    head = HEAD.format(params=params, threads=threads, shared=shared, loads=loads)
    return head + body + "\n    ret;\n}\n"


def run(body, *args, threads=32, shared=1024, grid=1, **options):
    """Run a body with arguments %rd0, %rd1, …; arrays are changed in place."""
    maps = [index for index, arg in enumerate(args) if isinstance(arg, TensorArgument)]
    text = ptx(body, len(args), threads=threads, shared=shared, maps=maps)
    return emulate(text, grid, args, **options)


def faults(body, *args, kind, match=".", threads=32, shared=1024, grid=1, **options):
    """Run a faulty body, and return its Fault of `kind`."""
    with pytest.raises(Fault, match=match) as caught:
        run(body, *args, threads=threads, shared=shared, grid=grid, **options)
    assert caught.value.kind in (kind if isinstance(kind, tuple) else (kind,)), caught.value
    return caught.value


def collect(body, *args, threads=32, shared=1024, bits=32, grid=1, **options):
    """Run a body; return each thread's result in %r63 (%rd63 for 64 bits, %h31 for 16)."""
    out = np.full(threads * grid, 0xA5, f"u{bits // 8}")
    register = {16: "%h31", 32: "%r63", 64: "%rd63"}[bits]
    store = f"""
    mov.u32 %r61, %ctaid.x;
    mad.lo.u32 %r62, %r61, {threads}, %r0;
    mad.wide.u32 %rd62, %r62, {bits // 8}, %rd{len(args)};
    st.global.b{bits} [%rd62], {register};
"""
    run(body + store, *args, out, threads=threads, shared=shared, grid=grid, **options)
    return out
