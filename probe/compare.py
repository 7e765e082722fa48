"""rows LABEL=ARCHIVE… : best of each group of configurations of each archive against cuDNN, in turn."""
import sys, itertools, statistics, time, json
sys.path.insert(0, "benchmarks")
import torch, aotc, attention as A
from peers import built, in_turn, ranked, ratio

GROUP = ("num_ctas", "PDL", "persistent", "BLOCK_N", "mma_stages")

def group(label, config):
    return label + " " + " ".join(f"{k[:5]}={int(config[k])}" for k in GROUP if k in config)

def shape_of(text):
    b, h, kv, L, d, c = text.split(",")
    return A.Shape(int(b), int(h), int(kv), int(L), int(d), causal=c == "c")

def rows(archives, shapes, rounds=31):
    libs = {l: aotc.load(p) for l, p in archives}
    print(torch.cuda.get_device_name(), torch.backends.cudnn.version())
    for text in shapes:
        s = shape_of(text)
        t = A.Tensors(s)
        groups = {}
        for label, lib in libs.items():
            try:
                kernel = lib[f"forward_d{s.dim}"]
            except Exception:
                continue
            args = (*map(t.rows_of, (t.q, t.k, t.v, t.out)), s.dim**-0.5 * A.LOG2_E, s.heads, s.heads // s.kv_heads, s.length, s.length)
            for config in built(kernel, {"CAUSAL": s.causal}):
                def launch(kernel=kernel, args=args, config=config):
                    kernel.launch(args, config=config, choices={"CAUSAL": s.causal}, pdl=bool(config.get("PDL")))
                groups.setdefault(group(label, config), {})[str(config.get("TOGETHER"))] = launch
        peers = {}
        for g, cands in groups.items():
            good = {}
            for n, l in cands.items():
                w = t.wrong(l)
                if w <= 1.0: good[n] = l
                else: print("   WRONG", g, n, w)
            if not good: continue
            ranking = ranked(good, 5, 3, ahead=True)
            peers[f"{g} T={ranking[0][1]}"] = good[ranking[0][1]]
        peers["cudnn"] = A.cudnn_launch(t)
        times = in_turn(peers, rounds, 3, ahead=True)
        print(s.name)
        for name, values in sorted(times.items(), key=lambda kv: statistics.median(kv[1])):
            m = statistics.median(values)
            print(f"   {s.flops/m/1e9:7.1f} TF {m*1e3:8.2f} us  {ratio(times['cudnn'], values):.3f}  {name}", flush=True)
        del t, args; torch.cuda.empty_cache()

def matrix(path):
    """us of launches of 132*r tiles of 128 queries and 128*i keys."""
    lib = aotc.load(path)
    from peers import milliseconds
    kernel = lib["forward_d128"]
    x = torch.zeros(32, device="cuda")
    def med(f, n=3): 
        f(); return statistics.median(milliseconds(f, n, ahead=True) for _ in range(15)) * 1e3
    print("empty torch kernel", med(lambda: x.add_(1)), med(lambda: x.add_(1), 20))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for r in (1, 2, 4):
        for i in (1, 2, 4, 8, 16):
            h = sms * r; kv = h // 4
            q = torch.randn(h, 128, 128, device="cuda").bfloat16(); k = torch.randn(kv, 128 * i, 128, device="cuda").bfloat16(); v = torch.randn_like(k); out = torch.empty_like(q)
            line = []
            for pers, pdl in ((True, False), (True, True), (False, False), (False, True)):
                c = dict(next(c for c in built(kernel, {"CAUSAL": False}) if c["num_ctas"] == 1 and c["persistent"] == pers and c["PDL"] == pdl and c["TOGETHER"] == 64))
                f = lambda: kernel.launch((q, k, v, out, 0.1, h, 4, 128, 128 * i), config=c, choices={"CAUSAL": False}, pdl=pdl)
                line.append(f"{'pers' if pers else 'each'}{'+pdl' if pdl else ''} {med(f):7.2f} {med(f, 12):7.2f}")
            from torch.nn.attention import SDPBackend, sdpa_kernel
            def cud():
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)
            line.append(f"cudnn {med(cud):7.2f} {med(cud, 12):7.2f}")
            print(f"r={r} i={i:2d}  " + "  ".join(line), flush=True)

if __name__ == "__main__":
    if sys.argv[1] == "matrix":
        matrix(sys.argv[2])
    else:
        archives = [a.split("=") for a in sys.argv[2:] if "=" in a]
        rows(archives, [a for a in sys.argv[2:] if "=" not in a])
