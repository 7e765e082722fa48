/* root.c: the root of an archive, read in part or whole.
 *
 * Opening verifies the directory, which the header's digest covers. Opening a kernel reads its
 * slot, and verifies its record (pieces.c) with the digest of its index; the index has the
 * digests of its frames. Mere offsets need no verification: data at a wrong offset has another
 * digest. Queries about all kernels first read, verify and check the whole root.
 */
#include "root.h"

#include <string.h>

#include "load.h"
#include "sha256.h"
#include "validate.h"

static struct aotc_archive *changed(const struct aotc_archive *archive) {
    return (struct aotc_archive *)(uintptr_t)archive;
}

aotc_status aotci_root_changed(const struct aotc_archive *archive, aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name, .field = "header and root",
                      .expected = "the bytes that were written", .got = "others",
                      .remedy = "the archive is damaged: copy or build it again");
}

static aotc_status no_memory(const struct aotc_archive *archive, aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "root",
                      .expected = "memory", .got = "none");
}

/* ---- opening ------------------------------------------------------------------------------------ */

/* The first bytes of the file, as many as requested. */
struct beginning {
    const unsigned char *bytes;
    unsigned char *owned; /* or NULL */
    uint32_t size_bytes;
};

static void free_beginning(const struct aotc_archive *archive, const struct beginning *beginning) {
    aotci_deallocate(&archive->allocator, beginning->owned, beginning->size_bytes, 1);
}

/* Read more, unless so many are read. */
static aotc_status lengthen(const struct aotc_archive *archive, struct beginning *beginning,
                            uint32_t size_bytes, aotc_error *error) {
    if (beginning->size_bytes >= size_bytes) {
        return AOTC_OK;
    }
    const struct beginning shorter = *beginning;
    unsigned char *owned = aotci_allocate_bytes(&archive->allocator, size_bytes);
    if (owned == NULL) {
        return no_memory(archive, error);
    }
    *beginning = (struct beginning){owned, owned, size_bytes};
    memcpy(owned, shorter.bytes, shorter.size_bytes);
    free_beginning(archive, &shorter);
    return aotci_read_file(archive, shorter.size_bytes, owned + shorter.size_bytes,
                           size_bytes - shorter.size_bytes, error);
}

/* Size of a root's directory by its own number of sections, if the root is large enough. */
static uint32_t directory_bytes(const struct aotc_archive *archive, const unsigned char *root) {
    uint32_t section_count = 0;
    if (archive->root.size_bytes >= sizeof section_count) {
        memcpy(&section_count, root, sizeof section_count);
    }
    const uint64_t size_bytes = 8 + section_count * (uint64_t)sizeof(struct directory_entry);
    return size_bytes < archive->root.size_bytes ? (uint32_t)size_bytes : archive->root.size_bytes;
}

/* Compare the adjacent header, seals and directory with the header's digest. */
static aotc_status check_header_sum(const struct aotc_archive *archive, const struct header_record *stored,
                                    const unsigned char *bytes, uint32_t size_bytes, aotc_error *error) {
    struct header_record header = *stored;
    unsigned char digest[AOTCI_SHA256_BYTES];
    struct aotci_sha256 hash;
    if (archive->is_trusted) {
        return AOTC_OK;
    }
    memset(header.root_sha256, 0, sizeof header.root_sha256);
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, &header, sizeof header);
    aotci_sha256_update(&hash, bytes + HEADER_BYTES, size_bytes - HEADER_BYTES);
    aotci_sha256_end(&hash, digest);
    return memcmp(digest, stored->root_sha256, sizeof digest) == 0 ? AOTC_OK
                                                                   : aotci_root_changed(archive, error);
}

/* Record the offsets of the sections of a verified directory. */
static aotc_status take_directory(struct aotc_archive *archive, const unsigned char *bytes,
                                  aotc_error *error) {
    struct aotci_tables *root = &archive->root;
    root->bytes = bytes;
    const aotc_status status = aotci_validate_directory(root, true, error);
    root->bytes = NULL;
    for (unsigned i = 0; i <= SECTION_COUNT; ++i) { /* until it is complete */
        root->sections[i].records = NULL;
    }
    return status;
}

/* Verify and check a whole root in memory with a recorded directory. */
static aotc_status check_whole(struct aotc_archive *archive, aotc_error *error) {
    struct aotci_tables whole = archive->root;
    aotc_status status = aotci_pieces_verify(archive, error);
    whole.bytes = archive->head + aotci_root_at(archive);
    whole.is_partial = false;
    status = status == AOTC_OK ? aotci_validate_directory(&whole, true, error) : status;
    for (unsigned i = 0; status == AOTC_OK && i <= SECTION_COUNT; ++i) {
        /* Other threads may read the counts, so leave them: the directory is the same, or the file
         * changed. */
        struct aotci_table *table = &archive->root.sections[i];
        const struct aotci_table *found = &whole.sections[i];
        if (table->count != found->count || table->offset != found->offset ||
            table->stride != found->stride) {
            status = aotci_root_changed(archive, error);
        }
        table->records = found->records;
    }
    if (status == AOTC_OK) {
        archive->root.bytes = whole.bytes;
        status = aotci_validate_root(archive, error);
    }
    atomic_store_explicit(&archive->is_complete, status == AOTC_OK, memory_order_release);
    return status;
}

/* Read everything up to the root's digests into memory. */
static aotc_status keep_head(struct aotc_archive *archive, struct beginning *beginning, aotc_error *error) {
    aotc_status status = lengthen(archive, beginning, archive->head_bytes, error);
    if (status == AOTC_OK && beginning->owned == NULL) {
        archive->owned_head = aotci_allocate_bytes(&archive->allocator, archive->head_bytes);
        status = archive->owned_head == NULL ? no_memory(archive, error) : AOTC_OK;
        if (status == AOTC_OK) {
            memcpy(archive->owned_head, beginning->bytes, archive->head_bytes);
        }
    } else if (status == AOTC_OK) {
        archive->owned_head = beginning->owned;
        beginning->owned = NULL;
    }
    archive->head = archive->owned_head;
    return status;
}

static aotc_status open_root(struct aotc_archive *archive, const struct header_record *header,
                             struct beginning *beginning, aotc_error *error) {
    const uint32_t root_at = aotci_root_at(archive);
    const uint32_t root_bytes = archive->root.size_bytes;
    aotc_status status =
        lengthen(archive, beginning, root_at + (root_bytes < 8 ? root_bytes : 8), error);
    if (status != AOTC_OK) {
        return status;
    }
    const uint32_t end = root_at + directory_bytes(archive, beginning->bytes + root_at);
    status = lengthen(archive, beginning, end, error);
    status = status == AOTC_OK ? check_header_sum(archive, header, beginning->bytes, end, error) : status;
    status = status == AOTC_OK ? take_directory(archive, beginning->bytes + root_at, error) : status;
    return status;
}

aotc_status aotci_root_open(struct aotc_archive *archive, const struct header_record *header,
                            const struct aotci_start *first, bool is_whole, aotc_error *error) {
    struct beginning beginning = {first->bytes, NULL, first->size_bytes};
    archive->is_compressed = (header->required_features & FEATURE_ZSTD) != 0;
    archive->root = (struct aotci_tables){
        .file = archive->name,
        .size_bytes = (uint32_t)header->root_bytes,
        .is_newer = header->minor > FORMAT_MINOR,
        .is_partial = true,
    };
    archive->head_bytes = aotci_root_at(archive) + archive->root.size_bytes + aotci_root_digest_bytes(archive);
    if (archive->file != NULL && (uintptr_t)archive->file % sizeof(uint64_t) == 0) {
        archive->head = archive->file;
        beginning = (struct beginning){archive->head, NULL, archive->head_bytes};
    }
    aotc_status status = open_root(archive, header, &beginning, error);
    if (status == AOTC_OK && is_whole) {
        status = archive->head == NULL ? keep_head(archive, &beginning, error) : AOTC_OK;
        status = status == AOTC_OK ? check_whole(archive, error) : status;
    } else if (status == AOTC_OK) {
        const bool is_read = archive->head == NULL && archive->head_bytes <= beginning.size_bytes;
        status = is_read ? keep_head(archive, &beginning, error) : AOTC_OK;
        status = status == AOTC_OK
                     ? aotci_pieces_open(archive, beginning.bytes + HEADER_BYTES, error)
                     : status;
    }
    if (beginning.owned != NULL) {
        free_beginning(archive, &beginning);
    }
    return status;
}

void aotci_root_close(struct aotc_archive *archive) {
    aotci_pieces_close(archive);
    aotci_deallocate(&archive->allocator, archive->owned_head, archive->head_bytes, 1);
}

/* ---- the whole root
 * ------------------------------------------------------------------------------- */

/* Read a root into memory, for all later queries. */
static aotc_status fetch(struct aotc_archive *archive, aotc_error *error) {
    const uint32_t root_at = aotci_root_at(archive);
    archive->owned_head = aotci_allocate_bytes(&archive->allocator, archive->head_bytes);
    if (archive->owned_head == NULL) {
        return no_memory(archive, error);
    }
    archive->head = archive->owned_head;
    memcpy(archive->owned_head + HEADER_BYTES, archive->remote->seals, aotci_seal_bytes(archive));
    return aotci_read_file(archive, root_at, archive->owned_head + root_at, archive->head_bytes - root_at,
                           error);
}

static void forget(struct aotc_archive *archive) {
    aotci_deallocate(&archive->allocator, archive->owned_head, archive->head_bytes, 1);
    archive->owned_head = NULL;
    archive->head = NULL;
    archive->root.bytes = NULL;
    for (unsigned i = 0; i <= SECTION_COUNT; ++i) {
        archive->root.sections[i].records = NULL;
    }
}

aotc_status aotci_root_complete(const struct aotc_archive *archive, aotc_error *error) {
    aotc_status status = AOTC_OK;
    if (aotci_is_complete(archive)) {
        return AOTC_OK;
    }
    (void)pthread_mutex_lock(&changed(archive)->index_lock);
    if (!aotci_is_complete(archive)) {
        status = archive->remote == NULL ? AOTC_OK : fetch(changed(archive), error);
        status = status == AOTC_OK ? check_whole(changed(archive), error) : status;
        if (status != AOTC_OK && archive->remote != NULL) {
            forget(changed(archive));
        }
    }
    (void)pthread_mutex_unlock(&changed(archive)->index_lock);
    return status;
}

/* ---- kernels ------------------------------------------------------------------------------------- */

/* Bytes of SLOTS in one read of a search: rarely more than two records are looked at. */
enum { SLOT_WINDOW_BYTES = 128 };

aotc_status aotci_root_find(const struct aotc_archive *archive, const char *name, uint32_t *number,
                            aotc_error *error) {
    const bool is_complete = aotci_is_complete(archive);
    const struct aotci_table *slots = &archive->root.sections[SECTION_SLOTS];
    const uint32_t kernel_count = aotci_count(&archive->root, SECTION_ENTRIES);
    const uint32_t mask = slots->count - 1;
    const uint64_t hash = aotci_name_hash(name);
    const uint32_t most =
        slots->stride < SLOT_WINDOW_BYTES ? SLOT_WINDOW_BYTES / slots->stride : 1;
    uint32_t at = (uint32_t)hash & mask;
    *number = UINT32_MAX;
    if (slots->count == 0 || (slots->count & mask) != 0) {
        return AOTC_OK;
    }
    for (uint32_t left = slots->count; left > 0;) {
        unsigned char window[SLOT_WINDOW_BYTES];
        const uint32_t count = slots->count - at < most ? slots->count - at : most;
        const aotc_status status =
            aotci_root_look(archive, slots->offset + (size_t)at * slots->stride,
                            (size_t)(count - 1) * slots->stride + sizeof(struct slot_record), window, error);
        for (uint32_t i = 0; status == AOTC_OK && i < count; ++i) {
            struct slot_record slot;
            memcpy(&slot, window + (size_t)i * slots->stride, sizeof slot);
            if (slot.kernel == 0) {
                return AOTC_OK;
            }
            if (slot.tag == hash >> 32 && slot.kernel <= kernel_count &&
                (!is_complete || strcmp(aotci_kernel_name(archive, slot.kernel - 1), name) == 0)) {
                *number = slot.kernel - 1;
                return AOTC_OK;
            }
        }
        if (status != AOTC_OK) {
            return status;
        }
        at = (at + count) & mask;
        left = left > count ? left - count : 0;
    }
    return AOTC_OK;
}

/* Read a name, with the byte before it, a NUL that proves its start. */
static aotc_status take_name(const struct aotc_archive *archive, uint32_t number, uint32_t offset,
                             char name[LIMIT_NAME_BYTES + 1], aotc_error *error) {
    char bytes[LIMIT_NAME_BYTES + 2] = {0};
    const struct aotci_table *strings = &archive->root.sections[SECTION_STRINGS];
    if (offset == 0 || offset >= strings->count) {
        return aotci_bad_record(&archive->root, error, SECTION_ENTRIES, number, "name", "a name");
    }
    const size_t left = (size_t)strings->count - offset + 1;
    const size_t most = left < sizeof bytes ? left : sizeof bytes;
    const aotc_status status =
        aotci_root_take(archive, (size_t)strings->offset + offset - 1, most, bytes, error);
    if (status == AOTC_OK && (bytes[0] != 0 || bytes[1] == 0 ||
                              memchr(bytes + 1, 0, most - 1) == NULL || !aotci_is_utf8(bytes + 1))) {
        return aotci_bad_record(&archive->root, error, SECTION_ENTRIES, number, "name", "a name");
    }
    memcpy(name, bytes + 1, LIMIT_NAME_BYTES + 1);
    return status;
}

aotc_status aotci_root_kernel(struct aotc_kernel *kernel, char *name, aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct aotci_table *entries = &archive->root.sections[SECTION_ENTRIES];
    struct entry_record *entry = &kernel->entry;
    aotc_status status =
        aotci_root_take(archive, entries->offset + (size_t)kernel->number * entries->stride,
                        sizeof *entry, entry, error);
    status = status == AOTC_OK ? aotci_validate_entry(archive, kernel->number, entry, error) : status;
    if (status == AOTC_OK && name != NULL) {
        status = take_name(archive, kernel->number, entry->name, name, error);
    }
    return status;
}
