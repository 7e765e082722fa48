/* lzma.h: the compression of an archive's frames. */
#ifndef AOTCI_LZMA_H
#define AOTCI_LZMA_H

#include <stdbool.h>
#include <stddef.h>

/* Decode a raw LZMA stream (lc 3, lp 0, pb 2), with its end marker and nothing after it, into exactly
 * `target_bytes`; false if it is no such stream. What it had written then is left in the target. */
bool aotci_lzma_decode(const unsigned char *source, size_t source_bytes, unsigned char *target,
                       size_t target_bytes);

#endif
