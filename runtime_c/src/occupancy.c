/* occupancy.c: count the program instances of a variant that are resident on a device. */
#include "dispatch.h"

aotc_status aotci_ask_device(const struct loading *loading, int attribute, int *value) {
    const CUresult result =
        *value != 0 ? CUDA_SUCCESS
                    : loading->archive->driver.device_get_attribute(value, attribute,
                                                                    loading->context->device);
    return result == CUDA_SUCCESS ? AOTC_OK
                                  : aotci_load_failure(loading, result, "cuDeviceGetAttribute");
}

/* Count the CTAs of a function that are resident on the device. */
static aotc_status count_ctas(const struct loading *loading, const struct variant_record *variant,
                                CUfunction function, int *count) {
    const aotc_status asked = aotci_ask_device(loading, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                         &loading->context->multiprocessors);
    if (asked != AOTC_OK) {
        return asked;
    }
    const CUresult result = loading->archive->driver.occupancy_max_blocks(
        count, function, variant->num_threads, variant->dynamic_shared_bytes);
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    }
    *count *= loading->context->multiprocessors;
    return AOTC_OK;
}

/* Count its resident clusters: not every multiprocessor has enough neighbours for one. */
static aotc_status count_clusters(const struct loading *loading,
                                  const struct variant_record *variant, CUfunction function,
                                  int *count) {
    CUlaunchAttribute cluster = {
        .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        .value.cluster = {variant->cluster[0], variant->cluster[1], variant->cluster[2]},
    };
    const CUlaunchConfig config = {
        .grid_x = variant->cluster[0],
        .grid_y = variant->cluster[1],
        .grid_z = variant->cluster[2],
        .block_x = variant->num_threads,
        .block_y = 1,
        .block_z = 1,
        .shared_bytes = variant->dynamic_shared_bytes,
        .attributes = &cluster,
        .attribute_count = 1,
    };
    const CUresult result =
        loading->archive->driver.occupancy_max_clusters(count, function, &config);
    return result == CUDA_SUCCESS
               ? AOTC_OK
               : aotci_load_failure(loading, result, "cuOccupancyMaxActiveClusters");
}

aotc_status aotci_count_programs(const struct loading *loading, const struct variant_record *variant,
                                 CUfunction function, uint32_t *programs) {
    int count = 0;
    *programs = 0;
    if ((variant->flags & (VARIANT_IS_PERSISTENT | VARIANT_COOPERATIVE)) == 0) {
        return AOTC_OK;
    }
    const aotc_status found =
        aotci_driver_use(&loading->archive->driver, DRIVER_OCCUPANCY, loading->error);
    if (found != AOTC_OK) {
        return found;
    }
    const bool has_cluster = (variant->cluster[0] | variant->cluster[1] | variant->cluster[2]) != 1;
    const aotc_status status = has_cluster ? count_clusters(loading, variant, function, &count)
                                           : count_ctas(loading, variant, function, &count);
    *programs = count < 1 ? 1 : (uint32_t)count;
    return status;
}
