/* zstd.c: the default decompressor: the system's libzstd, if this build has it.
 *
 * An archive keeps one of its contexts, which take longer to make than a cubin takes to decode. A
 * decoding thread takes it out, so two concurrent ones have two.
 */
#include "load.h"

#ifdef AOTC_WITH_ZSTD

#include <zstd.h>

static int decompress(void *user, const void *source, size_t source_bytes, void *target,
                      size_t target_bytes) {
    _Atomic(void *) *kept = user;
    ZSTD_DCtx *context = atomic_exchange(kept, NULL);
    context = context == NULL ? ZSTD_createDCtx() : context;
    if (context == NULL) {
        return 1;
    }
    const size_t decoded =
        ZSTD_decompressDCtx(context, target, target_bytes, source, source_bytes);
    (void)ZSTD_freeDCtx(atomic_exchange(kept, context));
    return decoded == target_bytes ? 0 : 1;
}

void aotci_use_default_decompress(struct aotc_archive *archive) {
    archive->decompress = decompress;
    archive->decompress_user = &archive->decoder;
}

void aotci_free_decoder(struct aotc_archive *archive) {
    (void)ZSTD_freeDCtx(atomic_exchange(&archive->decoder, NULL));
}

#else

void aotci_use_default_decompress(struct aotc_archive *archive) { archive->decompress = NULL; }

void aotci_free_decoder(struct aotc_archive *archive) { (void)archive; }

#endif
