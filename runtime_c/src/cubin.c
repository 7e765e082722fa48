/* cubin.c: check a cubin before the driver sees it.
 *
 * cuLibraryLoadData takes no length and also accepts PTX, fatbins and tile IR. So the bytes must be
 * an ELF image for CUDA, and everything that its headers point at must lie inside them: then the
 * driver cannot be led outside the buffer, and never compiles.
 */
#include "cubin.h"

#include "format.h"

#include <string.h>

enum {
    EM_CUDA = 190,
    SHT_SYMTAB = 2,
    SHT_STRTAB = 3,
    SHT_RELA = 4,
    SHT_NOBITS = 8,
    SHT_REL = 9,
    SHF_INFO_LINK = 0x40,
    SHN_LORESERVE = 0xFF00,
    /* A kernel has some 20, and a few more in newer formats. */
    MAX_SECTIONS = 1024,
    FEW_SECTIONS = 61,
    /* From sm_90 on the first shared memory of a CTA is the system's. The section of a function
     * counts it, and this one is there to say so. */
    RESERVED_SHARED_BYTES = 1024,
};

static const char text_prefix[] = ".text.";
static const char shared_prefix[] = ".nv.shared.";
static const char info_prefix[] = ".nv.info.";
static const char reserved_suffix[] = "reserved.0";

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

struct elf_symbol {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, size;
};

_Static_assert(sizeof(struct elf_symbol) == 24, "ELF64 symbol");
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

/* Where the bytes of a section are; none for those that have none in the file. */
struct extent {
    uint64_t offset, size;
};

static struct extent extent_of(const struct elf_section *section) {
    return (struct extent){section->offset, section->type == SHT_NOBITS ? 0 : section->size};
}

/* The parts of a cubin that have bytes: the header, the sections, the tables of these and of the segments. In this order
 * they mostly lie. */
enum { HEADER_COUNT = 3 };

static bool is_section(const struct elf_header *header, unsigned index) {
    return index >= 1 && index <= header->section_count;
}

static struct extent part_at(const unsigned char *image, const struct elf_header *header,
                             unsigned index) {
    if (is_section(header, index)) {
        const struct elf_section section = section_at(image, header, index - 1);
        return extent_of(&section);
    }
    if (index == 0) {
        return (struct extent){0, sizeof *header};
    }
    return index == header->section_count + 1u
               ? (struct extent){header->section_offset,
                                 header->section_count * sizeof(struct elf_section)}
               : (struct extent){header->program_offset,
                                 header->program_count * sizeof(struct elf_program)};
}

/* A part, and whether it is a section. */
struct part {
    uint64_t offset, size;
    bool is_section;
};

static bool comes_before(const struct part *a, const struct part *b) {
    return a->offset != b->offset ? a->offset < b->offset : a->size < b->size;
}

/* Whether no two parts, which all lie inside, have some bytes in common. Sections may have all: so ptxas stores equal
 * ones. In the order of their places, in which most are, each is compared with the one before alone. */
static bool are_parts_apart(const unsigned char *image, const struct elf_header *header,
                            struct part *parts) {
    const unsigned total = header->section_count + (unsigned)HEADER_COUNT;
    unsigned count = 0;
    for (unsigned i = 0; i < total; ++i) {
        const struct extent extent = part_at(image, header, i);
        const struct part part = {extent.offset, extent.size, is_section(header, i)};
        unsigned place = count;
        for (; extent.size != 0 && place > 0 && comes_before(&part, &parts[place - 1]); --place) {
            parts[place] = parts[place - 1];
        }
        parts[place] = part;
        count += extent.size != 0;
    }
    for (unsigned i = 1; i < count; ++i) {
        const struct part *before = &parts[i - 1];
        const bool are_same = before->offset == parts[i].offset && before->size == parts[i].size;
        const bool may_be_same = before->is_section && parts[i].is_section;
        if (parts[i].offset < before->offset + before->size && !(are_same && may_be_same)) {
            return false;
        }
    }
    return true;
}

__attribute__((noinline)) static bool are_many_apart(const unsigned char *image,
                                                     const struct elf_header *header) {
    struct part parts[HEADER_COUNT + MAX_SECTIONS];
    return are_parts_apart(image, header, parts);
}

/* Mostly there are few: the pages of a larger array would have to be found first. */
static bool are_apart(const unsigned char *image, const struct elf_header *header) {
    struct part parts[HEADER_COUNT + FEW_SECTIONS];
    return header->section_count <= FEW_SECTIONS ? are_parts_apart(image, header, parts)
                                                 : are_many_apart(image, header);
}

/* Whether the texts of a table all end in it. */
static bool is_string_table(const unsigned char *image, const struct elf_section *section) {
    return section->type == SHT_STRTAB && section->size != 0 &&
           image[section->offset + section->size - 1] == 0;
}

static const char *check_symbols(const unsigned char *image, const struct elf_header *header,
                                 const struct elf_section *table) {
    const struct elf_section names = section_at(image, header, table->link);
    const uint64_t count = table->size / sizeof(struct elf_symbol);
    if (table->entry_bytes != sizeof(struct elf_symbol) ||
        table->size % sizeof(struct elf_symbol) != 0 || table->info > count ||
        !is_string_table(image, &names)) {
        return "a cubin with a wrong symbol table";
    }
    for (uint64_t i = 0; i < count; ++i) {
        struct elf_symbol symbol;
        memcpy(&symbol, image + table->offset + i * sizeof symbol, sizeof symbol);
        if (symbol.name >= names.size ||
            (symbol.section >= header->section_count && symbol.section < SHN_LORESERVE)) {
            return "a cubin with a symbol of no name or section";
        }
    }
    return NULL;
}

/* Check what the sections, which lie inside, say of each other. */
static const char *check_references(const unsigned char *image, const struct elf_header *header) {
    if (header->names_section >= header->section_count) {
        return "a cubin without names of sections";
    }
    const struct elf_section names = section_at(image, header, header->names_section);
    if (!is_string_table(image, &names)) {
        return "a cubin without names of sections";
    }
    for (unsigned i = 0; i < header->section_count; ++i) {
        const struct elf_section section = section_at(image, header, i);
        const bool names_section = section.type == SHT_REL || section.type == SHT_RELA ||
                                   (section.flags & SHF_INFO_LINK) != 0;
        if (section.name >= names.size) {
            return "a cubin with a section of no name";
        }
        if (section.link >= header->section_count ||
            (names_section && section.info >= header->section_count)) {
            return "a cubin with a section that belongs to none";
        }
        const char *wrong =
            section.type == SHT_SYMTAB ? check_symbols(image, header, &section) : NULL;
        if (wrong != NULL) {
            return wrong;
        }
    }
    return are_apart(image, header) ? NULL : "a cubin with parts that overlap";
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

    if (header->section_count > MAX_SECTIONS) {
        return "a cubin with too many sections";
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
    return extent == size_bytes ? check_references(image, header) : "a cubin with bytes after it";
}

/* The name of a section, and the bytes from there to the end of the table of names. */
struct section_name {
    const char *chars;
    uint64_t left_bytes;
};

/* `symbol_bytes` is with the NUL. */
static bool is_named(struct section_name name, const char *prefix, size_t prefix_bytes, const char *symbol,
                     size_t symbol_bytes) {
    return prefix_bytes + symbol_bytes <= name.left_bytes &&
           memcmp(name.chars, prefix, prefix_bytes) == 0 &&
           memcmp(name.chars + prefix_bytes, symbol, symbol_bytes) == 0;
}

#define IS_NAMED(name, prefix, symbol, symbol_bytes)                                               \
    is_named(name, prefix, sizeof prefix - 1, symbol, symbol_bytes)

struct aotci_cubin_function aotci_cubin_find(const unsigned char *image, const char *symbol) {
    const struct elf_header *header = (const void *)image;
    const struct elf_section names = section_at(image, header, header->names_section);
    const size_t symbol_bytes = strlen(symbol) + 1;
    struct aotci_cubin_function function = {.exists = false};
    uint64_t reserved_bytes = 0;
    bool has_shared = false;
    for (unsigned i = 0; i < header->section_count; ++i) {
        const struct elf_section section = section_at(image, header, i);
        const struct section_name name = {(const char *)image + names.offset + section.name,
                                          names.size - section.name};
        if (name.chars[0] != '.') {
            continue;
        }
        if (!function.exists && IS_NAMED(name, text_prefix, symbol, symbol_bytes)) {
            function.exists = true;
        } else if (!has_shared && IS_NAMED(name, shared_prefix, symbol, symbol_bytes)) {
            function.static_shared_bytes = section.size;
            has_shared = true;
        } else if (function.info == NULL && section.type != SHT_NOBITS &&
                   IS_NAMED(name, info_prefix, symbol, symbol_bytes)) {
            function.info = image + section.offset;
            function.info_bytes = section.size;
        }
        if (IS_NAMED(name, shared_prefix, reserved_suffix, sizeof reserved_suffix)) {
            reserved_bytes = RESERVED_SHARED_BYTES;
        }
    }
    function.static_shared_bytes = function.static_shared_bytes < reserved_bytes
                                       ? 0
                                       : function.static_shared_bytes - reserved_bytes;
    return function;
}

/* Attributes of `.nv.info.SYMBOL`: a format, a number, and two bytes that are a value, or the size of one that
 * follows. */
enum { SIZED_FORMAT = 4, PARAM_ATTRIBUTE = 0x17, PARAM_BYTES = 12 };

enum aotci_params_verdict aotci_cubin_check_params(const struct aotci_cubin_function *function,
                                                   const unsigned char *records, uint32_t stride,
                                                   uint32_t count, uint32_t *wrong) {
    uint64_t seen[LIMIT_CUBIN_PARAMS / 64] = {0};
    uint32_t seen_count = 0;
    if (function->info == NULL) {
        return PARAMS_NOT_LISTED;
    }
    const unsigned char *at = function->info;
    const unsigned char *end = at + function->info_bytes;
    while (end - at >= 4) {
        const unsigned format = at[0];
        const unsigned attribute = at[1];
        const size_t size_bytes = format == SIZED_FORMAT ? at[2] | (size_t)at[3] << 8 : 0;
        at += 4;
        if (format == 0 || format > SIZED_FORMAT || size_bytes > (size_t)(end - at)) {
            return PARAMS_NOT_LISTED;
        }
        if (format == SIZED_FORMAT && attribute == PARAM_ATTRIBUTE) {
            /* The ordinal, the offset, and the size in the upper bits of a word. */
            const uint32_t ordinal = at[4] | (uint32_t)at[5] << 8;
            if (size_bytes != PARAM_BYTES || ordinal >= LIMIT_CUBIN_PARAMS) {
                return PARAMS_NOT_LISTED;
            }
            const struct cubin_param_record *param =
                (const void *)(records + (size_t)(ordinal < count ? ordinal : 0) * stride);
            *wrong = ordinal < count ? ordinal : count;
            if (ordinal >= count || param->offset != (at[6] | at[7] << 8) ||
                param->size != (at[10] >> 2 | at[11] << 6)) {
                return PARAMS_DIFFER;
            }
            const uint64_t bit = UINT64_C(1) << ordinal % 64;
            seen_count += (seen[ordinal / 64] & bit) == 0;
            seen[ordinal / 64] |= bit;
        }
        at += size_bytes;
    }
    if (seen_count == count) {
        return count == 0 ? PARAMS_NOT_LISTED : PARAMS_EQUAL;
    }
    for (*wrong = 0; (seen[*wrong / 64] >> *wrong % 64 & 1) != 0;) {
        ++*wrong;
    }
    return seen_count == 0 ? PARAMS_NOT_LISTED : PARAMS_DIFFER;
}
