/* pieces.c: bytes of the root of an archive, verified in pieces.
 *
 * Each piece of the root has a digest after the root, and each piece of these digests has one, a
 * seal, which the header's digest covers. So a piece can be verified with little other data. Pieces
 * not in memory are read each time, and not stored: mapping pages of memory would take longer.
 */
#include <string.h>

#include "load.h"
#include "root.h"
#include "sha256.h"

/* Number of pieces of the root; pieces of its digests are numbered after them. */
static uint32_t root_pieces(const struct aotc_archive *archive) {
    return aotci_root_digest_bytes(archive) / DIGEST_BYTES;
}

static uint32_t piece_count(const struct aotc_archive *archive) {
    return root_pieces(archive) + aotci_seal_bytes(archive) / DIGEST_BYTES;
}

/* The offset of a piece in the file, and its size. */
struct place {
    uint32_t start, size_bytes;
};

static struct place place_of(const struct aotc_archive *archive, uint32_t piece) {
    const uint32_t pieces = root_pieces(archive);
    const uint32_t root_bytes = archive->root.size_bytes;
    const bool is_digests = piece >= pieces;
    const uint32_t at = (is_digests ? piece - pieces : piece) * ROOT_PIECE_BYTES;
    const uint32_t left = (is_digests ? aotci_root_digest_bytes(archive) : root_bytes) - at;
    return (struct place){
        .start = aotci_root_at(archive) + (is_digests ? root_bytes : 0) + at,
        .size_bytes = left < ROOT_PIECE_BYTES ? left : ROOT_PIECE_BYTES,
    };
}

/* The piece of digests with the digest of a piece of the root, and the offset in it. */
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
    return memcmp(digest, expected, sizeof digest) == 0 ? AOTC_OK : aotci_root_changed(archive, error);
}

/* ---- in memory ----------------------------------------------------------------------------------- */

/* Verify a piece, unless already done. */
static aotc_status need_piece(const struct aotc_archive *archive, uint32_t piece, aotc_error *error) {
    if (archive->pieces != NULL && archive->pieces[piece] == PIECE_VERIFIED) {
        return AOTC_OK;
    }
    const uint32_t pieces = root_pieces(archive);
    const struct place place = place_of(archive, piece);
    const uint32_t digests = piece >= pieces ? HEADER_BYTES : place_of(archive, pieces).start;
    const uint32_t number = piece >= pieces ? piece - pieces : piece;
    const aotc_status status = verify(archive, archive->head + place.start, place.size_bytes,
                                      archive->head + digests + (size_t)number * DIGEST_BYTES, error);
    if (status == AOTC_OK && archive->pieces != NULL) {
        archive->pieces[piece] = PIECE_VERIFIED;
    }
    return status;
}

aotc_status aotci_pieces_verify(const struct aotc_archive *archive, aotc_error *error) {
    aotc_status status = AOTC_OK;
    for (uint32_t i = piece_count(archive); status == AOTC_OK && i-- > 0;) { /* digests before their
                                                                              * pieces */
        status = need_piece(archive, i, error);
    }
    return status;
}

/* ---- not in memory ------------------------------------------------------------------------------- */

/* Read and verify a piece of digests, replacing the previous one. */
static aotc_status read_digests(const struct aotc_archive *archive, uint32_t piece, aotc_error *error) {
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
                        remote->seals + (size_t)number * DIGEST_BYTES, error);
    }
    remote->piece = status == AOTC_OK ? piece : UINT32_MAX;
    return status;
}

/* Read and verify a piece of the root. */
static aotc_status read_piece(const struct aotc_archive *archive, uint32_t piece,
                              unsigned char bytes[ROOT_PIECE_BYTES], aotc_error *error) {
    const struct place place = place_of(archive, piece);
    aotc_status status = aotci_read_file(archive, place.start, bytes, place.size_bytes, error);
    if (status == AOTC_OK && !archive->is_trusted) {
        status = read_digests(archive, digests_of(archive, piece), error);
    }
    const uint32_t at = piece * DIGEST_BYTES % ROOT_PIECE_BYTES;
    return status == AOTC_OK
               ? verify(archive, bytes, place.size_bytes, archive->remote->digests + at, error)
               : status;
}

/* ---- both
 * ----------------------------------------------------------------------------------------- */

/* Copy some bytes of a piece. */
static aotc_status take_of_piece(const struct aotc_archive *archive, uint32_t piece, size_t start,
                                 size_t count, void *copy, aotc_error *error) {
    unsigned char bytes[ROOT_PIECE_BYTES];
    const unsigned char *source = bytes;
    aotc_status status = AOTC_OK;
    if (archive->remote != NULL) {
        status = read_piece(archive, piece, bytes, error);
    } else {
        source = archive->head + place_of(archive, piece).start;
        status = need_piece(archive, digests_of(archive, piece), error);
        status = status == AOTC_OK ? need_piece(archive, piece, error) : status;
    }
    if (status == AOTC_OK) {
        memcpy(copy, source + start, count);
    }
    return status;
}

aotc_status aotci_root_take(const struct aotc_archive *archive, size_t offset, size_t size_bytes, void *copy,
                            aotc_error *error) {
    const size_t end = offset + size_bytes;
    unsigned char *target = copy;
    aotc_status status = AOTC_OK;
    if (aotci_is_complete(archive) || archive->is_trusted) {
        return aotci_root_look(archive, offset, size_bytes, copy, error);
    }
    for (size_t at = offset; status == AOTC_OK && at < end;) {
        const size_t start = at % ROOT_PIECE_BYTES;
        const size_t left = ROOT_PIECE_BYTES - start;
        const size_t count = end - at < left ? end - at : left;
        status = take_of_piece(archive, (uint32_t)(at / ROOT_PIECE_BYTES), start, count, target, error);
        target += count;
        at += count;
    }
    return status;
}

aotc_status aotci_root_look(const struct aotc_archive *archive, size_t offset, size_t size_bytes, void *copy,
                            aotc_error *error) {
    if (aotci_is_complete(archive)) {
        memcpy(copy, archive->root.bytes + offset, size_bytes);
        return AOTC_OK;
    }
    const size_t at = aotci_root_at(archive) + offset;
    if (archive->head != NULL) {
        memcpy(copy, archive->head + at, size_bytes);
        return AOTC_OK;
    }
    return aotci_read_file(archive, at, copy, size_bytes, error);
}

/* ---- digests
 * --------------------------------------------------------------------------------------- */

static size_t remote_bytes(const struct aotc_archive *archive) {
    return sizeof *archive->remote + aotci_seal_bytes(archive);
}

aotc_status aotci_pieces_open(struct aotc_archive *archive, const unsigned char *seals,
                              aotc_error *error) {
    if (archive->head != NULL) {
        archive->pieces = aotci_allocate(&archive->allocator, piece_count(archive), 1);
    } else {
        archive->remote = aotci_allocate_bytes(&archive->allocator, remote_bytes(archive));
    }
    if (archive->remote != NULL) {
        archive->remote->piece = UINT32_MAX;
        memcpy(archive->remote->seals, seals, aotci_seal_bytes(archive));
    }
    return archive->pieces != NULL || archive->remote != NULL
               ? AOTC_OK
               : AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "root",
                            .expected = "memory", .got = "none");
}

void aotci_pieces_close(struct aotc_archive *archive) {
    aotci_deallocate(&archive->allocator, archive->pieces, piece_count(archive), 1);
    aotci_deallocate(&archive->allocator, archive->remote, remote_bytes(archive), 1);
}
