/* blob.c: from a blob in the file to bytes that are known to be what was written. */
#include <inttypes.h>
#include <string.h>

#include "load.h"
#include "sha256.h"
#include "zstd_frame.h"

static struct aotci_text blob_field(uint32_t index) { return aotci_text("blob %" PRIu32, index); }

aotc_status aotci_blob_verify(const struct aotc_archive *archive, uint32_t index,
                              aotc_error *error) {
    const struct blob_record *blob = aotci_blob(archive, index);
    unsigned char digest[AOTCI_SHA256_BYTES];
    struct aotci_sha256 hash;
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, archive->file + blob->offset, blob->stored_bytes);
    aotci_sha256_end(&hash, digest);
    if (memcmp(digest, blob->sha256, sizeof digest) != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name,
                          .field = blob_field(index).chars,
                          .expected = "the bytes that were written", .got = "others",
                          .remedy = "the archive is damaged: copy or build it again");
    }
    return AOTC_OK;
}

/* How many bytes the frame decodes to that begins with blob `first`. */
static size_t frame_bytes(const struct aotc_archive *archive, uint32_t first) {
    uint32_t last = first;
    while (last + 1 < aotci_count(archive, SECTION_BLOBS) &&
           aotci_blob(archive, last + 1)->start != 0) {
        last += 1;
    }
    return (size_t)aotci_blob(archive, last)->start + aotci_blob(archive, last)->raw_bytes;
}

static aotc_status no_memory(const struct aotc_archive *archive, uint32_t index, size_t size_bytes,
                             aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name,
                      .field = blob_field(index).chars,
                      .got = aotci_text("no %zu bytes to decode it", size_bytes).chars);
}

/* Verify the frame that begins with blob `first` and decode it into new memory. */
static aotc_status decode_frame(const struct aotc_archive *archive, uint32_t first,
                                size_t size_bytes, unsigned char **raw, aotc_error *error) {
    if (archive->decompress == NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_UNSUPPORTED, .file = archive->name, .field = "decompression",
            .expected = "a zstd decompressor", .got = "none",
            .remedy = "set aotc_open_options.decompress, or build the library with libzstd");
    }
    const aotc_status status = aotci_blob_verify(archive, first, error);
    if (status != AOTC_OK) {
        return status;
    }
    const struct blob_record *blob = aotci_blob(archive, first);
    const unsigned char *frame = archive->file + blob->offset;
    const char *wrong = aotci_zstd_frame_check(frame, blob->stored_bytes, size_bytes);
    unsigned char *decoded = NULL;
    if (wrong == NULL) {
        decoded = aotci_allocate(&archive->allocator, size_bytes, 1);
        if (decoded == NULL) {
            return no_memory(archive, first, size_bytes, error);
        }
        if (archive->decompress(archive->decompress_user, frame, blob->stored_bytes, decoded,
                                size_bytes) != 0) {
            wrong = "a zstd frame that cannot be decoded";
            aotci_deallocate(&archive->allocator, decoded, size_bytes, 1);
        }
    }
    if (wrong != NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_FORMAT, .file = archive->name, .field = blob_field(first).chars,
            .expected = "one zstd frame of the size in the index", .got = wrong,
            .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    *raw = decoded;
    return AOTC_OK;
}

aotc_status aotci_blob_decode(struct aotc_archive *archive, uint32_t index, unsigned char **raw,
                              aotc_error *error) {
    const struct blob_record *blob = aotci_blob(archive, index);
    struct aotci_frame *frame = &archive->frame;
    uint32_t first = index;
    *raw = NULL;
    while (aotci_blob(archive, first)->start != 0) {
        first -= 1;
    }
    const size_t size_bytes = frame_bytes(archive, first);
    if (size_bytes == blob->raw_bytes) {
        return decode_frame(archive, first, size_bytes, raw, error);
    }
    if (frame->bytes == NULL || frame->first_blob != first) {
        aotci_frame_drop(archive);
        const aotc_status status = decode_frame(archive, first, size_bytes, &frame->bytes, error);
        if (status != AOTC_OK) {
            return status;
        }
        frame->size_bytes = size_bytes;
        frame->first_blob = first;
    }
    /* A copy of its own: aligned, as the checks of cubins and the driver need it. */
    unsigned char *copy = aotci_allocate(&archive->allocator, blob->raw_bytes, 1);
    if (copy == NULL) {
        return no_memory(archive, index, blob->raw_bytes, error);
    }
    memcpy(copy, frame->bytes + blob->start, blob->raw_bytes);
    *raw = copy;
    return AOTC_OK;
}

void aotci_frame_drop(struct aotc_archive *archive) {
    if (archive->frame.bytes != NULL) {
        aotci_deallocate(&archive->allocator, archive->frame.bytes, archive->frame.size_bytes, 1);
        archive->frame.bytes = NULL;
    }
}
