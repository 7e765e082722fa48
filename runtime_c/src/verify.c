/* verify.c: compare all frames of an archive with their digests, each once.
 *
 * Frames fill the file: first the indices, then frames of blobs in the order of their first use by
 * kernels. So a frame that does not begin at the current end was seen before, or is an error.
 */
#include <string.h>

#include "load.h"
#include "validate.h"

/* A verified frame of blobs. */
struct seen {
    uint64_t offset;
    const struct frame_record *frame; /* in the index of its first user */
};

struct walk {
    struct aotc_archive *archive;
    struct seen *seen; /* by ascending offsets */
    uint32_t seen_count;
    uint64_t end; /* of the last frame */
    uint64_t decoded_bytes;
};

/* Check that the bytes between `end` and the next frame, at `offset`, are zero. */
static aotc_status check_padding(const struct walk *walk, uint64_t offset, aotc_error *error) {
    unsigned char padding[STORED_ALIGN] = {0};
    static const unsigned char zeros[STORED_ALIGN] = {0};
    const aotc_status status =
        aotci_read_file(walk->archive, walk->end, padding, offset - walk->end, error);
    if (status == AOTC_OK && memcmp(padding, zeros, sizeof zeros) != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = walk->archive->name, .field = "frames",
                          .expected = "zeros between them", .got = "something else",
                          .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    return status;
}

/* Advance past a frame at the expected offset, and the data that follows it. */
static aotc_status pass(struct walk *walk, uint64_t offset, uint64_t size_bytes,
                        const struct frame_record *frame, aotc_error *error) {
    const aotc_status status = check_padding(walk, offset, error);
    walk->end = offset + size_bytes;
    walk->decoded_bytes += frame->raw_bytes;
    if (status == AOTC_OK && walk->decoded_bytes > LIMIT_DECODED_BYTES) {
        return aotci_above_limit(&walk->archive->root, error, "decoded size of all frames",
                                 walk->decoded_bytes, LIMIT_DECODED_BYTES);
    }
    return status;
}

/* The frame seen at an offset, or NULL. */
static const struct frame_record *seen_at(const struct walk *walk, uint64_t offset) {
    uint32_t low = 0;
    for (uint32_t high = walk->seen_count; low < high;) {
        const uint32_t middle = low + (high - low) / 2;
        if (walk->seen[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < walk->seen_count && walk->seen[low].offset == offset ? walk->seen[low].frame : NULL;
}

static aotc_status verify_frame(struct walk *walk, const struct aotc_kernel *kernel, uint32_t number,
                                aotc_error *error) {
    const struct frame_record *frame = aotci_frame(&kernel->tables, number);
    uint64_t offset = 0;
    aotc_status status = aotci_frame_place(kernel, number, &offset, error);
    if (status != AOTC_OK) {
        return status;
    }
    if (offset != aotci_frame_start(walk->archive, walk->end)) {
        const struct frame_record *before = seen_at(walk, offset);
        return before != NULL && memcmp(before, frame, sizeof *frame) == 0
                   ? AOTC_OK
                   : aotci_bad_place(kernel, number,
                                     "the end of the previous frame, or a frame that was used before",
                                     error);
    }
    status = pass(walk, offset, frame->stored_bytes, frame, error);
    walk->seen[walk->seen_count++] = (struct seen){offset, frame};
    return status == AOTC_OK ? aotci_frame_verify(kernel, number, offset, error) : status;
}

static aotc_status verify_all(struct walk *walk, aotc_error *error) {
    struct aotc_archive *archive = walk->archive;
    const struct aotci_tables *root = &archive->root;
    const uint32_t kernel_count = aotci_count(root, SECTION_ENTRIES);
    aotc_status status = AOTC_OK;
    for (uint32_t i = 0; status == AOTC_OK && i < kernel_count; ++i) {
        const struct entry_record *entry = aotci_entry(root, i);
        status = pass(walk, entry->offset, aotci_index_bytes(entry), &entry->frame, error);
    }
    for (uint32_t i = 0; status == AOTC_OK && i < kernel_count; ++i) {
        const uint32_t frame_count = aotci_entry(root, i)->frame_count;
        status = aotci_kernel_open(archive, i, NULL, error);
        for (uint32_t frame = 0; status == AOTC_OK && frame < frame_count; ++frame) {
            status = verify_frame(walk, aotci_kernel(archive, i), frame, error);
        }
    }
    if (status == AOTC_OK && walk->end != archive->file_bytes) {
        return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = archive->name, .field = "frames",
                          .expected = "the end of the file after the last one", .got = "more",
                          .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    return status;
}

aotc_status aotci_verify_frames(struct aotc_archive *archive, aotc_error *error) {
    struct walk walk = {.archive = archive, .end = archive->head_bytes};
    size_t frame_count = 0; /* each has an offset in the file: no more fit */
    for (uint32_t i = 0; i < aotci_count(&archive->root, SECTION_ENTRIES); ++i) {
        frame_count += aotci_entry(&archive->root, i)->frame_count;
    }
    walk.seen = aotci_allocate(&archive->allocator, frame_count, sizeof *walk.seen);
    if (walk.seen == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "frames",
                          .expected = "memory to verify them", .got = "none");
    }
    const aotc_status status = verify_all(&walk, error);
    aotci_deallocate(&archive->allocator, walk.seen, frame_count, sizeof *walk.seen);
    return status;
}
