/* zstd_frame.h: check a zstd frame without decoding it. */
#ifndef AOTCI_ZSTD_FRAME_H
#define AOTCI_ZSTD_FRAME_H

#include <stddef.h>
#include <stdint.h>

/* Check that the bytes are exactly one frame with the content size `raw_bytes`, without a
 * dictionary and without a checksum. Returns NULL, or a description of the error. */
const char *aotci_zstd_frame_check(const unsigned char *frame, size_t size_bytes,
                                   uint64_t raw_bytes);

#endif
