"""Write a cubin without some of its sections: strip_cubin.py IN OUT SECTION... (prefixes; 'phdr' for program headers)."""

import struct
import sys


def strip(data: bytes, dropped: list[str], *, compact: bool = False) -> bytes:
    ehdr = list(struct.unpack_from("<16sHHIQQQIHHHHHH", data))
    phoff, shoff, phnum, shnum, shstr = ehdr[5], ehdr[6], ehdr[10], ehdr[12], ehdr[13]
    secs = [list(struct.unpack_from("<IIQQQQIIQQ", data, shoff + 64 * i)) for i in range(shnum)]
    names0 = data[secs[shstr][4] : secs[shstr][4] + secs[shstr][5]]
    name = lambda tab, o: tab[o : tab.index(b"\0", o)].decode()
    names = [name(names0, s[0]) for s in secs]
    keep = [
        i
        for i in range(shnum)
        if i == 0 or not any(names[i] == d or (d.endswith("*") and names[i].startswith(d[:-1])) for d in dropped)
    ]
    sec_map = {old: new for new, old in enumerate(keep)}
    body = {i: bytearray() if secs[i][1] == 8 else bytearray(data[secs[i][4] : secs[i][4] + secs[i][5]]) for i in keep}
    # symbols
    symtab = names.index(".symtab")
    strtab = secs[symtab][6]
    strings = data[secs[strtab][4] : secs[strtab][4] + secs[strtab][5]]
    syms = [list(struct.unpack_from("<IBBHQQ", data, secs[symtab][4] + 24 * i)) for i in range(secs[symtab][5] // 24)]
    drop_syms = {d[4:] for d in dropped if d.startswith("sym:")}
    new_syms, sym_map, new_strings = [], {}, bytearray(b"\0")
    for i, s in enumerate(syms):
        text = name(strings, s[0])
        if s[3] != 0 and s[3] < 0xFF00 and s[3] not in sec_map:
            continue
        if text in drop_syms:
            continue
        if "sectionsyms" in dropped and s[1] & 15 == 3 and not text.startswith(".nv.constant0"):
            continue
        sym_map[i] = len(new_syms)
        at = 0
        if text:
            at = new_strings.find(b"\0" + text.encode() + b"\0") + 1
            if at == 0:
                at = len(new_strings)
                new_strings += text.encode() + b"\0"
        new_syms.append([at, s[1], s[2], sec_map.get(s[3], s[3]), s[4], s[5]])
    body[symtab] = bytearray(b"".join(struct.pack("<IBBHQQ", *s) for s in new_syms))
    body[strtab] = new_strings
    new_names = bytearray(b"\0")
    name_at = {}
    for i in keep:
        name_at[i] = 0
        if names[i]:
            at = new_names.find(names[i].encode() + b"\0")  # suffixes share
            if at < 0:
                at = len(new_names)
                new_names += names[i].encode() + b"\0"
            name_at[i] = at
    body[shstr] = new_names
    # symbol numbers in .nv.info (REGCOUNT 2f, FRAME_SIZE 11, MIN_STACK 12, MAX_STACK 23, EXTERNS 0f) and .nv.callgraph
    for i in keep:
        if names[i].startswith(".nv.info"):
            b, at = body[i], 0
            while at + 4 <= len(b):
                fmt, attr, size = b[at], b[at + 1], struct.unpack_from("<H", b, at + 2)[0]
                if fmt == 4:
                    if attr in (0x2F, 0x11, 0x12, 0x23):
                        (sym,) = struct.unpack_from("<I", b, at + 4)
                        struct.pack_into("<I", b, at + 4, sym_map[sym])
                    elif attr == 0x0A:
                        (sym,) = struct.unpack_from("<I", b, at + 4)
                        struct.pack_into("<I", b, at + 4, sym_map.get(sym, 0))
                    elif attr in (0x0F,):
                        raise SystemExit("externs")
                    at += size
                at += 4
        if names[i] == ".nv.callgraph":
            b = body[i]
            for at in range(0, len(b), 4):
                (v,) = struct.unpack_from("<I", b, at)
                if v and v < 0xFFFFFF00:
                    struct.pack_into("<I", b, at, sym_map[v])
        if secs[i][1] in (4, 9):
            b, step = body[i], 24 if secs[i][1] == 4 else 16
            for at in range(0, len(b), step):
                (inf,) = struct.unpack_from("<Q", b, at + 8)
                struct.pack_into("<Q", b, at + 8, inf & 0xFFFFFFFF | sym_map[inf >> 32] << 32)
    out = bytearray(64)
    new_secs, moved = [], {}
    for i in keep:
        s = list(secs[i])
        s[0] = name_at[i]
        if i:
            align = max(1, s[8])
            out += b"\0" * (-len(out) % align)
            if s[1] != 8:
                s[5] = len(body[i])
            moved[i] = len(out)
            s[4] = len(out)
            out += body[i]
            s[6] = sec_map.get(s[6], 0)
            if s[1] == 2:
                s[7] = len(new_syms) if s[7] == len(syms) else sum(1 for x in new_syms if x[1] >> 4 == 0)
            elif names[i].startswith(".text."):
                s[7] = s[7] & 0xFF000000 | sym_map[s[7] & 0xFFFFFF]
            elif s[2] & 0x40 or s[1] in (4, 9):
                if s[7] not in sec_map:
                    s[2] &= ~0x40
                s[7] = sec_map.get(s[7], 0)
        new_secs.append(s)
    out += b"\0" * (-len(out) % 8)
    ehdr[6] = len(out)
    for s in new_secs:
        out += struct.pack("<IIQQQQIIQQ", *s)
    if "phdr" in dropped or phnum == 0:
        ehdr[5], ehdr[9], ehdr[10] = 0, 0, 0
    else:
        base = len(out)
        phs = [list(struct.unpack_from("<IIQQQQQQ", data, phoff + 56 * i)) for i in range(phnum)]
        for p in phs:
            if p[2] == phoff:
                p[2] = base
            else:
                old = next(i for i in range(1, shnum) if secs[i][4] == p[2] and i in moved and (secs[i][1] != 8 or p[5] == 0))
                p[2] = moved[old]
            out += struct.pack("<IIQQQQQQ", *p)
        ehdr[5] = base
    ehdr[12], ehdr[13] = len(keep), sec_map[shstr]
    struct.pack_into("<16sHHIQQQIHHHHHH", out, 0, *ehdr)
    return bytes(out)


DEBUG = [".debug_frame", ".rela.debug_frame", ".rel.debug_frame"]
FORMS = {
    "s0": [],
    "s1": DEBUG,
    "s2": [*DEBUG, ".nv.callgraph"],
    "s3": [*DEBUG, ".nv.callgraph", ".note.nv.tkinfo"],
    "s4": [*DEBUG, ".nv.callgraph", ".note.nv.tkinfo", ".note.nv.cuinfo"],
    "s5": [*DEBUG, ".nv.callgraph", ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.compat"],
    "s6": [*DEBUG, ".nv.callgraph", ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.compat", "sectionsyms"],
    "s7": [*DEBUG, ".nv.callgraph", ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.compat", "sectionsyms", "phdr"],
    "s8": [
        *DEBUG, ".nv.callgraph", ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.compat", "sectionsyms", "phdr",
        ".nv.shared.reserved.0", "sym:.nv.reservedSmem.offset0", "sym:__nv_reservedSMEM_offset_0_alias",
    ],
    "p": ["phdr"],
}  # fmt: skip

if __name__ == "__main__":
    data = open(sys.argv[1], "rb").read()
    for form, dropped in FORMS.items():
        out = strip(data, dropped)
        open(f"{sys.argv[2]}.{form}", "wb").write(out)
        print(form, len(data), "->", len(out))
