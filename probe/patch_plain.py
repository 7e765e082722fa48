import pathlib
p = pathlib.Path("aotc/schedule/programs/make_persistent.py"); s = p.read_text()
s = s.replace("to_and_fro = _is_uneven(kernel)", "to_and_fro = False")
p.write_text(s)
p = pathlib.Path("kernels/attention_descriptor.py"); s = p.read_text()
s = s.replace("acc = acc * (1.0 / row_sum)[:, None]", "acc = acc / row_sum[:, None]")
p.write_text(s)
import pathlib
p = pathlib.Path("aotc/schedule/pipeline.py"); s = p.read_text()
s = s.replace("        advance_programs,\n", "")
p.write_text(s)
