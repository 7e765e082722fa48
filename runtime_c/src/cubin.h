/* cubin.h: check a cubin before the driver sees it. */
#ifndef AOTCI_CUBIN_H
#define AOTCI_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Check that the bytes are a CUDA ELF image for architecture `arch` (10 * major + minor) that lies
 * wholly inside them and fills them, and that sections and symbols have names and name each other.
 * `image` is aligned to 8. NULL if so, otherwise what it is. */
const char *aotci_cubin_check(const unsigned char *image, size_t size_bytes, unsigned arch);

/* Say whether a checked image has the section `.text.SYMBOL`. */
bool aotci_cubin_has_function(const unsigned char *image, const char *symbol);

/* The static shared memory of a CTA of a function of a checked image: the section
 * `.nv.shared.SYMBOL`, without what the system keeps of it. */
uint64_t aotci_cubin_static_shared_bytes(const unsigned char *image, const char *symbol);

/* A parameter of a function: where it lies in the parameter block. */
struct aotci_cubin_param {
    uint16_t offset, size;
};

/* Read the parameters of a function of a checked image, as its section `.nv.info.SYMBOL` lists them; return how
 * many there are, those that are missing before the last one with it and of size 0, or -1 if it does not say: it
 * lists none, or in a way that is not known. */
int aotci_cubin_params(const unsigned char *image, const char *symbol,
                       struct aotci_cubin_param *params, unsigned capacity);

#endif
