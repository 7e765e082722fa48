import pathlib
p = pathlib.Path("aotc/schedule/programs/advance_programs.py"); s = p.read_text()
s = s.replace("if isinstance(last, scf.If):", "if False:")
p.write_text(s)
