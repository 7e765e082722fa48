/* frame.c: from a frame in the file to bytes that are known to be what was written. */
#define _GNU_SOURCE /* pread under -std=c11 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "code_filter.h"
#include "load.h"
#include "sha256.h"
#include "zstd_frame.h"

static struct aotci_text frame_field(uint32_t number) {
    return aotci_text("frame %" PRIu32, number);
}

static aotc_status no_memory(const struct aotc_archive *archive, uint32_t number, size_t size_bytes,
                             aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name,
                      .field = frame_field(number).chars,
                      .got = aotci_text("no %zu bytes to decode it", size_bytes).chars);
}

aotc_status aotci_read_file(const struct aotc_archive *archive, uint64_t offset,
                            unsigned char *target, uint64_t size_bytes, aotc_error *error) {
    uint64_t done = 0;
    int number = 0;
    while (done < size_bytes && number == 0) {
        const ssize_t count = pread(archive->descriptor, target + done, (size_t)(size_bytes - done),
                                    (off_t)(offset + done));
        if (count > 0) {
            done += (uint64_t)count;
        } else if (count == 0) {
            number = EIO;
        } else if (errno != EINTR) {
            number = errno;
        }
    }
    if (number == 0) {
        return AOTC_OK;
    }
    return AOTCI_FAIL(error, AOTC_ERROR_IO, .file = archive->name, .field = "read",
                      .expected = "a file that can be read",
                      .got = number == EIO ? "a file that became shorter" : strerror(number),
                      .os_error = number, .remedy = "check the path and its permissions");
}

/* The bytes of a frame as they are stored, verified: in the archive's memory, or read into new memory
 * that the caller lets go (`*read`, else NULL). */
static aotc_status verified_frame(const struct aotc_archive *archive, uint32_t number,
                                  const unsigned char **stored, unsigned char **read,
                                  aotc_error *error) {
    const struct frame_record *frame = aotci_frame(&archive->root, number);
    *read = NULL;
    if (archive->file != NULL) {
        *stored = archive->file + frame->offset;
    } else {
        *read = aotci_allocate(&archive->allocator, frame->stored_bytes, 1);
        if (*read == NULL) {
            return no_memory(archive, number, frame->stored_bytes, error);
        }
        *stored = *read;
        const aotc_status status =
            aotci_read_file(archive, frame->offset, *read, frame->stored_bytes, error);
        if (status != AOTC_OK) {
            aotci_deallocate(&archive->allocator, *read, frame->stored_bytes, 1);
            return status;
        }
    }
    unsigned char digest[AOTCI_SHA256_BYTES];
    struct aotci_sha256 hash;
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, *stored, frame->stored_bytes);
    aotci_sha256_end(&hash, digest);
    if (memcmp(digest, frame->sha256, sizeof digest) != 0) {
        aotci_deallocate(&archive->allocator, *read, frame->stored_bytes, 1);
        return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name,
                          .field = frame_field(number).chars,
                          .expected = "the bytes that were written", .got = "others",
                          .remedy = "the archive is damaged: copy or build it again");
    }
    return AOTC_OK;
}

aotc_status aotci_frame_verify(const struct aotc_archive *archive, uint32_t number,
                               aotc_error *error) {
    const unsigned char *stored = NULL;
    unsigned char *read = NULL;
    const aotc_status status = verified_frame(archive, number, &stored, &read, error);
    if (status == AOTC_OK) {
        aotci_deallocate(&archive->allocator, read, aotci_frame(&archive->root, number)->stored_bytes, 1);
    }
    return status;
}

aotc_status aotci_frame_decode(const struct aotc_archive *archive, uint32_t number,
                               unsigned char **raw, aotc_error *error) {
    const struct frame_record *frame = aotci_frame(&archive->root, number);
    const aotc_allocator *allocator = &archive->allocator;
    const unsigned char *stored = NULL;
    unsigned char *read = NULL;
    if (archive->decompress == NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_UNSUPPORTED, .file = archive->name, .field = "decompression",
            .expected = "a zstd decompressor", .got = "none",
            .remedy = "set aotc_open_options.decompress, or build the library with libzstd");
    }
    aotc_status status = verified_frame(archive, number, &stored, &read, error);
    if (status != AOTC_OK) {
        return status;
    }
    const char *wrong = aotci_zstd_frame_check(stored, frame->stored_bytes, frame->raw_bytes);
    unsigned char *decoded = NULL;
    if (wrong == NULL) {
        decoded = aotci_allocate(allocator, frame->raw_bytes, 1);
        if (decoded == NULL) {
            status = no_memory(archive, number, frame->raw_bytes, error);
        } else if (archive->decompress(archive->decompress_user, stored, frame->stored_bytes,
                                       decoded, frame->raw_bytes) != 0) {
            wrong = "a zstd frame that cannot be decoded";
            aotci_deallocate(allocator, decoded, frame->raw_bytes, 1);
        }
    }
    aotci_deallocate(allocator, read, frame->stored_bytes, 1);
    if (wrong != NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_FORMAT, .file = archive->name, .field = frame_field(number).chars,
            .expected = "one zstd frame of the size in the root", .got = wrong,
            .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    *raw = decoded;
    return status;
}

aotc_status aotci_blob_decode(const struct aotc_kernel *kernel, uint32_t index, unsigned char **raw,
                              aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    const struct blob_record *blob = aotci_blob(&kernel->tables, index);
    const uint32_t number = aotci_used_frame(kernel, blob->frame);
    const size_t size_bytes = aotci_frame(&archive->root, number)->raw_bytes;
    struct aotci_frame *frame = &archive->frame;
    *raw = NULL;
    if (size_bytes == blob->raw_bytes) {
        const aotc_status status = aotci_frame_decode(archive, number, raw, error);
        if (status == AOTC_OK && blob->kind == BLOB_CUBIN) {
            aotci_code_restore(*raw, blob->raw_bytes);
        }
        return status;
    }
    if (frame->bytes == NULL || frame->number != number) {
        aotci_frame_drop(archive);
        const aotc_status status = aotci_frame_decode(archive, number, &frame->bytes, error);
        if (status != AOTC_OK) {
            return status;
        }
        frame->size_bytes = size_bytes;
        frame->number = number;
    }
    /* A copy of its own: aligned, as the checks of cubins and the driver need it. */
    unsigned char *copy = aotci_allocate(&archive->allocator, blob->raw_bytes, 1);
    if (copy == NULL) {
        return no_memory(archive, number, blob->raw_bytes, error);
    }
    memcpy(copy, frame->bytes + blob->start, blob->raw_bytes);
    if (blob->kind == BLOB_CUBIN) {
        aotci_code_restore(copy, blob->raw_bytes);
    }
    *raw = copy;
    return AOTC_OK;
}

void aotci_frame_drop(struct aotc_archive *archive) {
    if (archive->frame.bytes != NULL) {
        aotci_deallocate(&archive->allocator, archive->frame.bytes, archive->frame.size_bytes, 1);
        archive->frame.bytes = NULL;
    }
}
