/* cubin.h: check a cubin before the driver sees it. */
#ifndef AOTCI_CUBIN_H
#define AOTCI_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Check that the bytes are exactly one CUDA ELF image for architecture `arch` (10 * major + minor),
 * and that sections and symbols have names and valid references. `image` is aligned to 8. Returns
 * NULL, or a description of the error. */
const char *aotci_cubin_check(const unsigned char *image, size_t size_bytes, unsigned arch);

/* A function in a checked image. */
struct aotci_cubin_function {
    bool exists;                  /* there is a section `.text.SYMBOL` */
    uint64_t static_shared_bytes; /* of a CTA: `.nv.shared.SYMBOL`, without the system's reserve */
    const unsigned char *info;    /* `.nv.info.SYMBOL`; NULL if there is none */
    uint64_t info_bytes;
};

struct aotci_cubin_function aotci_cubin_find(const unsigned char *image, const char *symbol);

enum aotci_params_verdict { PARAMS_EQUAL, PARAMS_DIFFER, PARAMS_NOT_LISTED };

/* Compare the parameters of a function, listed in its section `.nv.info.SYMBOL`, with `count`
 * records; `*wrong` is the first difference. PARAMS_NOT_LISTED if it lists none, or in an unknown
 * way. */
enum aotci_params_verdict aotci_cubin_check_params(const struct aotci_cubin_function *function,
                                                   const unsigned char *records, uint32_t stride,
                                                   uint32_t count, uint32_t *wrong);

#endif
