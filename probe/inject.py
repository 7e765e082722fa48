"""Stamps of the GPU's clock, put into PTX of the attention kernel with a trailing trace_ptr."""
import re

def inject(ptx):
    if "trace" not in ptx and "attention_descriptor_kernel" not in ptx:
        return ptx
    params = re.findall(r"\.param .*?(attention_descriptor_kernel_param_(\d+))", ptx)
    types = re.findall(r"\.param \.(\w+)[^\n]*?attention_descriptor_kernel_param_(\d+)", ptx)
    pointer = [n for t, n in types if t in ("u64", "b64")][-1]
    lines = ptx.split("\n")
    start = next(i for i, l in enumerate(lines) if l.strip() == "{" )
    body = next(i for i in range(start + 1, len(lines)) if lines[i].strip() and not lines[i].strip().startswith((".reg", "//", ".loc")))
    def stamp(tag):
        return ("\t{ .reg .pred q; .reg .b32 t, r, c; .reg .b64 p, v, o, k; mov.u64 k, %clock64; mov.u32 t, %tid.x; shr.u32 r, t, 7; and.b32 t, t, 127; "
                "setp.eq.u32 q, t, 0; mov.u64 v, %globaltimer; and.b64 v, v, 0xffffffffffffff; or.b64 v, v, " + hex(tag << 56) + "; "
                "mov.u32 c, %ctaid.x; mad.lo.u32 c, c, 3, r; shl.b32 c, c, 8; add.u32 c, c, tslot; mul.wide.u32 o, c, 8; "
                f"ld.param.u64 p, [attention_descriptor_kernel_param_{pointer}]; cvta.to.global.u64 p, p; add.u64 p, p, o; @q st.global.v2.u64 [p], {{v, k}}; add.u32 tslot, tslot, 2; }}")
    consumer = next(i for i, l in enumerate(lines) if "setmaxnreg.inc" in l)
    producer = next(i for i, l in enumerate(lines) if "setmaxnreg.dec" in l)
    after, before = {}, {}
    before[body] = 1
    after[next(i for i, l in enumerate(lines) if "bar.sync" in l and "\t0;" in l)] = 2
    waits = [i for i, l in enumerate(lines) if "try_wait" in l and consumer < i < producer]
    after[waits[0]], after[waits[1]] = 3, 4
    groups = [i for i, l in enumerate(lines) if "wgmma.wait_group" in l]
    after[groups[0]], after[groups[-1]] = 5, 6
    after[[i for i, l in enumerate(lines) if "cp.async.bulk.wait_group.read" in l][0]] = 7
    after[[i for i, l in enumerate(lines) if "bulk.tensor" in l and "global.shared" in l][-1]+4 if False else [i for i, l in enumerate(lines) if "bar.sync" in l][-1]] = 8
    before[[i for i, l in enumerate(lines) if l.strip() == "ret;"][-1]] = 9
    after[producer] = 10
    after[[i for i, l in enumerate(lines) if "try_wait" in l and i > producer][0]] = 11
    out = []
    for i, l in enumerate(lines):
        if i in before:
            if before[i] == 1:
                out.append("\t.reg .b32 tslot; mov.u32 tslot, 0;")
            out.append(stamp(before[i]))
        out.append(l)
        if i in after:
            out.append(stamp(after[i]))
    return "\n".join(out)
