/* cubin.c: check a cubin before the driver sees it.
 *
 * cuLibraryLoadData takes no length and also accepts PTX, fatbins and tile IR. So the bytes must be
 * an ELF image for CUDA, and everything that its headers point at must lie inside them: then the
 * driver cannot be led outside the buffer, and never compiles.
 */
#include "cubin.h"

#include <string.h>

enum { EM_CUDA = 190, SHT_NOBITS = 8 };

struct elf_header {
    unsigned char ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, program_offset, section_offset;
    uint32_t flags;
    uint16_t header_bytes, program_entry_bytes, program_count;
    uint16_t section_entry_bytes, section_count, names_section;
};

struct elf_section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t alignment, entry_bytes;
};

struct elf_program {
    uint32_t type, flags;
    uint64_t offset, virtual_address, physical_address, file_bytes, memory_bytes, alignment;
};

_Static_assert(sizeof(struct elf_header) == 64, "ELF64 header");
_Static_assert(sizeof(struct elf_section) == 64, "ELF64 section header");
_Static_assert(sizeof(struct elf_program) == 56, "ELF64 program header");

/* The tables need no alignment, so their entries are copied out. */
static struct elf_section section_at(const unsigned char *image, const struct elf_header *header,
                                     unsigned i) {
    struct elf_section section;
    memcpy(&section, image + header->section_offset + (size_t)i * sizeof section, sizeof section);
    return section;
}

static struct elf_program program_at(const unsigned char *image, const struct elf_header *header,
                                     unsigned i) {
    struct elf_program program;
    memcpy(&program, image + header->program_offset + (size_t)i * sizeof program, sizeof program);
    return program;
}

/* Extend `*extent` by [offset, offset + size) if that lies inside. */
static bool cover(uint64_t offset, uint64_t size, uint64_t total_bytes, uint64_t *extent) {
    if (offset > total_bytes || size > total_bytes - offset) {
        return false;
    }
    if (offset + size > *extent) {
        *extent = offset + size;
    }
    return true;
}

static const char *check_identity(const struct elf_header *header, unsigned arch) {
    static const unsigned char expected[7] = {0x7F, 'E', 'L', 'F', 2, 1, 1};
    if (memcmp(header->ident, expected, sizeof expected) != 0 || header->machine != EM_CUDA) {
        return "not a cubin (PTX, a fatbin or another file)";
    }
    if (header->header_bytes != sizeof(struct elf_header)) {
        return "a cubin with another ELF header size";
    }
    if (header->section_entry_bytes != sizeof(struct elf_section)) {
        return "a cubin with another section header size";
    }
    if (header->program_count != 0 && header->program_entry_bytes != sizeof(struct elf_program)) {
        return "a cubin with another program header size";
    }
    if (((header->flags >> 8) & 0xff) != arch) {
        return "a cubin for another architecture than the index says";
    }
    return NULL;
}

const char *aotci_cubin_check(const unsigned char *image, size_t size_bytes, unsigned arch) {
    if (size_bytes < sizeof(struct elf_header)) {
        return "not a cubin (too short)";
    }
    const struct elf_header *header = (const struct elf_header *)(const void *)image;
    const char *wrong = check_identity(header, arch);
    if (wrong != NULL) {
        return wrong;
    }

    uint64_t extent = sizeof *header;
    const uint64_t section_bytes = (uint64_t)header->section_count * sizeof(struct elf_section);
    const uint64_t program_bytes = (uint64_t)header->program_count * sizeof(struct elf_program);
    if (!cover(header->section_offset, section_bytes, size_bytes, &extent) ||
        !cover(header->program_offset, program_bytes, size_bytes, &extent)) {
        return "a cubin whose header tables are outside it";
    }
    for (unsigned i = 0; i < header->section_count; ++i) {
        const struct elf_section section = section_at(image, header, i);
        if (section.type != SHT_NOBITS &&
            !cover(section.offset, section.size, size_bytes, &extent)) {
            return "a cubin with a section outside it";
        }
    }
    for (unsigned i = 0; i < header->program_count; ++i) {
        const struct elf_program program = program_at(image, header, i);
        if (!cover(program.offset, program.file_bytes, size_bytes, &extent)) {
            return "a cubin with a segment outside it";
        }
    }
    return extent == size_bytes ? NULL : "a cubin with bytes behind it";
}

bool aotci_cubin_has_function(const unsigned char *image, const char *symbol) {
    static const char prefix[] = ".text.";
    const struct elf_header *header = (const void *)image;
    if (header->names_section >= header->section_count) {
        return false;
    }
    const struct elf_section names = section_at(image, header, header->names_section);
    if (names.type == SHT_NOBITS) {
        return false;
    }
    const char *strings = (const char *)image + names.offset;
    const size_t symbol_bytes = strlen(symbol) + 1;
    const size_t wanted_bytes = sizeof prefix - 1 + symbol_bytes;
    for (unsigned i = 0; i < header->section_count; ++i) {
        const uint64_t at = section_at(image, header, i).name;
        if (at < names.size && wanted_bytes <= names.size - at &&
            memcmp(strings + at, prefix, sizeof prefix - 1) == 0 &&
            memcmp(strings + at + sizeof prefix - 1, symbol, symbol_bytes) == 0) {
            return true;
        }
    }
    return false;
}
