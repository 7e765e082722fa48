"""dl.py RUNS DL LAUNCH SYMBOL way=cubin ...: fresh processes in turns; medians of parts and of ratios to the first."""
import json, os, statistics as st, subprocess, sys, time
runs, dl, launch, symbol, limit = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5])
specs = sys.argv[6:]
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
res = {s: [] for s in specs}
bad = {}
t0 = time.monotonic()
for r in range(runs + 1):
    if time.monotonic() - t0 > limit: break
    for s in specs if r % 2 else specs[::-1]:
        if s in bad: continue
        way, cubin = s.split("=", 1)
        try:
            p = subprocess.run([dl, way, cubin, symbol, launch, "2"], capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:
            bad[s] = "timeout"; continue
        if p.returncode: bad[s] = f"{p.returncode} {p.stderr.strip()}"; continue
        if r: res[s].append([json.loads(l) for l in p.stdout.splitlines()])
base = res[specs[0]]
for s in specs:
    if s in bad or not res[s]: print(f"{s}: {bad.get(s)}"); continue
    n = min(len(base), len(res[s]))
    ratio = st.median(b[0]["sum"] / a[0]["sum"] for a, b in zip(base[:n], res[s][:n]))
    way, cubin = s.split("=", 1)
    print(f"{way + ' ' + os.path.basename(cubin):36} n{n} sum {st.median(x[0]['sum'] for x in res[s])/1e3:6.1f} ratio {ratio:.3f} again {st.median(x[1]['sum'] for x in res[s])/1e3:6.1f} | " + ' '.join(f"{k} {st.median(x[0][k] for x in res[s])/1e3:.1f}/{st.median(x[1][k] for x in res[s])/1e3:.1f}" for k in res[s][0][0] if k != 'sum'))
