/* tensor_map.h: encode a CUtensorMap at launch. */
#ifndef AOTCI_TENSOR_MAP_H
#define AOTCI_TENSOR_MAP_H

#include "select.h"

/* A cached map: its record's index, address, sizes and strides; and the map. */
enum {
    MAP_CACHE_BITS = 10,
    MAP_KEY_WORDS = 1 + 1 + LIMIT_RANK + LIMIT_RANK - 1,
    MAP_WORDS = sizeof(CUtensorMap) / sizeof(uint64_t),
    MAP_ENTRY_WORDS = MAP_KEY_WORDS + MAP_WORDS,
};

/* Evaluate address, sizes and strides of the tensor map at `index`, check conditions on them, and
 * have the driver encode it, unless cached. ARG naming the param and the dimension; UNSUPPORTED if
 * the driver has no encoder. */
aotc_status aotci_tensor_map_encode(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                    uint32_t index, CUtensorMap *encoded, aotc_error *error);

#endif
