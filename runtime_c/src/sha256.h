/* sha256.h: the SHA-256 digest (FIPS 180-4). */
#ifndef AOTCI_SHA256_H
#define AOTCI_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { AOTCI_SHA256_BYTES = 32 };

struct aotci_sha256 {
    uint32_t state[8];
    uint64_t total_bytes;
    unsigned char block[64];
};

void aotci_sha256_begin(struct aotci_sha256 *hash);
void aotci_sha256_update(struct aotci_sha256 *hash, const void *data, size_t size_bytes);
void aotci_sha256_end(struct aotci_sha256 *hash, unsigned char digest[AOTCI_SHA256_BYTES]);

/* Compute the digest of contiguous data. */
void aotci_sha256(const void *data, size_t size_bytes, unsigned char digest[AOTCI_SHA256_BYTES]);

/* Update a state with whole blocks of 64 bytes; the other function does not use special
 * instructions. */
void aotci_sha256_blocks(uint32_t state[8], const unsigned char *blocks, size_t count);
void aotci_sha256_portable(uint32_t state[8], const unsigned char *blocks, size_t count);

#endif
