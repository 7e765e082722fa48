/* code_filter.c: undo what aotc/package/code_filter.py does to instructions before they are compressed.
 *
 * The operands of an instruction are stored as differences from those of the one before with the same
 * opcode and modifiers, byte by byte, and its bytes in another order.
 */
#include "code_filter.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    INSTRUCTION_BYTES = 16,
    SLOTS = 4096,
    HEADER_BYTES = 64,
    SECTION_BYTES = 64,
    MAX_SECTIONS = 1024,
    SHT_PROGBITS = 1,
    SHF_EXECINSTR = 4,
};

static uint64_t load(const unsigned char *bytes, unsigned count) {
    uint64_t value = 0;
    for (unsigned i = 0; i < count; ++i) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

/* The sums of eight pairs of bytes, none of which carries into the next. */
static uint64_t add_bytes(uint64_t a, uint64_t b) {
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    return ((a & low) + (b & low)) ^ ((a ^ b) & ~low);
}

/* An instruction is two little-endian words; bytes 2, 3, 4, 8, 5, 6, 7 come first, as differences, then
 * 14, 15, 10, 11, 9, 0, 12, 1, 13. */
static void restore(unsigned char *code, size_t size_bytes) {
    uint64_t before[SLOTS] = {0};
    for (size_t at = 0; at < size_bytes; at += INSTRUCTION_BYTES) {
        unsigned char *stored = code + at;
        const uint64_t first = stored[12];
        const uint64_t second = stored[14];
        const uint64_t modifier = stored[11];
        uint64_t words[2];
        memcpy(words, stored, sizeof words);
        uint64_t *slot = &before[(first | (second & 15) << 8) ^ modifier << 4];
        const uint64_t sum = add_bytes(*slot, words[0] & UINT64_C(0x00ffffffffffffff));
        *slot = sum;
        words[0] = first | second << 8 | (sum & 0xffffff) << 16 | (sum >> 32 & 0xffffff) << 40;
        words[1] = (sum >> 24 & 0xff) | modifier << 8 | (uint64_t)stored[9] << 16 |
                   (uint64_t)stored[10] << 24 | (uint64_t)stored[13] << 32 |
                   (uint64_t)stored[15] << 40 | (uint64_t)stored[7] << 48 |
                   (uint64_t)stored[8] << 56;
        memcpy(stored, words, sizeof words);
    }
}

void aotci_code_restore(unsigned char *image, size_t size_bytes) {
    if (size_bytes < HEADER_BYTES) {
        return;
    }
    const uint64_t table = load(image + 40, 8);
    const unsigned section_bytes = (unsigned)load(image + 58, 2);
    const unsigned count = (unsigned)load(image + 60, 2);
    if (section_bytes != SECTION_BYTES || count > MAX_SECTIONS ||
        (uint64_t)count * SECTION_BYTES > size_bytes ||
        table > size_bytes - (uint64_t)count * SECTION_BYTES) {
        return;
    }
    /* What is found is noted before anything changes: a forged table may lie in its own code. */
    struct {
        uint64_t start, size;
    } found[MAX_SECTIONS];
    unsigned found_count = 0;
    uint64_t last = 0;
    for (unsigned i = 0; i < count; ++i) {
        const unsigned char *section = image + table + (size_t)i * SECTION_BYTES;
        const bool is_code = load(section + 4, 4) == SHT_PROGBITS &&
                             (load(section + 8, 8) & SHF_EXECINSTR) != 0;
        const uint64_t start = load(section + 24, 8);
        const uint64_t size = load(section + 32, 8);
        if (is_code && size != 0 && size % INSTRUCTION_BYTES == 0 && start >= last &&
            size <= size_bytes && start <= size_bytes - size) {
            found[found_count].start = start;
            found[found_count++].size = size;
            last = start + size;
        }
    }
    for (unsigned i = 0; i < found_count; ++i) {
        restore(image + found[i].start, (size_t)found[i].size);
    }
}
