import pathlib, re
p = pathlib.Path("aotc/backend/ptx.py"); s = p.read_text()
s = s.replace('    return _BANNER.sub("", target_machine(target).emit_assembly(module))', '    from inject import inject\n    return inject(_BANNER.sub("", target_machine(target).emit_assembly(module)))')
p.write_text(s)
p = pathlib.Path("kernels/attention_descriptor.py"); s = p.read_text()
s = s.replace("    n_keys,\n    HEAD_DIM", "    n_keys,\n    trace_ptr,\n    HEAD_DIM")
p.write_text(s)
