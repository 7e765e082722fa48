/* launch.c: launch a kernel.
 *
 * The parameters are passed as an array of pointers, most of them straight to the caller's
 * arguments: the driver copies each by the size in the cubin, and the low bytes come first on a
 * little-endian host. Computed values are on this function's stack. Nothing is locked, loaded or
 * set, and nothing is allocated but scratch memory that the caller does not pass (scratch.h).
 */
#include <inttypes.h>

#include "plan.h"
#include "scratch.h"

/* Point `params` at the value of each parameter of the compiled function. */
static void gather(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                   struct aotci_plan *plan, void *params[LIMIT_CUBIN_PARAMS]) {
    const struct variant_record *variant = plan->as.chosen.candidate->variant;
    uint32_t value_count = 0;
    for (uint32_t i = 0; i < variant->cubin_param_count; ++i) {
        const struct cubin_param_record *param =
            aotci_cubin_param(&kernel->tables, variant->first_cubin_param + i);
        switch (param->source) {
        case SOURCE_ARGUMENT:
            params[i] = (void *)(uintptr_t)&desc->args[param->index].as;
            break;
        case SOURCE_SCRATCH:
            params[i] = (void *)(uintptr_t)&desc->scratch;
            break;
        case SOURCE_TENSOR_MAP:
            params[i] = aotci_plan_map(plan, param->index);
            break;
        case SOURCE_GRID:
            params[i] = &plan->as.chosen.programs[param->index];
            break;
        default: /* SOURCE_EXPRESSION: the index was checked */
            params[i] = aotci_plan_value(plan, value_count++);
            break;
        }
    }
}

static aotc_status start(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                         const struct aotci_chosen *chosen, void **params, aotc_error *error) {
    const struct aotci_driver *driver = &kernel->archive->driver;
    const struct variant_record *variant = chosen->candidate->variant;
    CUlaunchAttribute attributes[3];
    CUlaunchConfig config = {
        .grid_x = chosen->grid[0],
        .grid_y = chosen->grid[1],
        .grid_z = chosen->grid[2],
        .block_x = variant->num_threads,
        .block_y = 1,
        .block_z = 1,
        .shared_bytes = variant->dynamic_shared_bytes,
        .stream = desc->stream,
        .attributes = attributes,
        .attribute_count = 0,
    };
    if ((variant->cluster[0] | variant->cluster[1] | variant->cluster[2]) != 1) {
        attributes[config.attribute_count++] = (CUlaunchAttribute){
            .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            .value.cluster = {variant->cluster[0], variant->cluster[1], variant->cluster[2]},
        };
    }
    if ((variant->flags & VARIANT_COOPERATIVE) != 0) {
        attributes[config.attribute_count++] = (CUlaunchAttribute){
            .id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            .value.cooperative = 1,
        };
    }
    if ((desc->flags & AOTC_LAUNCH_PDL) != 0) {
        attributes[config.attribute_count++] = (CUlaunchAttribute){
            .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            .value.programmatic_stream_serialization = 1,
        };
    }
    const CUresult result = driver->launch(&config, chosen->function, params, NULL);
    if (result != CUDA_SUCCESS) {
        const struct aotci_detail detail = {
            .file = kernel->archive->name, .kernel = kernel->name, .field = "cuLaunchKernelEx"};
        return aotci_driver_fail(driver, result, error, detail);
    }
    return AOTC_OK;
}

static aotc_status launch_plan(const struct aotc_kernel *kernel, const struct aotci_context *context,
                               const aotc_launch_desc *desc, struct aotci_plan *plan,
                               aotc_error *error) {
    void *params[LIMIT_CUBIN_PARAMS];
    CUdeviceptr taken = 0;
    if (plan->as.chosen.is_empty) {
        return AOTC_OK;
    }
    if (plan->as.chosen.scratch_bytes == 0) {
        gather(kernel, desc, plan, params);
        return start(kernel, desc, &plan->as.chosen, params, error);
    }
    aotc_launch_desc with_scratch = *desc;
    aotc_status status =
        aotci_scratch_take(kernel, context, &plan->as.chosen, &with_scratch, &taken, error);
    if (status != AOTC_OK) {
        return status;
    }
    gather(kernel, &with_scratch, plan, params);
    status = start(kernel, &with_scratch, &plan->as.chosen, params, error);
    if (taken != 0) {
        const aotc_status returned =
            aotci_scratch_return(kernel, desc->stream, taken, status == AOTC_OK ? error : NULL);
        status = status == AOTC_OK ? returned : status;
    }
    return status;
}

aotc_status aotci_launch(const aotc_kernel *kernel, const aotc_launch_desc *desc, bool may_load,
                         aotc_error *error) {
    const struct aotci_context *context = NULL;
    struct aotci_plan plan;
    aotc_status status = aotci_find_context(kernel, desc, &context, error);
    if (status != AOTC_OK) {
        return status;
    }
    status = aotci_plan_launch(kernel, context, desc, may_load ? LOAD_BY_LAUNCH : LOAD_NOTHING, &plan,
                               error);
    if (status == AOTC_OK) {
        status = launch_plan(kernel, context, desc, &plan, error);
    }
    if (plan.as.chosen.is_first) {
        if (status == AOTC_OK && !plan.as.chosen.is_empty) {
            aotci_finish_first(plan.as.chosen.candidate, plan.as.chosen.function);
        }
        aotci_leave(kernel, &plan.as.chosen.entered);
    }
    return status;
}

aotc_status aotc_launch(const aotc_kernel *kernel, const aotc_launch_desc *desc,
                        aotc_error *error) {
    return aotci_launch(kernel, desc, true, error);
}

aotc_status aotc_select(const aotc_kernel *kernel, const aotc_launch_desc *desc,
                        aotc_selection *selection, aotc_error *error) {
    const struct aotci_context *context = NULL;
    struct aotci_chosen chosen;
    if (selection == NULL || selection->struct_size < sizeof *selection) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_selection",
                          .expected = "its size in struct_size", .got = "less");
    }
    aotc_status status = aotci_find_context(kernel, desc, &context, error);
    if (status == AOTC_OK) {
        status = aotci_choose(kernel, context, desc, LOAD_WHOLE, &chosen, error);
    }
    if (status != AOTC_OK) {
        return status;
    }
    const struct variant_record *variant = chosen.candidate->variant;
    *selection = (aotc_selection){
        .struct_size = selection->struct_size,
        .variant = aotci_variant_number(kernel, variant) - kernel->record->first_variant,
        .grid = {chosen.grid[0], chosen.grid[1], chosen.grid[2]},
        .block = {variant->num_threads, 1, 1},
        .cluster = {variant->cluster[0], variant->cluster[1], variant->cluster[2]},
        .dynamic_shared_bytes = variant->dynamic_shared_bytes,
        .scratch_bytes = chosen.scratch_bytes,
        .scratch_align = variant->scratch_align,
        .function = chosen.function,
    };
    return AOTC_OK;
}
