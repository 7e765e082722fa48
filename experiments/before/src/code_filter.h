/* code_filter.h: from cubins as the frame of a compressed archive has them to cubins. */
#ifndef AOTCI_CODE_FILTER_H
#define AOTCI_CODE_FILTER_H

#include <stddef.h>

/* The bytes of code of a cubin of `size_bytes`, which are stored apart. At `rest` begins what is stored of it, and
 * as many bytes can be read. */
size_t aotci_code_bytes(const unsigned char *rest, size_t size_bytes);

/* Restore a cubin of `size_bytes` from what is stored of it at `rest` and, of its code, at `code`. */
void aotci_code_restore(unsigned char *cubin, size_t size_bytes, const unsigned char *rest,
                        const unsigned char *code);

#endif
