/* zstd_frame.c: walk the headers of a zstd frame.
 *
 * The archive format allows one encoding of a blob only: one frame with its size, no dictionary, no
 * checksum, nothing after it. Decoders accept more, so it is checked here, before a decoder runs.
 * Source: RFC 8878, sections 3.1.1.1 (frame header) and 3.1.1.2 (blocks).
 */
#include "zstd_frame.h"

#include <stdbool.h>

enum { MAGIC_BYTES = 4, BLOCK_HEADER_BYTES = 3, BLOCK_RLE = 1, BLOCK_RESERVED = 3 };

static uint64_t load_little_endian(const unsigned char *bytes, unsigned count) {
    uint64_t value = 0;
    for (unsigned i = 0; i < count; ++i) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

/* Walk the blocks from `at`; the last one must end the frame. */
static const char *check_blocks(const unsigned char *frame, size_t size_bytes, size_t at) {
    for (;;) {
        if (size_bytes - at < BLOCK_HEADER_BYTES) {
            return "a zstd frame that is cut short";
        }
        const uint32_t header = (uint32_t)load_little_endian(frame + at, BLOCK_HEADER_BYTES);
        at += BLOCK_HEADER_BYTES;
        const bool last = (header & 1) != 0;
        const unsigned type = (header >> 1) & 3;
        if (type == BLOCK_RESERVED) {
            return "a zstd frame with a reserved block type";
        }
        const size_t stored_bytes = type == BLOCK_RLE ? 1 : header >> 3;
        if (stored_bytes > size_bytes - at) {
            return "a zstd frame that is cut short";
        }
        at += stored_bytes;
        if (last) {
            return at == size_bytes ? NULL : "bytes after the zstd frame";
        }
    }
}

const char *aotci_zstd_frame_check(const unsigned char *frame, size_t size_bytes,
                                   uint64_t raw_bytes) {
    static const unsigned char magic[MAGIC_BYTES] = {0x28, 0xB5, 0x2F, 0xFD};
    if (size_bytes < MAGIC_BYTES + 1) {
        return "fewer bytes than a zstd frame has";
    }
    for (unsigned i = 0; i < MAGIC_BYTES; ++i) {
        if (frame[i] != magic[i]) {
            return "bytes that are no zstd frame";
        }
    }
    const unsigned descriptor = frame[MAGIC_BYTES];
    const bool single_segment = (descriptor & 0x20) != 0;
    if ((descriptor & 0x18) != 0) {
        return "a zstd frame with reserved bits set";
    }
    if ((descriptor & 0x04) != 0) {
        return "a zstd frame with a checksum of its own";
    }
    if ((descriptor & 0x03) != 0) {
        return "a zstd frame that needs a dictionary";
    }

    const unsigned size_code = descriptor >> 6;
    const unsigned field_bytes = size_code == 0 ? (single_segment ? 1u : 0u) : 1u << size_code;
    if (field_bytes == 0) {
        return "a zstd frame that does not state its content size";
    }
    const size_t field_at = MAGIC_BYTES + 1 + (single_segment ? 0 : 1);
    if (size_bytes < field_at + field_bytes) {
        return "a zstd frame that is cut short";
    }
    uint64_t stated_bytes = load_little_endian(frame + field_at, field_bytes);
    if (field_bytes == 2) {
        stated_bytes += 256;
    }
    if (stated_bytes != raw_bytes) {
        return "a zstd frame of another content size";
    }
    return check_blocks(frame, size_bytes, field_at + field_bytes);
}
