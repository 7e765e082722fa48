import sys
sys.path.insert(0, "benchmarks")
import torch, aotc, numpy as np
from peers import built
lib = aotc.load(sys.argv[1]); kernel = lib["traced"]
sms = torch.cuda.get_device_properties(0).multi_processor_count
for batch, L, causal in ((1, 1024, False), (1, 1024, True), (2, 1024, True)):
    q = torch.randn(batch * 64, L, 128, device="cuda").bfloat16(); k = torch.randn(batch * 8, L, 128, device="cuda").bfloat16(); v = torch.randn_like(k); out = torch.empty_like(q)
    for pdl in (False, True):
        c = next(c for c in built(kernel, {"CAUSAL": causal}) if c["PDL"] == pdl and c["TOGETHER"] == 64)
        tr = [torch.zeros(sms * 3, 256, dtype=torch.int64, device="cuda") for _ in range(6)]
        def go(n):
            for j in range(n): kernel.launch((q, k, v, out, 0.1, 64, 8, L, L, tr[j]), config=c, choices={"CAUSAL": causal}, pdl=pdl)
        go(6); torch.cuda.synchronize()
        for t in tr: t.zero_()
        torch.cuda._sleep(1_000_000); go(6); torch.cuda.synchronize()
        a = np.stack([t.cpu().numpy().reshape(sms, 3, 128, 2) for t in tr]); ck = a[..., 1].astype(np.float64); a = a[..., 0]
        tag, tm = a >> 56, (a & ((1 << 56) - 1)).astype(np.float64)
        base = tm[tag > 0].min()
        tm = np.where(tag > 0, (tm - base) / 1e3, np.nan)
        def f(j, g, role=None):
            m = tag[j] == g
            if role is not None: m = m & (np.arange(3)[None, :, None] == role)
            return np.where(m, tm[j], np.nan)
        print(f"== {batch}x{L} {'causal' if causal else 'full'} pdl={pdl}")
        for j in range(6):
            e = f(j, 1); end = f(j, 9)
            prev_end = np.nanmax(f(j - 1, 9)) if j else np.nan
            print(f" launch {j}: entry {np.nanmin(e):8.2f}..{np.nanmax(e):8.2f} (first after last end {np.nanmin(e)-prev_end:6.2f}) setup done {np.nanmin(f(j,2)):8.2f}..{np.nanmax(f(j,2)):8.2f} end {np.nanmin(end):8.2f}..{np.nanmax(end):8.2f} span {np.nanmax(end)-np.nanmin(e):7.2f}")
        j = 4
        span_g = np.nanmax(f(j, 9), axis=(1, 2)) - np.nanmin(f(j, 1), axis=(1, 2))
        span_c = np.nanmax(np.where(tag[j] == 9, ck[j], np.nan), axis=(1, 2)) - np.nanmin(np.where(tag[j] == 1, ck[j], np.nan), axis=(1, 2))
        mhz = np.nanmedian(span_c / span_g); print("  clock MHz", mhz)
        ck = np.where(tag > 0, ck / mhz, np.nan)
        def fc(j, g, role):
            m = (tag[j] == g) & (np.arange(3)[None, :, None] == role)
            return np.where(m, ck[j], np.nan)
        # per CTA, relative to own entry, medians over CTAs
        for role in (0, 1):
            t0 = np.nanmin(fc(j, 1, role), axis=(1, 2))
            seqs = []
            for cta in range(sms):
                m = tag[j, cta, role] > 0
                seqs.append([(int(g), x - t0[cta]) for g, x in zip(tag[j, cta, role][m], ck[j, cta, role][m])])
            n = max(map(len, seqs))
            longest = [s for s in seqs if len(s) == n]
            med = [(longest[0][i][0], float(np.median([s[i][1] for s in longest])), float(np.max([s[i][1] for s in longest]))) for i in range(n)]
            print(f"  role {role}, {len(longest)} CTAs: " + " ".join(f"{g}:{x:.2f}/{y:.1f}" for g, x, y in med))
        role = 2
        t0 = np.nanmin(fc(j, 1, role), axis=(1, 2))
        for g in (1, 2, 10, 11):
            first = np.nanmin(fc(j, g, role), axis=(1, 2)) - t0
            print(f"  producer tag {g}: first {np.nanmedian(first):.2f} max {np.nanmax(first):.2f}")
        ends = np.nanmax(f(j, 9), axis=(1, 2)) - np.nanmin(f(j, 1))
        print("  ends of CTAs, percentiles", np.nanpercentile(ends, [0, 10, 25, 50, 75, 90, 100]).round(2))
