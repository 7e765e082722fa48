/* root.h: where the root of an archive and what it is verified by lie in the file, and how to take bytes of it. */
#ifndef AOTCI_ROOT_H
#define AOTCI_ROOT_H

#include "archive.h"

/* Bytes of the digests of the root's pieces, which follow it, and of theirs, the seals, which precede it. */
static inline uint32_t aotci_root_digest_bytes(const struct aotc_archive *archive) {
    return (uint32_t)aotci_digest_bytes(archive->root.size_bytes);
}

static inline uint32_t aotci_seal_bytes(const struct aotc_archive *archive) {
    return (uint32_t)aotci_digest_bytes(aotci_root_digest_bytes(archive));
}

static inline uint32_t aotci_root_at(const struct aotc_archive *archive) {
    return HEADER_BYTES + aotci_seal_bytes(archive);
}

static inline bool aotci_is_complete(const struct aotc_archive *archive) {
    return atomic_load_explicit(&archive->is_complete, memory_order_acquire);
}

/* Say that something is not what was written. */
aotc_status aotci_root_changed(const struct aotc_archive *archive, aotc_error *error);

/* Remember what a root that is not complete is verified by, `seals`: where it is in memory, which of its pieces were.
 * NOMEM (pieces.c). */
aotc_status aotci_pieces_open(struct aotc_archive *archive, const unsigned char *seals,
                              aotc_error *error);

void aotci_pieces_close(struct aotc_archive *archive);

/* Verify all of a root that is in memory. CHECKSUM (pieces.c). */
aotc_status aotci_pieces_verify(const struct aotc_archive *archive, aotc_error *error);

/* Copy bytes of the root, which are within it, verified; of a root that is not complete while `index_lock` is held.
 * CHECKSUM, IO (pieces.c). */
aotc_status aotci_root_take(const struct aotc_archive *archive, size_t offset, size_t size_bytes, void *copy,
                            aotc_error *error);

/* The same, not verified unless the root is complete. IO (pieces.c). */
aotc_status aotci_root_look(const struct aotc_archive *archive, size_t offset, size_t size_bytes, void *copy,
                            aotc_error *error);

#endif
