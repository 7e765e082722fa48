/* blob.c: from a blob in the file to bytes that are known to be what was written. */
#include <inttypes.h>
#include <string.h>

#include "load.h"
#include "sha256.h"
#include "zstd_frame.h"

static struct aotci_text blob_field(uint32_t index) { return aotci_text("blob %" PRIu32, index); }

aotc_status aotci_blob_verify(const struct aotc_archive *archive, uint32_t index,
                              aotc_error *error) {
    const struct blob_record *blob = aotci_blob(archive, index);
    unsigned char digest[AOTCI_SHA256_BYTES];
    struct aotci_sha256 hash;
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, archive->file + blob->offset, blob->stored_bytes);
    aotci_sha256_end(&hash, digest);
    if (memcmp(digest, blob->sha256, sizeof digest) != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name,
                          .field = blob_field(index).chars,
                          .expected = "the bytes that were written", .got = "others",
                          .remedy = "the archive is damaged: copy or build it again");
    }
    return AOTC_OK;
}

aotc_status aotci_blob_decode(const struct aotc_archive *archive, uint32_t index,
                              unsigned char **raw, aotc_error *error) {
    *raw = NULL;
    const struct blob_record *blob = aotci_blob(archive, index);
    if (archive->decompress == NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_UNSUPPORTED, .file = archive->name, .field = "decompression",
            .expected = "a zstd decompressor", .got = "none",
            .remedy = "set aotc_open_options.decompress, or build the library with libzstd");
    }
    const aotc_status status = aotci_blob_verify(archive, index, error);
    if (status != AOTC_OK) {
        return status;
    }
    const unsigned char *frame = archive->file + blob->offset;
    const char *wrong = aotci_zstd_frame_check(frame, blob->stored_bytes, blob->raw_bytes);
    unsigned char *decoded = NULL;
    if (wrong == NULL) {
        decoded = aotci_allocate(&archive->allocator, blob->raw_bytes, 1);
        if (decoded == NULL) {
            return AOTCI_FAIL(
                error, AOTC_ERROR_NOMEM, .file = archive->name, .field = blob_field(index).chars,
                .got = aotci_text("no %" PRIu32 " bytes to decode it", blob->raw_bytes).chars);
        }
        if (archive->decompress(archive->decompress_user, frame, blob->stored_bytes, decoded,
                                blob->raw_bytes) != 0) {
            wrong = "a zstd frame that cannot be decoded";
            aotci_deallocate(&archive->allocator, decoded, blob->raw_bytes, 1);
        }
    }
    if (wrong != NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_FORMAT, .file = archive->name, .field = blob_field(index).chars,
            .expected = "one zstd frame of the size in the index", .got = wrong,
            .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    *raw = decoded;
    return AOTC_OK;
}
