/* root.c: the root of an archive: read whole, or of a large one what is asked for.
 *
 * Each piece of the root has a digest, and so has each piece of these, of which the header has one: so a piece can be
 * verified with little else. Of a large root opening reads the directory, and asking for a kernel the pieces with its name and its frames:
 * their records are checked by themselves then. Whoever wants to know of all kernels has all of it
 * verified and checked first.
 */
#include <string.h>

#include "load.h"
#include "sha256.h"
#include "validate.h"

/* Smaller roots are verified whole, and smaller heads read at once. */
enum { WHOLE_ROOT_BYTES = 4 << 10, WHOLE_HEAD_BYTES = 16 << 10 };

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

static aotc_status verify_piece(const struct aotc_archive *archive, uint32_t piece, aotc_error *error) {
    unsigned char digest[AOTCI_SHA256_BYTES];
    if (archive->is_trusted) {
        return AOTC_OK;
    }
    const struct place place = place_of(archive, piece);
    const unsigned char *digests = archive->root.bytes + archive->root.size_bytes;
    aotci_sha256(archive->head + place.start, place.size_bytes, digest);
    return memcmp(digest, digests + (size_t)piece * DIGEST_BYTES, sizeof digest) == 0
               ? AOTC_OK
               : other_bytes(archive, error);
}

static aotc_status read_piece(const struct aotc_archive *archive, uint32_t piece, aotc_error *error) {
    const struct place place = place_of(archive, piece);
    return aotci_read_file(archive, place.start, archive->owned_head + place.start, place.size_bytes,
                           error);
}

/* Have a piece, read or verified. What was read is not read again: the bytes that are used are those that were
 * verified. */
static aotc_status reach_piece(const struct aotc_archive *archive, uint32_t piece,
                               enum aotci_piece wanted, aotc_error *error) {
    uint8_t *state = &archive->pieces[piece];
    aotc_status status = AOTC_OK;
    if (*state == PIECE_UNREAD) {
        status = read_piece(archive, piece, error);
        *state = status == AOTC_OK ? PIECE_READ : PIECE_UNREAD;
    }
    if (status == AOTC_OK && wanted == PIECE_VERIFIED && *state == PIECE_READ) {
        status = verify_piece(archive, piece, error);
        *state = status == AOTC_OK ? PIECE_VERIFIED : PIECE_READ;
    }
    return status;
}

/* Have bytes of a root that is not complete, read or verified, with the digests of their pieces; `at` is within it, and
 * what is beyond it is left out. */
static aotc_status reach(const struct aotc_archive *archive, const void *at, size_t size_bytes,
                         enum aotci_piece wanted, aotc_error *error) {
    const size_t start = (size_t)((const unsigned char *)at - archive->root.bytes);
    const size_t left = archive->root.size_bytes - start;
    const size_t end = start + (size_bytes < left ? size_bytes : left);
    aotc_status status = AOTC_OK;
    wanted = archive->is_trusted ? PIECE_READ : wanted;
    for (uint32_t piece = (uint32_t)(start / ROOT_PIECE_BYTES);
         status == AOTC_OK && (size_t)piece * ROOT_PIECE_BYTES < end; ++piece) {
        if (wanted == PIECE_VERIFIED && archive->pieces[piece] != PIECE_VERIFIED) {
            const uint32_t digests = piece * DIGEST_BYTES / ROOT_PIECE_BYTES;
            status = reach_piece(archive, root_pieces(archive) + digests, PIECE_VERIFIED, error);
        }
        status = status == AOTC_OK ? reach_piece(archive, piece, wanted, error) : status;
    }
    return status;
}

static aotc_status need(const struct aotc_archive *archive, const void *at, size_t size_bytes,
                        aotc_error *error) {
    return reach(archive, at, size_bytes, PIECE_VERIFIED, error);
}

static aotc_status need_record(const struct aotc_archive *archive, enum section_kind kind, uint32_t index,
                               aotc_error *error) {
    return need(archive, aotci_record(&archive->root, kind, index), archive->root.sections[kind].stride,
                error);
}

/* A name, with the byte before it, which tells that it begins there. */
static aotc_status need_name(const struct aotc_archive *archive, uint32_t entry, const char **name,
                             aotc_error *error) {
    const struct aotci_tables *root = &archive->root;
    aotc_status status = need_record(archive, SECTION_ENTRIES, entry, error);
    if (status != AOTC_OK) {
        return status;
    }
    const uint32_t offset = aotci_entry(root, entry)->name;
    if (offset == 0 || offset >= aotci_count(root, SECTION_STRINGS)) {
        return aotci_bad_record(root, error, SECTION_ENTRIES, entry, "name", "a name");
    }
    *name = aotci_string(root, offset);
    status = need(archive, *name - 1, LIMIT_NAME_BYTES + 2, error);
    if (status == AOTC_OK && (!aotci_is_name(root, offset) || !aotci_is_utf8(*name))) {
        return aotci_bad_record(root, error, SECTION_ENTRIES, entry, "name", "a name");
    }
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------ */

/* Put header and digests, and with them the root if it is small, where they can be used; the first bytes were
 * read. */
static aotc_status read_head(struct aotc_archive *archive, const struct aotci_start *first, bool is_small,
                             aotc_error *error) {
    const uint32_t sealed = archive->head_bytes - sealed_bytes(archive);
    if (archive->file != NULL && (uintptr_t)archive->file % sizeof(uint64_t) == 0) {
        archive->head = archive->file;
        return AOTC_OK;
    }
    archive->owned_head = aotci_allocate_bytes(&archive->allocator, archive->head_bytes);
    archive->head = archive->owned_head;
    if (archive->owned_head == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "root",
                          .expected = "memory", .got = "none");
    }
    const uint32_t known = first->size_bytes < archive->head_bytes ? first->size_bytes : archive->head_bytes;
    const uint32_t from = is_small ? known : sealed;
    memcpy(archive->owned_head, first->bytes, known);
    return from == archive->head_bytes ? AOTC_OK
                                       : aotci_read_file(archive, from, archive->owned_head + from,
                                                         archive->head_bytes - from, error);
}

/* Remember which pieces of a root are read: all that are in memory, else those in the first bytes. */
static aotc_status make_pieces(struct aotc_archive *archive, const struct aotci_start *first, bool is_small,
                               aotc_error *error) {
    const uint32_t read = (first->size_bytes - HEADER_BYTES) / ROOT_PIECE_BYTES;
    const uint32_t pieces = root_pieces(archive);
    const uint32_t count = is_small || archive->owned_head == NULL ? piece_count(archive)
                           : read < pieces                         ? read
                                                                   : pieces;
    archive->pieces = aotci_allocate(&archive->allocator, piece_count(archive), 1);
    if (archive->pieces == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "root",
                          .expected = "memory", .got = "none");
    }
    memset(archive->pieces, PIECE_READ, count);
    return AOTC_OK;
}

static aotc_status check_header_sum(const struct aotc_archive *archive, aotc_error *error) {
    struct header_record header;
    unsigned char digest[AOTCI_SHA256_BYTES];
    struct aotci_sha256 hash;
    const struct header_record *stored = (const void *)archive->head;
    const uint32_t sealed = archive->head_bytes - sealed_bytes(archive);
    if (archive->is_trusted) {
        return AOTC_OK;
    }
    memcpy(&header, stored, sizeof header);
    memset(header.root_sha256, 0, sizeof header.root_sha256);
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, &header, sizeof header);
    aotci_sha256_update(&hash, archive->head + sealed, archive->head_bytes - sealed);
    aotci_sha256_end(&hash, digest);
    return memcmp(digest, stored->root_sha256, sizeof digest) == 0 ? AOTC_OK
                                                                   : other_bytes(archive, error);
}

/* Verify the directory, which says how long it is. */
static aotc_status need_directory(const struct aotc_archive *archive, aotc_error *error) {
    uint32_t section_count = 0;
    const aotc_status status = need(archive, archive->root.bytes, sizeof section_count, error);
    if (status != AOTC_OK) {
        return status;
    }
    memcpy(&section_count, archive->root.bytes, sizeof section_count);
    return need(archive, archive->root.bytes,
                8 + (size_t)section_count * sizeof(struct directory_entry), error);
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
    const bool is_small = !is_partial || archive->head_bytes <= WHOLE_HEAD_BYTES;
    aotc_status status = read_head(archive, first, is_small, error);
    if (status != AOTC_OK) {
        return status;
    }
    archive->root.bytes = archive->head + HEADER_BYTES;
    status = check_header_sum(archive, error);
    if (status != AOTC_OK) {
        return status;
    }
    if (is_partial) {
        status = make_pieces(archive, first, is_small, error);
        status = status == AOTC_OK ? need_directory(archive, error) : status;
        return status == AOTC_OK ? aotci_validate_directory(&archive->root, true, error) : status;
    }
    for (uint32_t i = piece_count(archive); status == AOTC_OK && i-- > 0;) { /* digests before what they are of */
        status = verify_piece(archive, i, error);
    }
    status = status == AOTC_OK ? aotci_validate_directory(&archive->root, true, error) : status;
    status = status == AOTC_OK ? aotci_validate_root(archive, error) : status;
    atomic_store_explicit(&archive->is_complete, status == AOTC_OK, memory_order_relaxed);
    return status;
}

void aotci_root_close(struct aotc_archive *archive) {
    aotci_deallocate(&archive->allocator, archive->pieces, piece_count(archive), 1);
    aotci_deallocate(&archive->allocator, archive->owned_head, archive->head_bytes, 1);
}

/* ---- afterwards ---------------------------------------------------------------------------------- */

static bool is_complete(const struct aotc_archive *archive) {
    return atomic_load_explicit(&archive->is_complete, memory_order_acquire);
}

static aotc_status complete_locked(struct aotc_archive *archive, aotc_error *error) {
    struct aotci_tables whole = archive->root;
    aotc_status status = need(archive, archive->root.bytes, archive->root.size_bytes, error);
    whole.is_partial = false;
    status = status == AOTC_OK ? aotci_validate_directory(&whole, true, error) : status;
    status = status == AOTC_OK ? aotci_validate_root(archive, error) : status;
    if (status == AOTC_OK) {
        atomic_store_explicit(&archive->is_complete, true, memory_order_release);
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

/* Compare a name with that of an entry, read but perhaps not verified: so nothing is read outside of STRINGS. */
static aotc_status compare(const struct aotc_archive *archive, uint32_t number, const char *name,
                           bool has_all, int *order, aotc_error *error) {
    const struct aotci_tables *root = &archive->root;
    const struct entry_record *entry = aotci_entry(root, number);
    const uint32_t string_bytes = aotci_count(root, SECTION_STRINGS);
    aotc_status status =
        has_all ? AOTC_OK : reach(archive, entry, sizeof *entry, PIECE_READ, error);
    const uint32_t offset = status == AOTC_OK && entry->name < string_bytes ? entry->name : 0;
    const uint32_t left = string_bytes - offset;
    const uint32_t most = left < LIMIT_NAME_BYTES + 1 ? left : LIMIT_NAME_BYTES + 1;
    if (status == AOTC_OK && !has_all) {
        status = reach(archive, aotci_string(root, offset), most, PIECE_READ, error);
    }
    *order = status == AOTC_OK ? strncmp(aotci_string(root, offset), name, most) : 0;
    return status;
}

/* Names are in order. Of a root that is not complete nobody has verified that: the index of what is found has its name,
 * too, and whoever does not find one has all verified. */
static aotc_status search(const struct aotc_archive *archive, const char *name, uint32_t *number,
                          aotc_error *error) {
    uint32_t low = 0;
    uint32_t high = aotci_count(&archive->root, SECTION_ENTRIES);
    const bool has_all = is_complete(archive);
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        int order = 0;
        const aotc_status status = compare(archive, middle, name, has_all, &order, error);
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

aotc_status aotci_root_kernel(const struct aotc_archive *archive, uint32_t number, bool has_name,
                              aotc_error *error) {
    const struct aotci_tables *root = &archive->root;
    const uint32_t use_count = aotci_count(root, SECTION_USES);
    const char *name = NULL;
    if (is_complete(archive)) {
        return AOTC_OK;
    }
    aotc_status status = has_name ? need_record(archive, SECTION_ENTRIES, number, error)
                                  : need_name(archive, number, &name, error);
    if (status != AOTC_OK) {
        return status;
    }
    const struct entry_record *entry = aotci_entry(root, number);
    if (entry->zero != 0 || entry->first_use > use_count ||
        entry->use_count > use_count - entry->first_use ||
        number >= aotci_count(root, SECTION_FRAMES)) {
        return aotci_bad_record(root, error, SECTION_ENTRIES, number, "first_use, use_count",
                                "uses and a frame that there are");
    }
    status = need_record(archive, SECTION_FRAMES, number, error);
    return status == AOTC_OK ? aotci_validate_frame(archive, number, error) : status;
}

static aotc_status verify_used_frame(const struct aotc_kernel *kernel, uint32_t use, aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct aotci_tables *root = &archive->root;
    const uint32_t record = aotci_entry(root, kernel->number)->first_use + use;
    aotc_status status = need_record(archive, SECTION_USES, record, error);
    if (status != AOTC_OK) {
        return status;
    }
    const uint32_t frame = aotci_used_frame(kernel, use);
    if (frame < aotci_count(root, SECTION_ENTRIES) || frame >= aotci_count(root, SECTION_FRAMES)) {
        return aotci_bad_record(root, error, SECTION_USES, record, "frame", "a frame of blobs");
    }
    status = need_record(archive, SECTION_FRAMES, frame, error);
    return status == AOTC_OK ? aotci_validate_frame(archive, frame, error) : status;
}

aotc_status aotci_root_frame(const struct aotc_kernel *kernel, uint32_t use, uint32_t *number,
                             aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    aotc_status status = AOTC_OK;
    if (!is_complete(archive)) {
        (void)pthread_mutex_lock(&archive->index_lock);
        status = verify_used_frame(kernel, use, error);
        (void)pthread_mutex_unlock(&archive->index_lock);
    }
    *number = status == AOTC_OK ? aotci_used_frame(kernel, use) : 0;
    return status;
}
