/* kernel_index.c: open a kernel: its index, from a frame to tables that everything after may trust.
 *
 * An archive of thousands of kernels is opened by what its first bytes say; what the index of a kernel says
 * is read when somebody asks for that kernel. What was opened stays until the archive goes.
 */
#include "guard.h"
#include "load.h"
#include "tensor_map.h"
#include "validate.h"

static aotc_status no_memory(const struct aotc_kernel *kernel, const char *what,
                             aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = kernel->archive->name,
                      .kernel = kernel->name, .field = what,
                      .expected = "memory", .got = "none");
}

/* How many tests the expressions have at most: each takes at least six bytes of code. */
static uint32_t most_tests(const struct aotci_tables *tables) {
    return aotci_count(tables, SECTION_CODE) / 6;
}

/* The expressions that are comparisons, in the form in which launches read them. */
static aotc_status make_tests(struct aotc_kernel *kernel, aotc_error *error) {
    const aotc_allocator *allocator = &kernel->archive->allocator;
    const uint32_t count = aotci_count(&kernel->tables, SECTION_EXPRESSIONS);
    kernel->first_tests = aotci_allocate(allocator, (size_t)count + 1, sizeof *kernel->first_tests);
    kernel->tests = aotci_allocate(allocator, most_tests(&kernel->tables), sizeof *kernel->tests);
    if (kernel->first_tests == NULL || kernel->tests == NULL) {
        return no_memory(kernel, "expressions", error);
    }
    uint32_t *first = kernel->first_tests;
    for (uint32_t i = 0; i < count; ++i) {
        const struct expression_record *expression = aotci_expression(&kernel->tables, i);
        first[i + 1] = first[i] + aotci_guard_compile(kernel, expression, kernel->tests + first[i]);
    }
    return AOTC_OK;
}

static aotc_status make_guards(struct aotc_kernel *kernel, aotc_error *error) {
    const uint32_t guard_count = aotci_count(&kernel->tables, SECTION_GUARDS);
    kernel->guards =
        aotci_allocate(&kernel->archive->allocator, guard_count, sizeof *kernel->guards);
    if (kernel->guards == NULL) {
        return no_memory(kernel, "guards", error);
    }
    for (uint32_t i = 0; i < guard_count; ++i) {
        kernel->guards[i] = aotci_guard_of(kernel, aotci_guard(&kernel->tables, i)->expression);
    }
    return AOTC_OK;
}

/* The cache of encoded maps, which all kernels share, for the first that has any. */
static aotc_status make_maps(struct aotc_kernel *kernel, aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    if (aotci_count(&kernel->tables, SECTION_TENSOR_MAPS) != 0 && archive->maps.slots == NULL &&
        !aotci_memo_make(&archive->maps, MAP_CACHE_BITS, MAP_ENTRY_WORDS, &archive->allocator)) {
        return no_memory(kernel, "tensor maps", error);
    }
    return AOTC_OK;
}

static aotc_status open_locked(struct aotc_kernel *kernel, const char *name, aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    struct aotci_content index;
    char found[LIMIT_NAME_BYTES + 1];
    aotc_status status = aotci_root_kernel(kernel, name == NULL ? found : NULL, error);
    kernel->name = name != NULL ? name : found; /* until the index has it */
    status = status == AOTC_OK ? aotci_index_decode(kernel, &index, error) : status;
    if (status != AOTC_OK) {
        return status;
    }
    kernel->index_bytes = index.bytes;
    kernel->owned_index = index.owned;
    kernel->tables = (struct aotci_tables){
        .file = archive->name,
        .bytes = kernel->index_bytes,
        .size_bytes = kernel->entry.frame.raw_bytes,
        .is_newer = archive->root.is_newer,
    };
    status = aotci_validate_directory(&kernel->tables, false, error);
    status = status == AOTC_OK ? aotci_validate_index(kernel, error) : status;
    status = status == AOTC_OK ? make_tests(kernel, error) : status;
    status = status == AOTC_OK ? make_guards(kernel, error) : status;
    status = status == AOTC_OK ? make_maps(kernel, error) : status;
    if (status == AOTC_OK) {
        kernel->record = aotci_kernel_record(&kernel->tables, 0);
        kernel->name = aotci_string(&kernel->tables, kernel->record->name);
    }
    return status;
}

static aotc_status make_kernel(struct aotc_archive *archive, uint32_t number, const char *name,
                               aotc_error *error) {
    struct aotc_kernel *kernel = aotci_allocate(&archive->allocator, 1, sizeof *kernel);
    if (kernel == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "kernel",
                          .expected = "memory", .got = "none");
    }
    kernel->archive = archive;
    kernel->number = number;
    const aotc_status status = open_locked(kernel, name, error);
    if (status == AOTC_OK) {
        atomic_store_explicit(&archive->kernels[number], kernel, memory_order_release);
    } else {
        aotci_kernel_close(kernel);
    }
    return status;
}

aotc_status aotci_kernel_open(struct aotc_archive *archive, uint32_t number, const char *name,
                              aotc_error *error) {
    aotc_status status = AOTC_OK;
    if (aotci_kernel(archive, number) != NULL) {
        return AOTC_OK;
    }
    (void)pthread_mutex_lock(&archive->index_lock);
    if (aotci_kernel(archive, number) == NULL) {
        status = make_kernel(archive, number, name, error);
    }
    (void)pthread_mutex_unlock(&archive->index_lock);
    return status;
}

/* Let go of what opening made of an index. */
static void free_index(const struct aotc_kernel *kernel) {
    const struct aotci_tables *tables = &kernel->tables;
    const aotc_allocator *allocator = &kernel->archive->allocator;
    const size_t expression_count = aotci_count(tables, SECTION_EXPRESSIONS);
    aotci_deallocate(allocator, kernel->tests, most_tests(tables), sizeof *kernel->tests);
    aotci_deallocate(allocator, kernel->first_tests, expression_count + 1,
                     sizeof *kernel->first_tests);
    aotci_deallocate(allocator, kernel->guards, aotci_count(tables, SECTION_GUARDS),
                     sizeof *kernel->guards);
    aotci_deallocate(allocator, kernel->libraries, aotci_count(tables, SECTION_BLOBS),
                     sizeof *kernel->libraries);
    aotci_deallocate(allocator, kernel->cuda_kernels, aotci_count(tables, SECTION_VARIANTS),
                     sizeof *kernel->cuda_kernels);
    aotci_deallocate(allocator, kernel->has_params, aotci_count(tables, SECTION_VARIANTS),
                     sizeof *kernel->has_params);
    aotci_deallocate(allocator, kernel->owned_index, tables->size_bytes, 1);
}

void aotci_kernel_close(struct aotc_kernel *kernel) {
    if (kernel->index_bytes != NULL) {
        free_index(kernel);
    }
    aotci_deallocate(&kernel->archive->allocator, kernel, 1, sizeof *kernel);
}
