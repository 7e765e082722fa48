/* fake_cubin.c: read the functions of a cubin.
 *
 * Functions are the sections `.text.NAME`; `.nv.info.NAME` lists their parameters (attribute 0x17,
 * of 12 bytes: index, ordinal, offset, and the size from bit 18 on), `.nv.shared.NAME` is their
 * static shared memory. Written independently of the runtime's own ELF check, so that neither can
 * hide the other's errors.
 */
#include "fake_cubin.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_CUDA = 190, FORMAT_SIZED = 0x04, ATTRIBUTE_PARAM = 0x17, PARAM_BYTES = 12 };

static void read_params(const unsigned char *info, size_t size_bytes,
                        struct fake_function *function) {
    for (size_t position = 0; position + 4 <= size_bytes;) {
        uint16_t value_bytes = 0;
        memcpy(&value_bytes, info + position + 2, sizeof value_bytes);
        if (info[position] == FORMAT_SIZED && info[position + 1] == ATTRIBUTE_PARAM &&
            value_bytes == PARAM_BYTES) {
            uint16_t ordinal = 0;
            uint16_t offset = 0;
            uint32_t packed = 0;
            memcpy(&ordinal, info + position + 8, sizeof ordinal);
            memcpy(&offset, info + position + 10, sizeof offset);
            memcpy(&packed, info + position + 12, sizeof packed);
            if (ordinal < FAKE_CUDA_MAX_PARAMS) {
                function->params[ordinal] = (struct fake_param){offset, packed >> 18};
                function->param_count =
                    ordinal >= function->param_count ? ordinal + 1u : function->param_count;
            }
        }
        position += 4u + (info[position] == FORMAT_SIZED ? value_bytes : 0u);
    }
}

static Elf64_Shdr section_at(const unsigned char *image, const Elf64_Ehdr *header, unsigned index) {
    Elf64_Shdr section;
    memcpy(&section, image + header->e_shoff + (size_t)index * sizeof section, sizeof section);
    return section;
}

/* The section called `prefix` + `name`; type SHT_NULL if there is none. */
static Elf64_Shdr find_section(const unsigned char *image, const Elf64_Ehdr *header,
                               const char *prefix, const char *name) {
    const Elf64_Shdr names = section_at(image, header, header->e_shstrndx);
    for (unsigned i = 0; i < header->e_shnum; ++i) {
        const Elf64_Shdr section = section_at(image, header, i);
        const char *section_name = (const char *)image + names.sh_offset + section.sh_name;
        if (strncmp(section_name, prefix, strlen(prefix)) == 0 && strcmp(section_name + strlen(prefix), name) == 0) {
            return section;
        }
    }
    return (Elf64_Shdr){.sh_type = SHT_NULL};
}

bool fake_cubin_read(const void *image, struct fake_cubin *cubin) {
    const unsigned char *bytes = image;
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    memset(cubin, 0, sizeof *cubin);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != MACHINE_CUDA) {
        return false;
    }
    cubin->arch = header.e_flags >> (header.e_ident[7] == 51 ? 0 : 8) & 0xFF; /* 51: the ABI of CUDA 12 */
    cubin->functions = calloc(FAKE_MAX_FUNCTIONS, sizeof *cubin->functions);
    if (cubin->functions == NULL) {
        return false;
    }
    const Elf64_Shdr names = section_at(bytes, &header, header.e_shstrndx);
    for (unsigned i = 0; i < header.e_shnum && cubin->function_count < FAKE_MAX_FUNCTIONS; ++i) {
        const Elf64_Shdr section = section_at(bytes, &header, i);
        const char *section_name = (const char *)bytes + names.sh_offset + section.sh_name;
        if (strncmp(section_name, ".text.", 6) != 0) {
            continue;
        }
        struct fake_function *function = &cubin->functions[cubin->function_count++];
        const size_t name_bytes = strnlen(section_name + 6, sizeof function->name - 1);
        memcpy(function->name, section_name + 6, name_bytes);
        const Elf64_Shdr info = find_section(bytes, &header, ".nv.info.", function->name);
        if (info.sh_type != SHT_NULL) {
            read_params(bytes + info.sh_offset, info.sh_size, function);
        }
        const Elf64_Shdr shared = find_section(bytes, &header, ".nv.shared.", function->name);
        function->static_shared_bytes = shared.sh_type == SHT_NULL ? 0 : (int)shared.sh_size;
    }
    return true;
}

const struct fake_function *fake_cubin_find(const struct fake_cubin *cubin, const char *name) {
    for (size_t i = 0; i < cubin->function_count; ++i) {
        if (strcmp(cubin->functions[i].name, name) == 0) {
            return &cubin->functions[i];
        }
    }
    return NULL;
}

void fake_cubin_free(struct fake_cubin *cubin) {
    free(cubin->functions);
    cubin->functions = NULL;
}
