/* frame.c: read frames from the file, and verify and decode them. */
#define _GNU_SOURCE /* pread under -std=c11 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "code_filter.h"
#include "load.h"
#include "sha256.h"
#include "validate.h"
#include "zstd_frame.h"

/* A frame of a kernel, and its offset. */
struct source {
    const struct aotc_kernel *kernel;
    uint32_t number; /* among the frames of blobs, or INDEX */
    uint64_t offset;
    const struct frame_record *frame;
    struct aotci_room room; /* memory to read its bytes into */
    uint64_t places_bytes;  /* the offsets after it, read together */
};

enum { INDEX = -1 };

static struct aotci_text field_of(const struct source *source) {
    return source->number == (uint32_t)INDEX ? aotci_text("index")
                                             : aotci_text("frame %" PRIu32, source->number);
}

static aotc_status no_memory(const struct source *source, size_t size_bytes, aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = source->kernel->archive->name,
                      .kernel = source->kernel->name, .field = field_of(source).chars,
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

/* Bytes of the file: in the archive's memory if they are aligned there or need not be; otherwise
 * read into the source's room, or into new memory that the caller frees. */
static aotc_status stored_bytes(const struct source *source, bool is_aligned, struct aotci_content *content,
                                aotc_error *error) {
    const struct aotc_archive *archive = source->kernel->archive;
    const size_t size_bytes = (size_t)(source->frame->stored_bytes + source->places_bytes);
    *content = (struct aotci_content){.size_bytes = size_bytes};
    if (archive->file != NULL) {
        content->bytes = archive->file + source->offset;
        if (!is_aligned || (uintptr_t)content->bytes % sizeof(uint64_t) == 0) {
            return AOTC_OK;
        }
    }
    unsigned char *bytes = source->room.bytes;
    if (bytes == NULL || size_bytes > source->room.size_bytes) {
        content->owned = bytes = aotci_allocate_bytes(&archive->allocator, size_bytes);
    }
    if (bytes == NULL) {
        return no_memory(source, size_bytes, error);
    }
    content->bytes = bytes;
    const aotc_status status = aotci_read_file(archive, source->offset, bytes, size_bytes, error);
    if (status != AOTC_OK) {
        aotci_content_free(archive, content);
    }
    return status;
}

static aotc_status verified(const struct source *source, bool is_aligned, struct aotci_content *content,
                            aotc_error *error) {
    const struct aotc_archive *archive = source->kernel->archive;
    const aotc_status status = stored_bytes(source, is_aligned, content, error);
    if (status != AOTC_OK || archive->is_trusted) {
        return status;
    }
    unsigned char digest[AOTCI_SHA256_BYTES];
    aotci_sha256(content->bytes, source->frame->stored_bytes, digest);
    if (memcmp(digest, source->frame->sha256, sizeof digest) != 0) {
        aotci_content_free(archive, content);
        return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name,
                          .kernel = source->kernel->name, .field = field_of(source).chars,
                          .expected = "the bytes that were written", .got = "others",
                          .remedy = "the archive is damaged: copy or build it again");
    }
    return AOTC_OK;
}

void aotci_content_free(const struct aotc_archive *archive, const struct aotci_content *content) {
    aotci_deallocate(&archive->allocator, content->owned, content->size_bytes, 1);
}

aotc_status aotci_frame_verify(const struct aotc_kernel *kernel, uint32_t number, uint64_t offset,
                               aotc_error *error) {
    const struct source source = {.kernel = kernel, .number = number, .offset = offset,
                                  .frame = aotci_frame(&kernel->tables, number)};
    struct aotci_content content;
    const aotc_status status = verified(&source, false, &content, error);
    if (status == AOTC_OK) {
        aotci_content_free(kernel->archive, &content);
    }
    return status;
}

static aotc_status decode(const struct source *source, struct aotci_content *content, aotc_error *error) {
    const struct aotc_archive *archive = source->kernel->archive;
    const struct frame_record *frame = source->frame;
    if (!archive->is_compressed) {
        return verified(source, true, content, error);
    }
    if (archive->decompress == NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_UNSUPPORTED, .file = archive->name, .field = "decompression",
            .expected = "a zstd decompressor", .got = "none",
            .remedy = "set aotc_open_options.decompress, build the library with libzstd, or the archive without "
                      "compression");
    }
    struct aotci_content stored;
    aotc_status status = verified(source, false, &stored, error);
    if (status != AOTC_OK) {
        return status;
    }
    const char *wrong = aotci_zstd_frame_check(stored.bytes, frame->stored_bytes, frame->raw_bytes);
    unsigned char *decoded = NULL;
    if (wrong == NULL) {
        decoded = aotci_allocate(&archive->allocator, frame->raw_bytes, 1);
        if (decoded == NULL) {
            status = no_memory(source, frame->raw_bytes, error);
        } else if (archive->decompress(archive->decompress_user, stored.bytes, frame->stored_bytes,
                                       decoded, frame->raw_bytes) != 0) {
            wrong = "a zstd frame that cannot be decoded";
            aotci_deallocate(&archive->allocator, decoded, frame->raw_bytes, 1);
        }
    }
    aotci_content_free(archive, &stored);
    if (wrong != NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_FORMAT, .file = archive->name, .kernel = source->kernel->name,
            .field = field_of(source).chars, .expected = "one zstd frame of the size that was written",
            .got = wrong, .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    *content = (struct aotci_content){decoded, decoded, frame->raw_bytes};
    return status;
}

aotc_status aotci_index_decode(struct aotc_kernel *kernel, aotc_error *error) {
    const struct entry_record *entry = &kernel->entry;
    const bool is_compressed = kernel->archive->is_compressed;
    const struct source source = {
        .kernel = kernel,
        .number = (uint32_t)INDEX,
        .offset = entry->offset,
        .frame = &entry->frame,
        .places_bytes = is_compressed ? 0 : aotci_index_bytes(entry) - entry->frame.stored_bytes,
    };
    struct aotci_content index;
    const aotc_status status = decode(&source, &index, error);
    if (status == AOTC_OK) {
        kernel->index = index;
        kernel->places = is_compressed ? NULL : index.bytes + entry->frame.stored_bytes;
    }
    return status;
}

aotc_status aotci_bad_place(const struct aotc_kernel *kernel, uint32_t number, const char *expected,
                            aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = kernel->archive->name, .kernel = kernel->name,
                      .field = aotci_text("frame %" PRIu32 ", place", number).chars,
                      .expected = expected, .got = "something else",
                      .remedy = "the archive is damaged or its writer is wrong: build it again");
}

aotc_status aotci_frame_place(const struct aotc_kernel *kernel, uint32_t number, uint64_t *offset,
                              aotc_error *error) {
    const struct entry_record *entry = &kernel->entry;
    const size_t at = number * sizeof *offset;
    aotc_status status = AOTC_OK;
    if (kernel->places != NULL) {
        memcpy(offset, kernel->places + at, sizeof *offset);
    } else {
        unsigned char bytes[sizeof *offset] = {0};
        status = aotci_read_file(kernel->archive, entry->offset + entry->frame.stored_bytes + at, bytes,
                                 sizeof bytes, error);
        memcpy(offset, bytes, sizeof bytes);
    }
    const uint32_t stored_bytes = aotci_frame(&kernel->tables, number)->stored_bytes;
    if (status == AOTC_OK && !aotci_is_place(kernel->archive, *offset, stored_bytes)) {
        return aotci_bad_place(kernel, number, "one in the file", error);
    }
    return status;
}

/* Find a cubin in its frame, starting from the last one found or the first. In a compressed
 * archive, a frame has each cubin's other bytes in order from its start, and each cubin's code in
 * order backwards from its end. */
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

/* Copy a blob out of its decoded frame. */
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
    struct source source = {
        .kernel = kernel, .number = blob->frame, .frame = aotci_frame(&kernel->tables, blob->frame)};
    const bool is_there = frame->content.bytes != NULL &&
                          memcmp(&frame->record, source.frame, sizeof frame->record) == 0;
    if (!is_there) {
        aotc_status status = aotci_frame_place(kernel, blob->frame, &source.offset, error);
        if (status == AOTC_OK && !archive->is_compressed && source.frame->raw_bytes == blob->raw_bytes) {
            source.room = room;
            return verified(&source, true, content, error);
        }
        aotci_frame_drop(archive);
        status = status == AOTC_OK ? decode(&source, &frame->content, error) : status;
        if (status != AOTC_OK) {
            frame->content = (struct aotci_content){.bytes = NULL};
            return status;
        }
        frame->record = *source.frame;
        frame->kernel = NULL;
    }
    /* A separate copy: aligned, as cubin checks and the driver require. */
    unsigned char *copy = aotci_allocate_bytes(&archive->allocator, blob->raw_bytes);
    if (copy == NULL) {
        return no_memory(&source, blob->raw_bytes, error);
    }
    copy_blob(kernel, index, frame, copy);
    if (frame->content.size_bytes == blob->raw_bytes) { /* it is the only blob in it */
        aotci_frame_drop(archive);
    }
    *content = (struct aotci_content){copy, copy, blob->raw_bytes};
    return AOTC_OK;
}

void aotci_frame_drop(struct aotc_archive *archive) {
    aotci_content_free(archive, &archive->frame.content);
    archive->frame.content = (struct aotci_content){.bytes = NULL};
}
