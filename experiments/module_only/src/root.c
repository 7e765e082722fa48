/* root.c: the root of an archive: read whole, or of a large one what is asked for.
 *
 * Each piece of the root has a digest, and so has each piece of these, of which the header has one: so a piece can be
 * verified with little else. Of a large root opening reads the directory, and asking for a kernel the pieces with its
 * records and those of its frames, which are checked by themselves then. What is not in memory is read each time, and
 * not kept: pages of memory would take longer to find. Whoever wants to know of all kernels has all of it read, verified
 * and checked first.
 */
#include <string.h>

#include "load.h"
#include "sha256.h"
#include "validate.h"

/* Smaller roots are read and verified whole. */
enum { WHOLE_ROOT_BYTES = 4 << 10 };

static const char damaged[] = "the archive is damaged: copy or build it again";

static struct aotc_archive *changed(const struct aotc_archive *archive) {
    return (struct aotc_archive *)(uintptr_t)archive;
}

/* Bytes of the digests of the root's pieces, which follow it, and of the digests of theirs, which follow them. */
static uint32_t digest_bytes(const struct aotc_archive *archive) {
    return (uint32_t)aotci_digest_bytes(archive->root.size_bytes);
}

static uint32_t sealed_bytes(const struct aotc_archive *archive) {
    return (uint32_t)aotci_digest_bytes(digest_bytes(archive));
}

/* Pieces of the root; those of its digests have the numbers after theirs. */
static uint32_t root_pieces(const struct aotc_archive *archive) {
    return digest_bytes(archive) / DIGEST_BYTES;
}

static uint32_t piece_count(const struct aotc_archive *archive) {
    return root_pieces(archive) + sealed_bytes(archive) / DIGEST_BYTES;
}

static aotc_status other_bytes(const struct aotc_archive *archive, aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name, .field = "header and root",
                      .expected = "the bytes that were written", .got = "others", .remedy = damaged);
}

static aotc_status no_memory(const struct aotc_archive *archive, aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "root",
                      .expected = "memory", .got = "none");
}

static bool is_complete(const struct aotc_archive *archive) {
    return atomic_load_explicit(&archive->is_complete, memory_order_acquire);
}

/* Whether the archive is in memory, and aligned there. */
static bool is_in_place(const struct aotc_archive *archive) {
    return archive->file != NULL && (uintptr_t)archive->file % sizeof(uint64_t) == 0;
}

/* ---- pieces ------------------------------------------------------------------------------------ */

/* Where a piece is in the file, and how many bytes it has. */
struct place {
    uint32_t start, size_bytes;
};

static struct place place_of(const struct aotc_archive *archive, uint32_t piece) {
    const uint32_t pieces = root_pieces(archive);
    const bool is_digests = piece >= pieces;
    const uint32_t at = (is_digests ? piece - pieces : piece) * ROOT_PIECE_BYTES;
    const uint32_t left = (is_digests ? digest_bytes(archive) : archive->root.size_bytes) - at;
    return (struct place){
        .start = HEADER_BYTES + (is_digests ? archive->root.size_bytes : 0) + at,
        .size_bytes = left < ROOT_PIECE_BYTES ? left : ROOT_PIECE_BYTES,
    };
}

/* The piece of digests in which that of a piece of the root is. */
static uint32_t digests_of(const struct aotc_archive *archive, uint32_t piece) {
    return root_pieces(archive) + piece * DIGEST_BYTES / ROOT_PIECE_BYTES;
}

static aotc_status verify(const struct aotc_archive *archive, const unsigned char *bytes,
                          uint32_t size_bytes, const unsigned char *expected, aotc_error *error) {
    unsigned char digest[AOTCI_SHA256_BYTES];
    if (archive->is_trusted) {
        return AOTC_OK;
    }
    aotci_sha256(bytes, size_bytes, digest);
    return memcmp(digest, expected, sizeof digest) == 0 ? AOTC_OK : other_bytes(archive, error);
}

/* Verify a piece of a root in memory, unless that was done. */
static aotc_status need_piece(const struct aotc_archive *archive, uint32_t piece, aotc_error *error) {
    if (archive->pieces != NULL && archive->pieces[piece] == PIECE_VERIFIED) {
        return AOTC_OK;
    }
    const struct place place = place_of(archive, piece);
    const unsigned char *digests = archive->head + HEADER_BYTES + archive->root.size_bytes;
    const aotc_status status = verify(archive, archive->head + place.start, place.size_bytes,
                                      digests + (size_t)piece * DIGEST_BYTES, error);
    if (status == AOTC_OK && archive->pieces != NULL) {
        archive->pieces[piece] = PIECE_VERIFIED;
    }
    return status;
}

/* Read and verify a piece of digests, in place of the one before. */
static aotc_status take_digests(const struct aotc_archive *archive, uint32_t piece, aotc_error *error) {
    struct aotci_remote *remote = archive->remote;
    if (remote->piece == piece) {
        return AOTC_OK;
    }
    const struct place place = place_of(archive, piece);
    const uint32_t number = piece - root_pieces(archive);
    remote->piece = UINT32_MAX;
    aotc_status status =
        aotci_read_file(archive, place.start, remote->digests, place.size_bytes, error);
    if (status == AOTC_OK) {
        status = verify(archive, remote->digests, place.size_bytes,
                        remote->sealed + (size_t)number * DIGEST_BYTES, error);
    }
    remote->piece = status == AOTC_OK ? piece : UINT32_MAX;
    return status;
}

/* Read and verify a piece of a root that is not in memory. */
static aotc_status take_piece(const struct aotc_archive *archive, uint32_t piece,
                              unsigned char bytes[ROOT_PIECE_BYTES], aotc_error *error) {
    const struct place place = place_of(archive, piece);
    aotc_status status = AOTC_OK;
    if (piece == 0 && archive->remote->first != NULL) {
        memcpy(bytes, archive->remote->first + place.start, place.size_bytes);
    } else {
        status = aotci_read_file(archive, place.start, bytes, place.size_bytes, error);
    }
    if (status == AOTC_OK && !archive->is_trusted) {
        status = take_digests(archive, digests_of(archive, piece), error);
    }
    const uint32_t at = piece * DIGEST_BYTES % ROOT_PIECE_BYTES;
    return status == AOTC_OK
               ? verify(archive, bytes, place.size_bytes, archive->remote->digests + at, error)
               : status;
}

/* Copy bytes of the root, verified; `offset` is within it, and what is beyond it is left out. */
static aotc_status take(const struct aotc_archive *archive, size_t offset, size_t size_bytes, void *copy,
                        aotc_error *error) {
    const size_t left = archive->root.size_bytes - offset;
    const size_t end = offset + (size_bytes < left ? size_bytes : left);
    unsigned char *target = copy;
    aotc_status status = AOTC_OK;
    if (is_complete(archive)) {
        memcpy(copy, archive->root.bytes + offset, end - offset);
        return AOTC_OK;
    }
    for (size_t at = offset; status == AOTC_OK && at < end;) {
        unsigned char bytes[ROOT_PIECE_BYTES];
        const uint32_t piece = (uint32_t)(at / ROOT_PIECE_BYTES);
        const size_t start = at % ROOT_PIECE_BYTES;
        const size_t count =
            end - at < ROOT_PIECE_BYTES - start ? end - at : ROOT_PIECE_BYTES - start;
        const unsigned char *source = bytes;
        if (archive->remote != NULL) {
            status = take_piece(archive, piece, bytes, error);
        } else {
            source = archive->root.bytes + (size_t)piece * ROOT_PIECE_BYTES;
            status = need_piece(archive, digests_of(archive, piece), error);
            status = status == AOTC_OK ? need_piece(archive, piece, error) : status;
        }
        if (status == AOTC_OK) {
            memcpy(target, source + start, count);
        }
        target += count;
        at += count;
    }
    return status;
}

/* As much of a record as this library knows. */
static aotc_status take_record(const struct aotc_archive *archive, enum section_kind kind, uint32_t index,
                               void *record, size_t record_bytes, aotc_error *error) {
    const struct aotci_table *table = &archive->root.sections[kind];
    return take(archive, table->offset + (size_t)index * table->stride, record_bytes, record, error);
}

/* A name, with the byte before it, which tells that it begins there. */
static aotc_status take_name(const struct aotc_archive *archive, uint32_t number,
                             const struct entry_record *entry, char name[LIMIT_NAME_BYTES + 1],
                             aotc_error *error) {
    char bytes[LIMIT_NAME_BYTES + 2] = {0};
    const struct aotci_table *strings = &archive->root.sections[SECTION_STRINGS];
    const uint32_t offset = entry->name;
    if (offset == 0 || offset >= strings->count) {
        return aotci_bad_record(&archive->root, error, SECTION_ENTRIES, number, "name", "a name");
    }
    const size_t left = (size_t)strings->count - offset + 1;
    const size_t most = left < sizeof bytes ? left : sizeof bytes;
    const aotc_status status =
        take(archive, (size_t)strings->offset + offset - 1, most, bytes, error);
    if (status == AOTC_OK && (bytes[0] != 0 || bytes[1] == 0 ||
                              memchr(bytes + 1, 0, most - 1) == NULL || !aotci_is_utf8(bytes + 1))) {
        return aotci_bad_record(&archive->root, error, SECTION_ENTRIES, number, "name", "a name");
    }
    memcpy(name, bytes + 1, LIMIT_NAME_BYTES + 1);
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------ */

/* Put header, root and digests where they can be used; the first bytes were read. */
static aotc_status read_head(struct aotc_archive *archive, const struct aotci_start *first,
                             aotc_error *error) {
    if (is_in_place(archive)) {
        archive->head = archive->file;
        return AOTC_OK;
    }
    archive->owned_head = aotci_allocate_bytes(&archive->allocator, archive->head_bytes);
    archive->head = archive->owned_head;
    if (archive->owned_head == NULL) {
        return no_memory(archive, error);
    }
    const uint32_t known = first->size_bytes < archive->head_bytes ? first->size_bytes : archive->head_bytes;
    memcpy(archive->owned_head, first->bytes, known);
    return known == archive->head_bytes ? AOTC_OK
                                        : aotci_read_file(archive, known, archive->owned_head + known,
                                                          archive->head_bytes - known, error);
}

static aotc_status check_header_sum(const struct aotc_archive *archive, const struct header_record *stored,
                                    const unsigned char *sealed, aotc_error *error) {
    struct header_record header = *stored;
    unsigned char digest[AOTCI_SHA256_BYTES];
    struct aotci_sha256 hash;
    if (archive->is_trusted) {
        return AOTC_OK;
    }
    memset(header.root_sha256, 0, sizeof header.root_sha256);
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, &header, sizeof header);
    aotci_sha256_update(&hash, sealed, sealed_bytes(archive));
    aotci_sha256_end(&hash, digest);
    return memcmp(digest, stored->root_sha256, sizeof digest) == 0 ? AOTC_OK
                                                                   : other_bytes(archive, error);
}

static size_t remote_bytes(const struct aotc_archive *archive) {
    return sizeof *archive->remote + sealed_bytes(archive);
}

/* Have what a large root is verified by: where it is in memory which pieces were, else the digests that the header's
 * is of. */
static aotc_status open_pieces(struct aotc_archive *archive, const struct header_record *header,
                               const struct aotci_start *first, aotc_error *error) {
    const uint32_t sealed_at = archive->head_bytes - sealed_bytes(archive);
    if (is_in_place(archive)) {
        archive->head = archive->file;
        archive->root.bytes = archive->head + HEADER_BYTES;
        archive->pieces = aotci_allocate(&archive->allocator, piece_count(archive), 1);
        return archive->pieces == NULL
                   ? no_memory(archive, error)
                   : check_header_sum(archive, header, archive->head + sealed_at, error);
    }
    archive->remote = aotci_allocate_bytes(&archive->allocator, remote_bytes(archive));
    if (archive->remote == NULL) {
        return no_memory(archive, error);
    }
    archive->remote->piece = UINT32_MAX;
    archive->remote->first =
        first->size_bytes < HEADER_BYTES + ROOT_PIECE_BYTES ? NULL : first->bytes;
    const aotc_status status = aotci_read_file(archive, sealed_at, archive->remote->sealed,
                                               archive->head_bytes - sealed_at, error);
    return status == AOTC_OK ? check_header_sum(archive, header, archive->remote->sealed, error) : status;
}

enum { FEW_SECTIONS = 16 };

static size_t directory_bytes(uint32_t section_count) {
    return 8 + (size_t)section_count * sizeof(struct directory_entry);
}

/* Verify the directory, which says how long it is, and note where the sections are. */
static aotc_status take_directory(struct aotc_archive *archive, aotc_error *error) {
    _Alignas(8) unsigned char few[8 + FEW_SECTIONS * sizeof(struct directory_entry)] = {0};
    struct aotci_tables *root = &archive->root;
    const unsigned char *bytes = root->bytes;
    unsigned char *many = NULL;
    uint32_t section_count = 0;
    aotc_status status = take(archive, 0, sizeof few, few, error);
    memcpy(&section_count, few, sizeof section_count);
    const size_t size_bytes = directory_bytes(section_count);
    if (status == AOTC_OK && section_count > FEW_SECTIONS && size_bytes <= root->size_bytes) {
        many = aotci_allocate_bytes(&archive->allocator, size_bytes);
        status = many == NULL ? no_memory(archive, error) : take(archive, 0, size_bytes, many, error);
    }
    root->bytes = many == NULL ? few : many;
    status = status == AOTC_OK ? aotci_validate_directory(root, true, error) : status;
    root->bytes = bytes;
    aotci_deallocate(&archive->allocator, many, size_bytes, 1);
    for (unsigned i = 0; i <= SECTION_COUNT; ++i) {
        struct aotci_table *table = &root->sections[i];
        table->records = bytes == NULL || table->records == NULL ? NULL : bytes + table->offset;
    }
    return status;
}

/* Verify and check all of a root that is in memory. */
static aotc_status check_whole(struct aotc_archive *archive, aotc_error *error) {
    aotc_status status = AOTC_OK;
    for (uint32_t i = piece_count(archive); status == AOTC_OK && i-- > 0;) { /* digests before what they are of */
        status = need_piece(archive, i, error);
    }
    struct aotci_tables whole = archive->root;
    whole.bytes = archive->head + HEADER_BYTES;
    whole.is_partial = false;
    status = status == AOTC_OK ? aotci_validate_directory(&whole, true, error) : status;
    if (status != AOTC_OK) {
        return status;
    }
    if (!archive->root.is_partial) {
        archive->root = whole;
    }
    archive->root.bytes = whole.bytes;
    for (unsigned i = 0; i <= SECTION_COUNT; ++i) { /* counts, which others may read meanwhile, are as they were */
        archive->root.sections[i].records = whole.sections[i].records;
    }
    status = aotci_validate_root(archive, error);
    atomic_store_explicit(&archive->is_complete, status == AOTC_OK, memory_order_release);
    return status;
}

aotc_status aotci_root_open(struct aotc_archive *archive, const struct header_record *header,
                            const struct aotci_start *first, bool is_whole, aotc_error *error) {
    const bool is_partial = !is_whole && header->root_bytes > WHOLE_ROOT_BYTES;
    archive->is_compressed = (header->required_features & FEATURE_ZSTD) != 0;
    archive->root = (struct aotci_tables){
        .file = archive->name,
        .size_bytes = (uint32_t)header->root_bytes,
        .is_newer = header->minor > FORMAT_MINOR,
        .is_partial = is_partial,
    };
    archive->head_bytes = HEADER_BYTES + archive->root.size_bytes + digest_bytes(archive) +
                          sealed_bytes(archive);
    aotc_status status = is_partial ? open_pieces(archive, header, first, error)
                                    : read_head(archive, first, error);
    if (status == AOTC_OK && is_partial) {
        status = take_directory(archive, error);
        if (archive->remote != NULL) {
            archive->remote->first = NULL;
        }
    }
    if (status != AOTC_OK || is_partial) {
        return status;
    }
    const unsigned char *sealed = archive->head + archive->head_bytes - sealed_bytes(archive);
    status = check_header_sum(archive, header, sealed, error);
    return status == AOTC_OK ? check_whole(archive, error) : status;
}

void aotci_root_close(struct aotc_archive *archive) {
    aotci_deallocate(&archive->allocator, archive->pieces, piece_count(archive), 1);
    aotci_deallocate(&archive->allocator, archive->owned_head, archive->head_bytes, 1);
    aotci_deallocate(&archive->allocator, archive->remote, remote_bytes(archive), 1);
}

/* ---- afterwards ---------------------------------------------------------------------------------- */

/* Read a root that is not in memory: all of it, for all that follows. */
static aotc_status fetch(struct aotc_archive *archive, aotc_error *error) {
    const size_t sealed = sealed_bytes(archive);
    archive->owned_head = aotci_allocate_bytes(&archive->allocator, archive->head_bytes);
    if (archive->owned_head == NULL) {
        return no_memory(archive, error);
    }
    archive->head = archive->owned_head;
    const size_t end = archive->head_bytes - sealed;
    memcpy(archive->owned_head + end, archive->remote->sealed, sealed);
    return aotci_read_file(archive, HEADER_BYTES, archive->owned_head + HEADER_BYTES, end - HEADER_BYTES,
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

static aotc_status complete_locked(struct aotc_archive *archive, aotc_error *error) {
    aotc_status status = archive->remote == NULL ? AOTC_OK : fetch(archive, error);
    status = status == AOTC_OK ? check_whole(archive, error) : status;
    if (status != AOTC_OK && archive->remote != NULL) {
        forget(archive);
    }
    return status;
}

aotc_status aotci_root_complete(const struct aotc_archive *archive, aotc_error *error) {
    aotc_status status = AOTC_OK;
    if (is_complete(archive)) {
        return AOTC_OK;
    }
    (void)pthread_mutex_lock(&changed(archive)->index_lock);
    if (!is_complete(archive)) {
        status = complete_locked(changed(archive), error);
    }
    (void)pthread_mutex_unlock(&changed(archive)->index_lock);
    return status;
}

/* Bytes of a section that a search meets, read some at once and not verified. */
struct window {
    uint32_t start, end;
    unsigned char bytes[8 << 10];
};

static aotc_status look(const struct aotc_archive *archive, enum section_kind kind, uint32_t at,
                        uint32_t size_bytes, struct window *window, const unsigned char **found,
                        aotc_error *error) {
    const struct aotci_table *table = &archive->root.sections[kind];
    if (table->records != NULL) {
        *found = table->records + at;
        return AOTC_OK;
    }
    aotc_status status = AOTC_OK;
    if (at < window->start || at + size_bytes > window->end) {
        const uint32_t half = sizeof window->bytes / 2;
        const uint32_t total = table->count * table->stride;
        const uint32_t start = at < half ? 0 : at - half;
        const uint32_t left = total - start;
        const uint32_t count = left < sizeof window->bytes ? left : (uint32_t)sizeof window->bytes;
        status = aotci_read_file(archive, (uint64_t)HEADER_BYTES + table->offset + start, window->bytes,
                                 count, error);
        window->start = start;
        window->end = status == AOTC_OK ? start + count : start;
    }
    *found = window->bytes + (at - window->start);
    return status;
}

/* Compare a name with that of an entry, neither of which need be verified: nothing is read outside of STRINGS. */
static aotc_status compare(const struct aotc_archive *archive, uint32_t number, const char *name,
                           struct window windows[2], int *order, aotc_error *error) {
    const uint32_t string_bytes = aotci_count(&archive->root, SECTION_STRINGS);
    const uint32_t stride = archive->root.sections[SECTION_ENTRIES].stride;
    const unsigned char *found = NULL;
    struct entry_record entry;
    aotc_status status = look(archive, SECTION_ENTRIES, number * stride, sizeof entry, &windows[0],
                              &found, error);
    if (status != AOTC_OK) {
        return status;
    }
    memcpy(&entry, found, sizeof entry);
    const uint32_t offset = entry.name < string_bytes ? entry.name : 0;
    const uint32_t left = string_bytes - offset;
    const uint32_t most = left < LIMIT_NAME_BYTES + 1 ? left : LIMIT_NAME_BYTES + 1;
    status = look(archive, SECTION_STRINGS, offset, most, &windows[1], &found, error);
    *order = status == AOTC_OK ? strncmp((const char *)found, name, most) : 0;
    return status;
}

/* Names are in order. Of a root that is not complete nobody has verified that: the index of what is found has its name,
 * too, and whoever does not find one has all verified. */
static aotc_status search(const struct aotc_archive *archive, const char *name, uint32_t *number,
                          aotc_error *error) {
    struct window windows[2];
    uint32_t low = 0;
    uint32_t high = aotci_count(&archive->root, SECTION_ENTRIES);
    windows[0].start = windows[0].end = windows[1].start = windows[1].end = 0;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        int order = 0;
        const aotc_status status = compare(archive, middle, name, windows, &order, error);
        if (status != AOTC_OK) {
            return status;
        }
        if (order == 0) {
            *number = middle;
            return AOTC_OK;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return AOTC_OK;
}

aotc_status aotci_root_find(const struct aotc_archive *archive, const char *name, uint32_t *number,
                            aotc_error *error) {
    *number = UINT32_MAX;
    if (is_complete(archive)) {
        return search(archive, name, number, error);
    }
    (void)pthread_mutex_lock(&changed(archive)->index_lock);
    const aotc_status status = search(archive, name, number, error);
    (void)pthread_mutex_unlock(&changed(archive)->index_lock);
    return status;
}

aotc_status aotci_root_kernel(struct aotc_kernel *kernel, char *name, aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct aotci_tables *root = &archive->root;
    const uint32_t number = kernel->number;
    const uint32_t use_count = aotci_count(root, SECTION_USES);
    struct entry_record *entry = &kernel->entry;
    aotc_status status =
        take_record(archive, SECTION_ENTRIES, number, entry, sizeof *entry, error);
    if (status == AOTC_OK && name != NULL) {
        status = take_name(archive, number, entry, name, error);
    }
    if (status != AOTC_OK) {
        return status;
    }
    if (entry->zero != 0 || entry->first_use > use_count ||
        entry->use_count > use_count - entry->first_use ||
        number >= aotci_count(root, SECTION_FRAMES)) {
        return aotci_bad_record(root, error, SECTION_ENTRIES, number, "first_use, use_count",
                                "uses and a frame that there are");
    }
    status = take_record(archive, SECTION_FRAMES, number, &kernel->frame, sizeof kernel->frame, error);
    return status == AOTC_OK ? aotci_validate_frame(archive, number, &kernel->frame, error) : status;
}

static aotc_status take_used_frame(const struct aotc_kernel *kernel, uint32_t use, uint32_t *number,
                                   struct frame_record *frame, aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct aotci_tables *root = &archive->root;
    const uint32_t record = kernel->entry.first_use + use;
    aotc_status status = take_record(archive, SECTION_USES, record, number, sizeof *number, error);
    if (status != AOTC_OK) {
        return status;
    }
    if (*number < aotci_count(root, SECTION_ENTRIES) || *number >= aotci_count(root, SECTION_FRAMES)) {
        return aotci_bad_record(root, error, SECTION_USES, record, "frame", "a frame of blobs");
    }
    status = take_record(archive, SECTION_FRAMES, *number, frame, sizeof *frame, error);
    return status == AOTC_OK ? aotci_validate_frame(archive, *number, frame, error) : status;
}

aotc_status aotci_root_frame(const struct aotc_kernel *kernel, uint32_t use, uint32_t *number,
                             struct frame_record *frame, aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    (void)pthread_mutex_lock(&archive->index_lock);
    const aotc_status status = take_used_frame(kernel, use, number, frame, error);
    (void)pthread_mutex_unlock(&archive->index_lock);
    return status;
}
