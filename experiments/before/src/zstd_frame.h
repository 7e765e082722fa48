/* zstd_frame.h: what can be said about a zstd frame without decoding it. */
#ifndef AOTCI_ZSTD_FRAME_H
#define AOTCI_ZSTD_FRAME_H

#include <stddef.h>
#include <stdint.h>

/* Check that the bytes are exactly one frame that states `raw_bytes` as its content size, without a
 * dictionary and without a checksum. NULL if so, otherwise what is wrong. */
const char *aotci_zstd_frame_check(const unsigned char *frame, size_t size_bytes,
                                   uint64_t raw_bytes);

#endif
