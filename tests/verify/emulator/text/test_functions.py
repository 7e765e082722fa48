"""Calls of a module's functions: their bodies are run in place of them."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.run import emulate

_KERNEL = """
.visible .entry k(.param .u64 k_param_0)
.reqntid 32
{
    .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
    ld.param.b64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd1, %rd1, %rd2;
    { // the first
    .param .b32 param0;
    .param .align 8 .b8 retval0[8];
    st.param.b32 [param0], %r1;
    call.uni (retval0), outer, (param0);
    ld.param.b32 %r2, [retval0+4];
    }
    {
    .param .b64 param0;
    .param .b32 retval0;
    st.param.b64 [param0], %rd2;
    call.uni (retval0), halved, (param0);
    ld.param.b32 %r3, [retval0];
    }
    add.s32 %r2, %r2, %r3;
    st.global.b32 [%rd1], %r2;
    ret;
}
"""
_OUTER = """
.func (.param .align 8 .b8 func_retval0[8]) outer(.param .b32 outer_param_0)
{
    .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.b32 %r1, [outer_param_0];
    setp.lt.u32 %p1, %r1, 10;
    @%p1 bra small;
    st.param.b32 [func_retval0+4], 1000;
    ret;
small:
    {
    .param .b64 param0;
    .param .b32 retval0;
    cvt.u64.u32 %rd9, %r1;
    st.param.b64 [param0], %rd9;
    call.uni (retval0), halved, (param0);
    ld.param.b32 %r2, [retval0];
    }
    st.param.b32 [func_retval0+4], %r2;
    ret;
}
""".replace(".reg .pred", ".reg .b64 %rd<10>; .reg .pred")
_HALVED = """
.func (.param .b32 func_retval0) halved(.param .b64 halved_param_0)
{
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.b64 %rd1, [halved_param_0];
    cvt.u32.u64 %r1, %rd1;
    shr.u32 %r1, %r1, 1;
    st.param.b32 [func_retval0], %r1;
    ret;
}
"""
_DECLARED = ".func (.param .b32 func_retval0) halved\n(\n.param .b64 halved_param_0\n)\n;\n"


@pytest.mark.parametrize("order", [(_KERNEL, _OUTER, _HALVED), (_HALVED, _OUTER, _KERNEL)])
def test_a_function_is_inlined_at_its_call(order: tuple[str, ...]) -> None:
    text = ".version 8.8\n.target sm_90a\n.address_size 64\n" + _DECLARED + "".join(order)
    out = np.zeros(32, np.uint32)
    emulate(text, (1,), [out])
    lanes = np.arange(32)
    np.testing.assert_array_equal(out, np.where(lanes < 10, lanes // 2, 1000) + lanes * 2)
