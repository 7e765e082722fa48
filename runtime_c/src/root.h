/* root.h: the offsets of an archive's root and of its digests in the file, and reads of its bytes. */
#ifndef AOTCI_ROOT_H
#define AOTCI_ROOT_H

#include "archive.h"

/* Size of the digests of the root's pieces, which follow it, and of theirs, the seals, which
 * precede it. */
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

/* Report data that differs from the data written. */
aotc_status aotci_root_changed(const struct aotc_archive *archive, aotc_error *error);

/* Record the `seals` that verify an incomplete root, and for one in memory, its verified pieces.
 * NOMEM (pieces.c). */
aotc_status aotci_pieces_open(struct aotc_archive *archive, const unsigned char *seals,
                              aotc_error *error);

void aotci_pieces_close(struct aotc_archive *archive);

/* Verify the whole of a root in memory. CHECKSUM (pieces.c). */
aotc_status aotci_pieces_verify(const struct aotc_archive *archive, aotc_error *error);

/* Copy verified bytes of the root, within its size; for an incomplete root under `index_lock`.
 * CHECKSUM, IO (pieces.c). */
aotc_status aotci_root_take(const struct aotc_archive *archive, size_t offset, size_t size_bytes, void *copy,
                            aotc_error *error);

/* The same, without verification unless the root is complete. IO (pieces.c). */
aotc_status aotci_root_look(const struct aotc_archive *archive, size_t offset, size_t size_bytes, void *copy,
                            aotc_error *error);

#endif
