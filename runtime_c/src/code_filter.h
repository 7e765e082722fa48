/* code_filter.h: restore cubins from their filtered form in compressed archives. */
#ifndef AOTCI_CODE_FILTER_H
#define AOTCI_CODE_FILTER_H

#include <stddef.h>

/* The separately stored bytes of code of a cubin of `size_bytes`. `rest` is the start of
 * its other stored bytes; as many are readable. */
size_t aotci_code_bytes(const unsigned char *rest, size_t size_bytes);

/* Restore a cubin of `size_bytes` from its stored bytes at `rest` and its stored code at `code`. */
void aotci_code_restore(unsigned char *cubin, size_t size_bytes, const unsigned char *rest,
                        const unsigned char *code);

#endif
