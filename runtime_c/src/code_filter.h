/* code_filter.h: from a cubin as it is stored to the cubin. */
#ifndef AOTCI_CODE_FILTER_H
#define AOTCI_CODE_FILTER_H

#include <stddef.h>

/* Make instructions of the differences that an archive stores, in place. The bytes need not have been
 * checked: none outside of them is touched, and what comes out of a file that is damaged or forged is
 * for the checks of cubins to refuse. Format: docs/reference/archive-format.md, section 7. */
void aotci_code_restore(unsigned char *image, size_t size_bytes);

#endif
