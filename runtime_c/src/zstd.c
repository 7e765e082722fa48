/* zstd.c: the default decompressor: the system's libzstd, if this build has it. */
#include "load.h"

#ifdef AOTC_WITH_ZSTD

#include <zstd.h>

static int decompress(void *user, const void *source, size_t source_bytes, void *target,
                      size_t target_bytes) {
    (void)user;
    return ZSTD_decompress(target, target_bytes, source, source_bytes) == target_bytes ? 0 : 1;
}

aotc_decompress_fn aotci_default_decompress(void) { return decompress; }

#else

aotc_decompress_fn aotci_default_decompress(void) { return NULL; }

#endif
