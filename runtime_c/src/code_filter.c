/* code_filter.c: undo the filter of aotc/package/archive/code_filter.py, applied to cubins before
 * compression.
 *
 * The file header, the section table and all other bytes of a cubin are stored without the code,
 * which is stored separately. The operands of an instruction are stored as bytewise differences
 * from those of the previous one with the same opcode and modifiers, and its fields in another
 * order; offsets in the table are stored as differences from the end of the previous section.
 */
#include "code_filter.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    INSTRUCTION_BYTES = 16,
    SLOTS = 4096,
    SECTION_BYTES = 64, /* of a record in the table, and of the file header */
    MAX_SECTIONS = 1024,
    SHT_PROGBITS = 1,
    SHT_NOBITS = 8,
    SHF_EXECINSTR = 4,
};

/* Hosts are little-endian (format.h). */
static uint64_t load(const unsigned char *bytes) {
    uint64_t value = 0;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* The sums of eight pairs of bytes, without carries between them. */
static uint64_t add_bytes(uint64_t a, uint64_t b) {
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    return ((a & low) + (b & low)) ^ ((a ^ b) & ~low);
}

static uint64_t bits(uint64_t word, unsigned at, unsigned count) {
    return word >> at & ((UINT64_C(1) << count) - 1);
}

/* An instruction is two little-endian words; section 7 of the format lists their fields. */
static void restore_code(unsigned char *code, const unsigned char *stored, size_t size_bytes) {
    uint64_t before[SLOTS] = {0};
    for (size_t at = 0; at < size_bytes; at += INSTRUCTION_BYTES) {
        uint64_t words[2];
        memcpy(words, stored + at, sizeof words);
        const uint64_t first = words[0];
        const uint64_t last = words[1];
        const uint64_t opcode = bits(first, 48, 12);
        const uint64_t modifiers = bits(first, 32, 8);
        uint64_t *slot = &before[opcode ^ modifiers << 4];
        const uint64_t operands = add_bytes(*slot, bits(first, 0, 32) | bits(last, 8, 24) << 32);
        *slot = operands;
        words[0] = opcode | bits(last, 40, 4) << 12 | bits(operands, 8, 8) << 16 |
                   bits(operands, 0, 8) << 24 | bits(operands, 16, 8) << 32 |
                   bits(operands, 32, 24) << 40;
        words[1] = bits(operands, 24, 8) | modifiers << 8 | bits(last, 0, 8) << 16 |
                   bits(first, 40, 8) << 24 | first >> 60 << 32 | bits(last, 44, 4) << 36 |
                   bits(last, 61, 1) << 40 | bits(last, 57, 4) << 41 | bits(last, 56, 1) << 45 |
                   bits(last, 32, 6) << 46 | bits(last, 48, 6) << 52 | last >> 62 << 58 |
                   bits(last, 54, 2) << 60 | bits(last, 38, 2) << 62;
        memcpy(code + at, words, sizeof words);
    }
}

/* A walk over the table of sections, stored right after the file header. */
struct walk {
    const unsigned char *section; /* the next one */
    unsigned left;                /* remaining sections */
    uint64_t table;               /* where the table is in the cubin */
    uint64_t end;                 /* of the previous section */
    uint64_t last;                /* end of the previous code */
    uint64_t offset;              /* of the current section */
    bool is_code;                 /* whether the current section has code before the table */
    uint64_t size;                /* of this code */
};

/* Begin a walk: over no section, unless the table is stored at its offset in the cubin. */
static struct walk begin(const unsigned char *rest, size_t size_bytes) {
    struct walk walk = {.last = SECTION_BYTES};
    if (size_bytes < SECTION_BYTES) {
        return walk;
    }
    const unsigned count = (unsigned)bits(load(rest + 56), 32, 16);
    walk.table = load(rest + 40);
    if (bits(load(rest + 56), 16, 16) == SECTION_BYTES && count <= MAX_SECTIONS &&
        walk.table >= SECTION_BYTES && (uint64_t)count * SECTION_BYTES <= size_bytes &&
        walk.table <= size_bytes - (uint64_t)count * SECTION_BYTES) {
        walk.section = rest + SECTION_BYTES;
        walk.left = count;
    }
    return walk;
}

static bool next(struct walk *walk) {
    if (walk->left == 0) {
        return false;
    }
    const unsigned char *section = walk->section;
    const uint64_t kind = load(section) >> 32;
    const uint64_t align = load(section + 48);
    walk->size = load(section + 32);
    walk->offset = load(section + 24) + ((walk->end + align - 1) & (0 - align));
    walk->end = walk->offset + (kind == SHT_NOBITS ? 0 : walk->size);
    walk->is_code = kind == SHT_PROGBITS && (load(section + 8) & SHF_EXECINSTR) != 0 &&
                    walk->size != 0 && walk->size % INSTRUCTION_BYTES == 0 &&
                    walk->offset >= walk->last && walk->size <= walk->table &&
                    walk->offset <= walk->table - walk->size;
    walk->last = walk->is_code ? walk->end : walk->last;
    walk->section += SECTION_BYTES;
    --walk->left;
    return true;
}

size_t aotci_code_bytes(const unsigned char *rest, size_t size_bytes) {
    size_t code_bytes = 0;
    for (struct walk walk = begin(rest, size_bytes); next(&walk);) {
        code_bytes += walk.is_code ? (size_t)walk.size : 0;
    }
    return code_bytes;
}

void aotci_code_restore(unsigned char *cubin, size_t size_bytes, const unsigned char *rest,
                        const unsigned char *code) {
    struct walk walk = begin(rest, size_bytes);
    const size_t table_bytes = (size_t)walk.left * SECTION_BYTES;
    if (table_bytes == 0) {
        memcpy(cubin, rest, size_bytes);
        return;
    }
    unsigned char *table = cubin + walk.table;
    memcpy(cubin, rest, SECTION_BYTES);
    memcpy(table, rest + SECTION_BYTES, table_bytes);
    rest += SECTION_BYTES + table_bytes;
    size_t done = SECTION_BYTES;
    for (unsigned char *section = table; next(&walk); section += SECTION_BYTES) {
        memcpy(section + 24, &walk.offset, sizeof walk.offset);
        if (walk.is_code) {
            const size_t before = (size_t)walk.offset - done;
            memcpy(cubin + done, rest, before);
            restore_code(cubin + walk.offset, code, (size_t)walk.size);
            rest += before;
            code += walk.size;
            done = (size_t)walk.last;
        }
    }
    memcpy(cubin + done, rest, (size_t)walk.table - done);
    rest += (size_t)walk.table - done;
    done = (size_t)walk.table + table_bytes;
    memcpy(cubin + done, rest, size_bytes - done);
}
