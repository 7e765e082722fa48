/* tensor_map.h: encode a CUtensorMap at launch. */
#ifndef AOTCI_TENSOR_MAP_H
#define AOTCI_TENSOR_MAP_H

#include "select.h"

/* Evaluate address, sizes and strides of the tensor map at `index`, check what depends on them, and
 * have the driver encode, unless it has done so before. ARG naming the param and the dimension;
 * UNSUPPORTED if the driver has no encoder. */
aotc_status aotci_tensor_map_encode(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                    uint32_t index, CUtensorMap *encoded, aotc_error *error);

#endif
