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
    OPERAND_BYTES = 7, /* what is stored first, and as differences */
    SLOTS = 4096,
    HEADER_BYTES = 64,
    SECTION_BYTES = 64,
    MAX_SECTIONS = 1024,
    SHT_PROGBITS = 1,
    SHF_EXECINSTR = 4,
};

/* The place in an instruction of each byte that is stored. */
static const unsigned char order[INSTRUCTION_BYTES] = {2,  3,  4,  8, 5, 6,  7, 14,
                                                       15, 10, 11, 9, 0, 12, 1, 13};

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

static void restore(unsigned char *code, size_t size_bytes) {
    uint64_t before[SLOTS] = {0};
    for (size_t at = 0; at < size_bytes; at += INSTRUCTION_BYTES) {
        unsigned char *stored = code + at;
        unsigned char instruction[INSTRUCTION_BYTES];
        for (unsigned i = OPERAND_BYTES; i < INSTRUCTION_BYTES; ++i) {
            instruction[order[i]] = stored[i];
        }
        const unsigned opcode = instruction[0] | (instruction[1] & 15u) << 8;
        uint64_t *slot = &before[opcode ^ (unsigned)instruction[9] << 4];
        *slot = add_bytes(*slot, load(stored, OPERAND_BYTES));
        for (unsigned i = 0; i < OPERAND_BYTES; ++i) {
            instruction[order[i]] = (unsigned char)(*slot >> (8 * i));
        }
        memcpy(stored, instruction, sizeof instruction);
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
