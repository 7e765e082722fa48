"""pf.py RUNS LIMIT_S PROG LAUNCH COPY [LIBCUDA] WAY:PF ...: pairs in turn, medians of parts (first PF of bare is the measure)."""
import json, os, statistics as st, subprocess, sys, time
runs, limit, launch, lib = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
specs = sys.argv[5:]
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
res = {s: [] for s in specs}
t0 = time.monotonic()
for r in range(runs + 1):
    if time.monotonic() - t0 > limit: break
    for s in specs if r % 2 else specs[::-1]:
        prog, way, *other = s.split(":")
        out = subprocess.run([prog, way, other[0] if other else launch, lib, "2"], capture_output=True, text=True, check=True, timeout=30).stdout
        if r: res[s].append([json.loads(l)["parts"] for l in out.splitlines()])
tot = lambda p: sum(v[0] for v in p.values()) / 1e3
for s in specs:
    rs = res[s]; n = min(len(rs), len(res[specs[0]]))
    if not n: continue
    ratio = st.median(tot(a[0]) / tot(b[0]) for a, b in zip(rs[:n], res[specs[0]][:n]))
    print(f"{os.path.basename(s.split(':')[0]) + ' ' + s.split(':')[1]:22} n{n} {st.median(tot(x[0]) for x in rs):7.1f} ratio {ratio:.3f} again {st.median(tot(x[1]) for x in rs):6.1f}", ' '.join(f"{k} {st.median(x[0][k][0] for x in rs)/1e3:.1f}({st.median(x[0][k][1] for x in rs):.0f})" for k in rs[0][0]))
