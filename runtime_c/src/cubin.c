/* cubin.c: check a cubin before the driver sees it.
 *
 * cuLibraryLoadData takes no length and also accepts PTX, fatbins and tile IR. So the bytes must be
 * an ELF image for CUDA with all parts inside them: then the driver cannot be led outside the
 * buffer, and never compiles.
 */
#include "cubin.h"

#include <string.h>

#include "error.h"
#include "format.h"

enum {
    EM_CUDA = 190,
    SHT_SYMTAB = 2,
    SHT_STRTAB = 3,
    SHT_RELA = 4,
    SHT_NOBITS = 8,
    SHT_MERCURY_NOBITS = 0x70000015, /* of the copy that ptxas adds from sm_110 on */
    SHT_REL = 9,
    SHF_INFO_LINK = 0x40,
    SHN_LORESERVE = 0xFF00,
    /* A kernel has some 20, and a few more in newer formats. */
    MAX_SECTIONS = 1024,
    CUDA_12_ABI = 51,
    /* From sm_90 on the system reserves the first shared memory of a CTA. The section of a function
     * counts it, and this section states it. */
    RESERVED_SHARED_BYTES = 1024,
};

/* Records of the image. It begins at a multiple of 8, its tables need not, so they may be read from
 * any address. */
#define ELF_RECORD __attribute__((packed, may_alias))

struct ELF_RECORD elf_header {
    unsigned char ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, program_offset, section_offset;
    uint32_t flags;
    uint16_t header_bytes, program_entry_bytes, program_count;
    uint16_t section_entry_bytes, section_count, names_section;
};

struct ELF_RECORD elf_section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t alignment, entry_bytes;
};

struct ELF_RECORD elf_program {
    uint32_t type, flags;
    uint64_t offset, virtual_address, physical_address, file_bytes, memory_bytes, alignment;
};

struct ELF_RECORD elf_symbol {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, size;
};

_Static_assert(sizeof(struct elf_symbol) == 24, "ELF64 symbol");
_Static_assert(sizeof(struct elf_header) == 64, "ELF64 header");
_Static_assert(sizeof(struct elf_section) == 64, "ELF64 section header");
_Static_assert(sizeof(struct elf_program) == 56, "ELF64 program header");

static const struct elf_header *header_of(const unsigned char *image) { return (const void *)image; }

static const struct elf_section *sections_of(const unsigned char *image) {
    return (const void *)(image + header_of(image)->section_offset);
}

static bool is_inside(uint64_t offset, uint64_t size, uint64_t total_bytes) {
    return offset <= total_bytes && size <= total_bytes - offset;
}

static uint64_t greater(uint64_t a, uint64_t b) { return a > b ? a : b; }

static bool has_bytes(const struct elf_section *section) {
    return section->type != SHT_NOBITS && section->type != SHT_MERCURY_NOBITS;
}

/* ---- overlapping parts ------------------------------------------------------------------------- */

/* The parts of a cubin with bytes: the header, the sections, the tables of these and of the
 * segments. */
enum { HEADER_COUNT = 3 };

struct part {
    uint64_t offset, size;
    bool is_section;
};

static bool comes_before(const struct part *a, const struct part *b) {
    return a->offset != b->offset ? a->offset < b->offset : a->size < b->size;
}

static void add_part(struct part *parts, unsigned *count, struct part part) {
    unsigned position = part.size != 0 ? (*count)++ : 0;
    for (; position > 0 && comes_before(&part, &parts[position - 1]); --position) {
        parts[position] = parts[position - 1];
    }
    if (part.size != 0) {
        parts[position] = part;
    }
}

/* Whether no two parts, all inside the image, overlap. Sections may coincide: ptxas stores equal
 * ones once. After sorting by offset, each is compared only with its predecessor. Most cubins need
 * no sorting, and no memory for it. */
__attribute__((noinline)) static bool are_sorted_apart(const unsigned char *image) {
    const struct elf_header *header = header_of(image);
    const struct elf_section *sections = sections_of(image);
    struct part parts[HEADER_COUNT + MAX_SECTIONS];
    unsigned count = 0;
    add_part(parts, &count, (struct part){0, sizeof *header, false});
    for (unsigned i = 0; i < header->section_count; ++i) {
        const uint64_t size = has_bytes(&sections[i]) ? sections[i].size : 0;
        add_part(parts, &count, (struct part){sections[i].offset, size, true});
    }
    add_part(parts, &count,
             (struct part){header->section_offset, header->section_count * sizeof *sections, false});
    add_part(parts, &count,
             (struct part){header->program_offset,
                           header->program_count * sizeof(struct elf_program), false});
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

/* ---- the check ---------------------------------------------------------------------------------- */

/* Whether all texts of a table, inside the image, are terminated in it. */
static bool is_string_table(const unsigned char *image, const struct elf_section *section) {
    return section->type == SHT_STRTAB && section->size != 0 &&
           image[section->offset + section->size - 1] == 0;
}

static const char *check_symbols(const unsigned char *image, const struct elf_section *table) {
    const struct elf_section *names = &sections_of(image)[table->link];
    const unsigned section_count = header_of(image)->section_count;
    const struct elf_symbol *symbol = (const void *)(image + table->offset);
    const uint64_t count = table->size / sizeof *symbol;
    if (table->entry_bytes != sizeof *symbol || table->size % sizeof *symbol != 0 ||
        table->info > count || !is_string_table(image, names)) {
        return aotci_refused("a cubin with a wrong symbol table");
    }
    for (const struct elf_symbol *end = symbol + count; symbol != end; ++symbol) {
        if (symbol->name >= names->size ||
            (symbol->section >= section_count && symbol->section < SHN_LORESERVE)) {
            return aotci_refused("a cubin with a symbol of no name or section");
        }
    }
    return NULL;
}

static const char *check_identity(const struct elf_header *header, unsigned arch) {
    static const unsigned char expected[7] = {0x7F, 'E', 'L', 'F', 2, 1, 1};
    if (memcmp(header->ident, expected, sizeof expected) != 0 || header->machine != EM_CUDA) {
        return aotci_refused("not a cubin (PTX, a fatbin or another file)");
    }
    if (header->header_bytes != sizeof(struct elf_header)) {
        return aotci_refused("a cubin with another ELF header size");
    }
    if (header->section_entry_bytes != sizeof(struct elf_section)) {
        return aotci_refused("a cubin with another section header size");
    }
    if (header->program_count != 0 && header->program_entry_bytes != sizeof(struct elf_program)) {
        return aotci_refused("a cubin with another program header size");
    }
    /* The ABI of CUDA 12, which its ptxas writes for GPUs before sm_100, has the number in other bits. */
    const unsigned shift = header->ident[7] == CUDA_12_ABI ? 0 : 8;
    if (((header->flags >> shift) & 0xff) != arch) {
        return aotci_refused("a cubin for another architecture than the index says");
    }
    if (header->section_count > MAX_SECTIONS) {
        return aotci_refused("a cubin with too many sections");
    }
    return NULL;
}

/* Check references between sections, all inside the image. */
static const char *check_references(const unsigned char *image) {
    const struct elf_header *header = header_of(image);
    const struct elf_section *section = sections_of(image);
    const unsigned count = header->section_count;
    if (header->names_section >= count || !is_string_table(image, section + header->names_section)) {
        return aotci_refused("a cubin without names of sections");
    }
    const struct elf_section *names = section + header->names_section;
    for (const struct elf_section *end = section + count; section != end; ++section) {
        const bool names_section = section->type == SHT_REL || section->type == SHT_RELA ||
                                   (section->flags & SHF_INFO_LINK) != 0;
        if (section->name >= names->size) {
            return aotci_refused("a cubin with a section of no name");
        }
        if (section->link >= count || (names_section && section->info >= count)) {
            return aotci_refused("a cubin with a section that belongs to none");
        }
        const char *wrong = section->type == SHT_SYMTAB ? check_symbols(image, section) : NULL;
        if (wrong != NULL) {
            return wrong;
        }
    }
    return NULL;
}

const char *aotci_cubin_check(const unsigned char *image, size_t size_bytes, unsigned arch) {
    if (size_bytes < sizeof(struct elf_header)) {
        return aotci_refused("not a cubin (too short)");
    }
    const struct elf_header *header = header_of(image);
    const char *wrong = check_identity(header, arch);
    if (wrong != NULL) {
        return wrong;
    }
    const uint64_t section_bytes = header->section_count * sizeof(struct elf_section);
    const uint64_t program_bytes = header->program_count * sizeof(struct elf_program);
    if (!is_inside(header->section_offset, section_bytes, size_bytes) ||
        !is_inside(header->program_offset, program_bytes, size_bytes)) {
        return aotci_refused("a cubin whose header tables are outside it");
    }
    /* Mostly parts lie in the order of the headers, the tables last: then each is compared with the
     * end so far. */
    uint64_t end = sizeof *header;
    bool are_in_order = true;
    const struct elf_section *section = sections_of(image);
    for (unsigned i = 0; i < header->section_count; ++i, ++section) {
        if (!has_bytes(section)) {
            continue;
        }
        if (!is_inside(section->offset, section->size, size_bytes)) {
            return aotci_refused("a cubin with a section outside it");
        }
        are_in_order = are_in_order && (section->offset >= end || section->size == 0);
        end = greater(end, section->offset + section->size);
    }
    are_in_order = are_in_order && header->section_offset >= end &&
                   (header->program_count == 0 ||
                    header->program_offset >= header->section_offset + section_bytes);
    end = greater(end, header->section_offset + section_bytes);
    end = greater(end, header->program_offset + program_bytes);
    const struct elf_program *program = (const void *)(image + header->program_offset);
    for (unsigned i = 0; i < header->program_count; ++i, ++program) {
        if (!is_inside(program->offset, program->file_bytes, size_bytes)) {
            return aotci_refused("a cubin with a segment outside it");
        }
        end = greater(end, program->offset + program->file_bytes);
    }
    if (end != size_bytes) {
        return aotci_refused("a cubin with bytes after it");
    }
    wrong = check_references(image);
    if (wrong != NULL) {
        return wrong;
    }
    if (!are_in_order && !are_sorted_apart(image)) {
        return aotci_refused("a cubin with parts that overlap");
    }
    return NULL;
}

/* ---- functions ----------------------------------------------------------------------------------- */

/* Size of a prefix, if a text of at least `left_bytes` begins with it; else 0. */
#define PREFIX_BYTES(chars, left_bytes, prefix)                                                    \
    ((left_bytes) >= sizeof prefix && memcmp(chars, prefix, sizeof prefix - 1) == 0                \
         ? (unsigned)sizeof prefix - 1                                                             \
         : 0)

struct aotci_cubin_function aotci_cubin_find(const unsigned char *image, const char *symbol) {
    const struct elf_section *section = sections_of(image);
    const struct elf_section *end = section + header_of(image)->section_count;
    const struct elf_section *names = section + header_of(image)->names_section;
    struct aotci_cubin_function function = {.exists = false};
    uint64_t reserved_bytes = 0;
    bool has_shared = false;
    for (; section != end; ++section) {
        const char *name = (const char *)image + names->offset + section->name;
        const uint64_t left_bytes = names->size - section->name;
        const unsigned text = PREFIX_BYTES(name, left_bytes, ".text.");
        const unsigned info = PREFIX_BYTES(name, left_bytes, ".nv.info.");
        const unsigned shared = PREFIX_BYTES(name, left_bytes, ".nv.shared.");
        const char *owner = name + (text | info | shared);
        if (owner == name) {
            continue;
        }
        if (shared != 0 && strcmp(owner, "reserved.0") == 0) {
            reserved_bytes = RESERVED_SHARED_BYTES;
        }
        if (strcmp(owner, symbol) != 0) {
            continue;
        }
        function.exists = function.exists || text != 0;
        if (shared != 0 && !has_shared) {
            function.static_shared_bytes = section->size;
            has_shared = true;
        } else if (info != 0 && function.info == NULL && has_bytes(section)) {
            function.info = image + section->offset;
            function.info_bytes = section->size;
        }
    }
    function.static_shared_bytes = function.static_shared_bytes < reserved_bytes
                                       ? 0
                                       : function.static_shared_bytes - reserved_bytes;
    return function;
}

/* Attributes of `.nv.info.SYMBOL`: a format, a number, and two bytes with the value, or the size of
 * a value that follows. */
enum { SIZED_FORMAT = 4, PARAM_ATTRIBUTE = 0x17, PARAM_BYTES = 12 };

enum aotci_params_verdict aotci_cubin_check_params(const struct aotci_cubin_function *function,
                                                   const unsigned char *records, uint32_t stride,
                                                   uint32_t count, uint32_t *wrong) {
    uint64_t seen[LIMIT_CUBIN_PARAMS / 64] = {0};
    uint32_t seen_count = 0;
    if (function->info == NULL) {
        return PARAMS_NOT_LISTED;
    }
    const unsigned char *bytes = function->info;
    const unsigned char *end = bytes + function->info_bytes;
    while (end - bytes >= 4) {
        const unsigned format = bytes[0];
        const unsigned attribute = bytes[1];
        const size_t size_bytes = format == SIZED_FORMAT ? bytes[2] | (size_t)bytes[3] << 8 : 0;
        bytes += 4;
        if (format == 0 || format > SIZED_FORMAT || size_bytes > (size_t)(end - bytes)) {
            return PARAMS_NOT_LISTED;
        }
        if (format == SIZED_FORMAT && attribute == PARAM_ATTRIBUTE) {
            /* The ordinal, the offset, and the size in the upper bits of a word. */
            const uint32_t ordinal = bytes[4] | (uint32_t)bytes[5] << 8;
            if (size_bytes != PARAM_BYTES || ordinal >= LIMIT_CUBIN_PARAMS) {
                return PARAMS_NOT_LISTED;
            }
            const struct cubin_param_record *param =
                (const void *)(records + (size_t)(ordinal < count ? ordinal : 0) * stride);
            *wrong = ordinal < count ? ordinal : count;
            if (ordinal >= count || param->offset != (bytes[6] | bytes[7] << 8) ||
                param->size != (bytes[10] >> 2 | bytes[11] << 6)) {
                return PARAMS_DIFFER;
            }
            const uint64_t bit = UINT64_C(1) << ordinal % 64;
            seen_count += (seen[ordinal / 64] & bit) == 0;
            seen[ordinal / 64] |= bit;
        }
        bytes += size_bytes;
    }
    if (seen_count == count) {
        return count == 0 ? PARAMS_NOT_LISTED : PARAMS_EQUAL;
    }
    for (*wrong = 0; (seen[*wrong / 64] >> *wrong % 64 & 1) != 0;) {
        ++*wrong;
    }
    return seen_count == 0 ? PARAMS_NOT_LISTED : PARAMS_DIFFER;
}
