/* code.c: load the code of a variant.
 *
 * Its cubin is checked, and becomes one of two things for the driver. A library is loaded once for
 * an archive, for any number of GPUs, and makes a module in each context where its function is
 * used. A single module belongs to one context, and for one launch takes the driver three quarters
 * of the time. So a launch of a variant that is not loaded makes a module, unless a stream capture
 * forbids the driver to load code at the launch; all other loads make libraries. The function is
 * compared with the index, and attributes are set. Code that must be ready is then forced into the
 * context, because the driver would otherwise load it at the first launch.
 */
#include "code.h"

#include <inttypes.h>

#include "cubin.h"

enum { PORTABLE_CLUSTER = 8 };

static const char damaged[] = "the archive is damaged or its writer is wrong: build it again";

/* ---- the cubin -------------------------------------------------------------------------------- */

static aotc_status other_params(const struct loading *loading, const struct variant_record *variant,
                                uint32_t number) {
    const char *symbol = aotci_string(&loading->kernel->tables, variant->symbol);
    return AOTCI_FAIL(loading->error, AOTC_ERROR_FORMAT, .file = loading->archive->name,
                      .kernel = loading->kernel->name,
                      .field = aotci_text("function %s", symbol).chars,
                      .expected = "the parameters that the index lists",
                      .got = aotci_text("a difference at number %" PRIu32, number).chars,
                      .remedy = damaged);
}

/* Compare the index's parameters with the cubin's, if it lists them. */
static aotc_status check_listed_params(const struct loading *loading, uint32_t index,
                                       const struct aotci_cubin_function *function) {
    const struct aotc_kernel *kernel = loading->kernel;
    const struct variant_record *variant = aotci_variant(&kernel->tables, index);
    const struct aotci_table *table = &kernel->tables.sections[SECTION_CUBIN_PARAMS];
    uint32_t wrong = 0;
    switch (aotci_cubin_check_params(
        function, table->records + (size_t)variant->first_cubin_param * table->stride, table->stride,
        variant->cubin_param_count, &wrong)) {
    case PARAMS_NOT_LISTED:
        return AOTC_OK;
    case PARAMS_EQUAL:
        kernel->has_params[index] = true;
        return AOTC_OK;
    default:
        return other_params(loading, variant, wrong);
    }
}

/* Compare a checked cubin with the index for all variants in it, so that it is decoded once. */
static aotc_status check_functions(const struct loading *loading, uint32_t cubin,
                                   const unsigned char *image) {
    const struct aotc_archive *archive = loading->archive;
    const struct aotc_kernel *kernel = loading->kernel;
    for (uint32_t i = 0; i < aotci_count(&kernel->tables, SECTION_VARIANTS); ++i) {
        const struct variant_record *variant = aotci_variant(&kernel->tables, i);
        if (variant->cubin != cubin) {
            continue;
        }
        const char *symbol = aotci_string(&kernel->tables, variant->symbol);
        const struct aotci_cubin_function function = aotci_cubin_find(image, symbol);
        if (!function.exists) {
            return AOTCI_FAIL(loading->error, AOTC_ERROR_NOT_FOUND, .file = archive->name,
                              .kernel = kernel->name,
                              .field = aotci_text("blob %" PRIu32, cubin).chars,
                              .expected = aotci_text("the function %s", symbol).chars,
                              .got = "a cubin without it", .remedy = damaged);
        }
        if (function.static_shared_bytes != variant->static_shared_bytes) {
            return AOTCI_FAIL(
                loading->error, AOTC_ERROR_FORMAT, .file = archive->name, .kernel = kernel->name,
                .field = aotci_text("blob %" PRIu32, cubin).chars,
                .expected = aotci_text("%" PRIu32
                                       " bytes of static shared memory in %s, as the index says",
                                       variant->static_shared_bytes, symbol)
                                .chars,
                .got = aotci_text("%" PRIu64, function.static_shared_bytes).chars, .remedy = damaged);
        }
        const aotc_status status = check_listed_params(loading, i, &function);
        if (status != AOTC_OK) {
            return status;
        }
    }
    return AOTC_OK;
}

/* Check a decoded cubin. */
static aotc_status check_image(const struct loading *loading, const struct variant_record *variant,
                               const unsigned char *image) {
    const struct aotci_tables *tables = &loading->kernel->tables;
    const struct target_record *target = aotci_target(tables, variant->target);
    const char *wrong = aotci_cubin_check(image, aotci_blob(tables, variant->cubin)->raw_bytes,
                                          10u * target->major + target->minor);
    if (wrong != NULL) {
        return AOTCI_FAIL(
            loading->error, AOTC_ERROR_FORMAT, .file = loading->archive->name,
            .kernel = loading->kernel->name,
            .field = aotci_text("blob %" PRIu32, variant->cubin).chars,
            .expected = aotci_text("a cubin for %s", aotci_string(tables, target->name)).chars,
            .got = wrong, .remedy = damaged);
    }
    return check_functions(loading, variant->cubin, image);
}

/* Room on the stack for a cubin of the usual size, which the driver copies: the stack's pages are
 * mostly mapped, those of new memory are not. */
struct room {
    _Alignas(64) unsigned char bytes[32 << 10];
};

/* Decode the cubin of a variant, perhaps into `room`, and check it; the caller frees it. */
static aotc_status take_image(const struct loading *loading, const struct variant_record *variant,
                              struct room *room, struct aotci_content *image) {
    aotc_status status =
        aotci_blob_decode(loading->kernel, variant->cubin,
                          (struct aotci_room){room->bytes, sizeof room->bytes}, image, loading->error);
    if (status != AOTC_OK) {
        return status;
    }
    status = check_image(loading, variant, image->bytes);
    if (status != AOTC_OK) {
        aotci_content_free(loading->archive, image);
    }
    return status;
}

/* A function of a library, or else of a module. */

/* A function of a library, or else of a module. */
struct code {
    CUkernel kernel;
    CUfunction function;
};

/* Compare the index's parameters with the driver's, if the cubin does not list them. */
static aotc_status check_params(const struct loading *loading, uint32_t index, struct code code) {
    struct aotci_driver *driver = &loading->archive->driver;
    const struct variant_record *variant = aotci_variant(&loading->kernel->tables, index);
    uint32_t i = 0;
    size_t offset = 0;
    size_t size_bytes = 0;
    bool equal = true;
    if (loading->kernel->has_params[index]) {
        return AOTC_OK;
    }
    const aotc_status status = aotci_driver_use(driver, DRIVER_PARAMS, loading->error);
    if (status != AOTC_OK || driver->kernel_get_param_info == NULL ||
        driver->function_get_param_info == NULL) {
        return status;
    }
    for (; equal; ++i) {
        const CUresult result =
            code.kernel != NULL
                ? driver->kernel_get_param_info(code.kernel, i, &offset, &size_bytes)
                : driver->function_get_param_info(code.function, i, &offset, &size_bytes);
        if (i == variant->cubin_param_count) {
            return result != CUDA_SUCCESS ? AOTC_OK : other_params(loading, variant, i);
        }
        const struct cubin_param_record *param =
            aotci_cubin_param(&loading->kernel->tables, variant->first_cubin_param + i);
        equal = result == CUDA_SUCCESS && offset == param->offset && size_bytes == param->size;
    }
    return other_params(loading, variant, i - 1);
}

static aotc_status set_attribute(const struct loading *loading, struct code code, int attribute,
                                 int value) {
    const struct aotci_driver *driver = &loading->archive->driver;
    const CUresult result =
        code.kernel != NULL
            ? driver->kernel_set_attribute(attribute, value, code.kernel, loading->context->device)
            : driver->function_set_attribute(code.function, attribute, value);
    return result == CUDA_SUCCESS
               ? AOTC_OK
               : aotci_load_failure(loading, result,
                                    code.kernel != NULL ? "cuKernelSetAttribute"
                                                        : "cuFuncSetAttribute");
}

static aotc_status set_attributes(const struct loading *loading,
                                  const struct variant_record *variant, struct code code) {
    const bool is_wide =
        variant->cluster[0] * variant->cluster[1] * variant->cluster[2] > PORTABLE_CLUSTER;
    if (!aotci_is_large(variant) && !is_wide) {
        return AOTC_OK;
    }
    aotc_status status =
        aotci_driver_use(&loading->archive->driver, DRIVER_ATTRIBUTES, loading->error);
    if (status == AOTC_OK && aotci_is_large(variant)) {
        status = set_attribute(loading, code, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                               (int)variant->dynamic_shared_bytes);
    }
    if (status == AOTC_OK && is_wide) {
        status = set_attribute(loading, code, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    }
    return status;
}

/* ---- code for all contexts ---------------------------------------------------------------------- */

static aotc_status load_library(const struct loading *loading,
                                const struct variant_record *variant) {
    struct aotc_archive *archive = loading->archive;
    CUlibrary *library = &loading->kernel->libraries[variant->cubin];
    struct aotci_content image;
    struct room room;
    if (*library != NULL) {
        return AOTC_OK;
    }
    const aotc_status status = take_image(loading, variant, &room, &image);
    if (status != AOTC_OK) {
        return status;
    }
    const CUresult result =
        archive->driver.library_load(library, image.bytes, NULL, NULL, 0, NULL, NULL, 0);
    aotci_content_free(archive, &image);
    if (result != CUDA_SUCCESS) {
        *library = NULL;
        return aotci_load_failure(loading, result, "cuLibraryLoadData");
    }
    return AOTC_OK;
}

static aotc_status find_kernel(const struct loading *loading, uint32_t index) {
    struct aotci_driver *driver = &loading->archive->driver;
    const struct variant_record *variant = aotci_variant(&loading->kernel->tables, index);
    CUkernel kernel = NULL;
    if (loading->kernel->cuda_kernels[index] != NULL) {
        return AOTC_OK;
    }
    aotc_status status = aotci_driver_use(driver, DRIVER_LIBRARIES, loading->error);
    status = status == AOTC_OK ? load_library(loading, variant) : status;
    if (status != AOTC_OK) {
        return status;
    }
    const CUresult result =
        driver->library_get_kernel(&kernel, loading->kernel->libraries[variant->cubin],
                                   aotci_string(&loading->kernel->tables, variant->symbol));
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuLibraryGetKernel");
    }
    status = check_params(loading, index, (struct code){.kernel = kernel});
    if (status == AOTC_OK) {
        loading->kernel->cuda_kernels[index] = kernel;
    }
    return status;
}

/* ---- code for one context
 * ------------------------------------------------------------------------ */

static aotc_status find_function(const struct loading *loading, uint32_t index, CUmodule module,
                                 CUfunction *function) {
    const struct variant_record *variant = aotci_variant(&loading->kernel->tables, index);
    const CUresult result = loading->archive->driver.module_get_function(
        function, module, aotci_string(&loading->kernel->tables, variant->symbol));
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuModuleGetFunction");
    }
    const struct code code = {.function = *function};
    const aotc_status status = check_params(loading, index, code);
    return status == AOTC_OK ? set_attributes(loading, variant, code) : status;
}

static aotc_status load_module(const struct loading *loading, struct aotci_candidate *candidate) {
    struct aotc_archive *archive = loading->archive;
    const uint32_t index = aotci_variant_number(loading->kernel, candidate->variant);
    struct aotci_content image;
    struct room room;
    CUmodule module = NULL;
    aotc_status status = take_image(loading, candidate->variant, &room, &image);
    if (status != AOTC_OK) {
        return status;
    }
    const CUresult result = archive->driver.module_load(&module, image.bytes);
    aotci_spend(archive, &image);
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuModuleLoadData");
    }
    status = find_function(loading, index, module, &candidate->of_module);
    if (status == AOTC_OK) {
        candidate->module = module;
    } else if (aotci_driver_use(&archive->driver, DRIVER_UNLOAD, NULL) == AOTC_OK) {
        (void)archive->driver.module_unload(module);
    }
    return status;
}

/* Whether an entry's context still exists: a destroyed context took its modules with it. */
static bool is_alive(const struct aotci_driver *driver, const struct aotci_context *entry) {
    unsigned long long id = 0;
    const CUcontext context = aotci_context_handle(entry);
    return context != NULL && driver->context_get_id(context, &id) == CUDA_SUCCESS && id == entry->id;
}

static bool has_modules(const struct aotci_dispatch *dispatch) {
    bool has_any = false;
    for (uint32_t i = 0; dispatch != NULL && i < dispatch->candidate_count; ++i) {
        has_any = has_any || dispatch->candidates[i].module != NULL;
    }
    return has_any;
}

static void unload_modules(const struct aotci_driver *driver, const struct aotci_dispatch *dispatch) {
    for (uint32_t i = 0; i < dispatch->candidate_count; ++i) {
        if (dispatch->candidates[i].module != NULL) {
            (void)driver->module_unload(dispatch->candidates[i].module);
        }
    }
}

void aotci_unload_modules(const struct aotci_driver *driver, const struct aotci_context *entry,
                          const struct aotci_dispatch *dispatch) {
    CUcontext popped = NULL;
    if (has_modules(dispatch) && is_alive(driver, entry) &&
        driver->context_push(aotci_context_handle(entry)) == CUDA_SUCCESS) {
        unload_modules(driver, dispatch);
        (void)driver->context_pop(&popped);
    }
}

/* ---- either ------------------------------------------------------------------------------------- */

aotc_status aotci_load_code(const struct loading *loading, struct aotci_candidate *candidate,
                            bool is_whole, CUfunction *function) {
    const struct aotc_kernel *kernel = loading->kernel;
    const struct variant_record *variant = candidate->variant;
    const uint32_t index = aotci_variant_number(kernel, variant);
    aotc_status status = AOTC_OK;
    if (candidate->module == NULL && !is_whole && kernel->libraries[variant->cubin] == NULL) {
        status = load_module(loading, candidate);
    } else if (candidate->module == NULL) {
        status = find_kernel(loading, index);
        if (status == AOTC_OK) {
            const struct code code = {.kernel = kernel->cuda_kernels[index]};
            status = set_attributes(loading, variant, code);
        }
    }
    if (status == AOTC_OK) {
        *function = candidate->module != NULL ? candidate->of_module
                                              : (CUfunction)kernel->cuda_kernels[index];
    }
    return status;
}

/* The function of a variant in the current context. */
static aotc_status own_function(const struct loading *loading, const struct aotci_candidate *candidate,
                                CUfunction *function) {
    const struct aotci_driver *driver = &loading->archive->driver;
    const uint32_t index = aotci_variant_number(loading->kernel, candidate->variant);
    *function = candidate->of_module;
    if (candidate->module != NULL) {
        return AOTC_OK;
    }
    const CUresult result =
        driver->kernel_get_function(function, loading->kernel->cuda_kernels[index]);
    return result == CUDA_SUCCESS ? AOTC_OK
                                  : aotci_load_failure(loading, result, "cuKernelGetFunction");
}

aotc_status aotci_force_code(const struct loading *loading, const struct aotci_candidate *candidate,
                             CUfunction *function) {
    struct aotci_driver *driver = &loading->archive->driver;
    aotc_status status = aotci_driver_use(driver, DRIVER_CODE, loading->error);
    status = status == AOTC_OK ? own_function(loading, candidate, function) : status;
    if (status != AOTC_OK) {
        return status;
    }
    CUresult result = CUDA_SUCCESS;
    int registers = 0;
    if (driver->function_load != NULL) {
        result = driver->function_load(*function);
    } else {
        /* Before 12.4 the cheapest question that only loaded code can answer. */
        const aotc_status found = aotci_driver_use(driver, DRIVER_QUERIES, loading->error);
        if (found != AOTC_OK) {
            return found;
        }
        result = driver->function_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, *function);
    }
    return result == CUDA_SUCCESS ? AOTC_OK : aotci_load_failure(loading, result, "cuFuncLoad");
}
