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
    if (archive->file != NULL) {
        memcpy(target, archive->file + offset, (size_t)size_bytes);
        return AOTC_OK;
    }
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

static const struct aotci_room no_room = {NULL, 0};

/* Bytes of the file: in the archive's memory if they are aligned there or need not be, or read into the caller's
 * memory or new memory that the caller lets go. */
static aotc_status stored_bytes(const struct aotc_archive *archive, uint32_t number,
                                const struct frame_record *frame, bool is_aligned, struct aotci_room room,
                                struct aotci_content *content, aotc_error *error) {
    *content = (struct aotci_content){.size_bytes = frame->stored_bytes};
    if (archive->file != NULL) {
        content->bytes = archive->file + frame->offset;
        if (!is_aligned || (uintptr_t)content->bytes % sizeof(uint64_t) == 0) {
            return AOTC_OK;
        }
    }
    unsigned char *bytes = room.bytes;
    if (frame->stored_bytes > room.size_bytes) {
        content->owned = bytes = aotci_allocate_bytes(&archive->allocator, frame->stored_bytes);
    }
    if (bytes == NULL) {
        return no_memory(archive, number, frame->stored_bytes, error);
    }
    content->bytes = bytes;
    const aotc_status status =
        aotci_read_file(archive, frame->offset, bytes, frame->stored_bytes, error);
    if (status != AOTC_OK) {
        aotci_content_free(archive, content);
    }
    return status;
}

static aotc_status verified_frame(const struct aotc_archive *archive, uint32_t number,
                                  const struct frame_record *frame, bool is_aligned,
                                  struct aotci_room room, struct aotci_content *content,
                                  aotc_error *error) {
    const aotc_status status =
        stored_bytes(archive, number, frame, is_aligned, room, content, error);
    if (status != AOTC_OK) {
        return status;
    }
    unsigned char digest[AOTCI_SHA256_BYTES];
    if (archive->is_trusted) {
        return AOTC_OK;
    }
    aotci_sha256(content->bytes, frame->stored_bytes, digest);
    if (memcmp(digest, frame->sha256, sizeof digest) != 0) {
        aotci_content_free(archive, content);
        return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name,
                          .field = frame_field(number).chars,
                          .expected = "the bytes that were written", .got = "others",
                          .remedy = "the archive is damaged: copy or build it again");
    }
    return AOTC_OK;
}

void aotci_content_free(const struct aotc_archive *archive, const struct aotci_content *content) {
    aotci_deallocate(&archive->allocator, content->owned, content->size_bytes, 1);
}

/* What lies between a frame and the one before, or the root, is zero. */
static aotc_status check_padding(const struct aotc_archive *archive, uint32_t number,
                                 aotc_error *error) {
    const struct frame_record *frame = aotci_frame(&archive->root, number);
    const struct frame_record *before =
        number == 0 ? NULL : aotci_frame(&archive->root, number - 1);
    const uint64_t end = before == NULL ? archive->head_bytes : before->offset + before->stored_bytes;
    unsigned char padding[STORED_ALIGN] = {0};
    static const unsigned char zeros[STORED_ALIGN] = {0};
    const aotc_status status = aotci_read_file(archive, end, padding, frame->offset - end, error);
    if (status == AOTC_OK && memcmp(padding, zeros, sizeof zeros) != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = archive->name,
                          .field = frame_field(number).chars, .expected = "zeros before it",
                          .got = "something else",
                          .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    return status;
}

aotc_status aotci_frame_verify(const struct aotc_archive *archive, uint32_t number,
                               aotc_error *error) {
    struct aotci_content content;
    aotc_status status = check_padding(archive, number, error);
    if (status == AOTC_OK) {
        status = verified_frame(archive, number, aotci_frame(&archive->root, number), false, no_room,
                                &content, error);
    }
    if (status == AOTC_OK) {
        aotci_content_free(archive, &content);
    }
    return status;
}

aotc_status aotci_frame_decode(const struct aotc_archive *archive, uint32_t number,
                               const struct frame_record *frame, struct aotci_content *content,
                               aotc_error *error) {
    const aotc_allocator *allocator = &archive->allocator;
    if (!archive->is_compressed) {
        return verified_frame(archive, number, frame, true, no_room, content, error);
    }
    if (archive->decompress == NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_UNSUPPORTED, .file = archive->name, .field = "decompression",
            .expected = "a zstd decompressor", .got = "none",
            .remedy = "set aotc_open_options.decompress, build the library with libzstd, or the archive without "
                      "compression");
    }
    struct aotci_content stored;
    aotc_status status = verified_frame(archive, number, frame, false, no_room, &stored, error);
    if (status != AOTC_OK) {
        return status;
    }
    const char *wrong = aotci_zstd_frame_check(stored.bytes, frame->stored_bytes, frame->raw_bytes);
    unsigned char *decoded = NULL;
    if (wrong == NULL) {
        decoded = aotci_allocate(allocator, frame->raw_bytes, 1);
        if (decoded == NULL) {
            status = no_memory(archive, number, frame->raw_bytes, error);
        } else if (archive->decompress(archive->decompress_user, stored.bytes, frame->stored_bytes,
                                       decoded, frame->raw_bytes) != 0) {
            wrong = "a zstd frame that cannot be decoded";
            aotci_deallocate(allocator, decoded, frame->raw_bytes, 1);
        }
    }
    aotci_content_free(archive, &stored);
    if (wrong != NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_FORMAT, .file = archive->name, .field = frame_field(number).chars,
            .expected = "one zstd frame of the size in the root", .got = wrong,
            .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    *content = (struct aotci_content){decoded, decoded, frame->raw_bytes};
    return status;
}

/* Find a cubin in its frame, from the last one that was found or from the first. A compressed archive has all but its
 * code after that of those before it, and its code before that of those, from the end of the frame on. */
static void find_cubin(const struct aotc_kernel *kernel, uint32_t index, struct aotci_frame *frame) {
    const struct aotci_tables *tables = &kernel->tables;
    if (frame->kernel != kernel || frame->blob > index ||
        aotci_blob(tables, frame->blob)->frame != aotci_blob(tables, index)->frame) {
        frame->kernel = kernel;
        frame->blob = index;
        while (aotci_blob(tables, frame->blob)->start != 0) {
            --frame->blob;
        }
        frame->rest = frame->content.bytes;
        frame->code_end = frame->content.bytes + frame->content.size_bytes;
    }
    for (; frame->blob < index; ++frame->blob) {
        const uint32_t size_bytes = aotci_blob(tables, frame->blob)->raw_bytes;
        const size_t code_bytes = aotci_code_bytes(frame->rest, size_bytes);
        frame->rest += size_bytes - code_bytes;
        frame->code_end -= code_bytes;
    }
}

/* Copy a blob out of its frame, which is decoded. */
static void copy_blob(const struct aotc_kernel *kernel, uint32_t index, struct aotci_frame *frame,
                      unsigned char *copy) {
    const struct blob_record *blob = aotci_blob(&kernel->tables, index);
    if (!kernel->archive->is_compressed || blob->kind != BLOB_CUBIN) {
        memcpy(copy, frame->content.bytes + blob->start, blob->raw_bytes);
        return;
    }
    find_cubin(kernel, index, frame);
    aotci_code_restore(copy, blob->raw_bytes, frame->rest,
                       frame->code_end - aotci_code_bytes(frame->rest, blob->raw_bytes));
}

aotc_status aotci_blob_decode(const struct aotc_kernel *kernel, uint32_t index, struct aotci_room room,
                              struct aotci_content *content, aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    const struct blob_record *blob = aotci_blob(&kernel->tables, index);
    struct aotci_frame *frame = &archive->frame;
    struct frame_record record;
    uint32_t number = 0;
    const aotc_status found = aotci_root_frame(kernel, blob->frame, &number, &record, error);
    if (found != AOTC_OK) {
        return found;
    }
    if ((uint64_t)blob->start + blob->raw_bytes > record.raw_bytes) {
        return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = archive->name, .kernel = kernel->name,
                          .field = aotci_text("blob %" PRIu32, index).chars,
                          .expected = "a place inside its frame", .got = "more",
                          .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    if (!archive->is_compressed && record.raw_bytes == blob->raw_bytes) {
        return verified_frame(archive, number, &record, true, room, content, error);
    }
    if (frame->content.bytes == NULL || frame->number != number) {
        aotci_frame_drop(archive);
        const aotc_status status = aotci_frame_decode(archive, number, &record, &frame->content, error);
        if (status != AOTC_OK) {
            frame->content = (struct aotci_content){.bytes = NULL};
            return status;
        }
        frame->number = number;
        frame->kernel = NULL;
    }
    /* A copy of its own: aligned, as the checks of cubins and the driver need it. */
    unsigned char *copy = aotci_allocate_bytes(&archive->allocator, blob->raw_bytes);
    if (copy == NULL) {
        return no_memory(archive, number, blob->raw_bytes, error);
    }
    copy_blob(kernel, index, frame, copy);
    if (frame->content.size_bytes == blob->raw_bytes) { /* there is nothing else in it */
        aotci_frame_drop(archive);
    }
    *content = (struct aotci_content){copy, copy, blob->raw_bytes};
    return AOTC_OK;
}

void aotci_frame_drop(struct aotc_archive *archive) {
    aotci_content_free(archive, &archive->frame.content);
    archive->frame.content = (struct aotci_content){.bytes = NULL};
}
