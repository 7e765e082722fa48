/* kernel_index.c: open a kernel: from its index, a frame, to checked tables.
 *
 * Opening an archive of thousands of kernels reads only its first bytes; a kernel's index is read
 * when the kernel is first requested. An opened kernel stays until the archive is closed.
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

/* The maximum number of tests in the expressions: each takes at least six bytes of code. */
static uint32_t most_tests(const struct aotci_tables *tables) {
    return aotci_count(tables, SECTION_CODE) / 6;
}

/* Data made from an index is one allocation: each further one costs a first launch time. */
static size_t made_bytes(const struct aotc_kernel *kernel) {
    const struct aotci_tables *tables = &kernel->tables;
    return aotci_count(tables, SECTION_GUARDS) * sizeof *kernel->guards +
           most_tests(tables) * sizeof *kernel->tests +
           aotci_count(tables, SECTION_BLOBS) * sizeof *kernel->libraries +
           aotci_count(tables, SECTION_VARIANTS) * sizeof *kernel->cuda_kernels +
           ((size_t)aotci_count(tables, SECTION_EXPRESSIONS) + 1) * sizeof *kernel->first_tests +
           aotci_count(tables, SECTION_VARIANTS) * sizeof *kernel->has_params;
}

/* Divide it, by descending alignment. */
static aotc_status make_room(struct aotc_kernel *kernel, aotc_error *error) {
    const struct aotci_tables *tables = &kernel->tables;
    kernel->guards = aotci_allocate(&kernel->archive->allocator, made_bytes(kernel), 1);
    if (kernel->guards == NULL) {
        return no_memory(kernel, "guards", error);
    }
    kernel->tests = (struct aotci_test *)(kernel->guards + aotci_count(tables, SECTION_GUARDS));
    kernel->libraries = (CUlibrary *)(kernel->tests + most_tests(tables));
    kernel->cuda_kernels = (CUkernel *)(kernel->libraries + aotci_count(tables, SECTION_BLOBS));
    kernel->first_tests =
        (uint32_t *)(kernel->cuda_kernels + aotci_count(tables, SECTION_VARIANTS));
    kernel->has_params =
        (bool *)(kernel->first_tests + aotci_count(tables, SECTION_EXPRESSIONS) + 1);
    return AOTC_OK;
}

/* Extract the tests of expressions, in the form that launches read; then the guards. */
static void make_guards(struct aotc_kernel *kernel) {
    const uint32_t expression_count = aotci_count(&kernel->tables, SECTION_EXPRESSIONS);
    const uint32_t guard_count = aotci_count(&kernel->tables, SECTION_GUARDS);
    uint32_t *first = kernel->first_tests;
    for (uint32_t i = 0; i < expression_count; ++i) {
        const struct expression_record *expression = aotci_expression(&kernel->tables, i);
        first[i + 1] = first[i] + aotci_guard_compile(kernel, expression, kernel->tests + first[i]);
    }
    for (uint32_t i = 0; i < guard_count; ++i) {
        kernel->guards[i] = aotci_guard_of(kernel, aotci_guard(&kernel->tables, i)->expression);
    }
}

/* Make the archive's cache of encoded maps, for the first kernel with any. */
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
    char found[LIMIT_NAME_BYTES + 1];
    aotc_status status = aotci_root_kernel(kernel, name == NULL ? found : NULL, error);
    kernel->name = name != NULL ? name : found; /* until the index has it */
    status = status == AOTC_OK ? aotci_index_decode(kernel, error) : status;
    if (status != AOTC_OK) {
        return status;
    }
    kernel->tables.file = archive->name;
    kernel->tables.bytes = kernel->index.bytes;
    kernel->tables.size_bytes = kernel->entry.frame.raw_bytes;
    kernel->tables.is_newer = archive->root.is_newer;
    status = aotci_validate_directory(&kernel->tables, false, error);
    status = status == AOTC_OK ? aotci_validate_index(kernel, error) : status;
    status = status == AOTC_OK ? make_room(kernel, error) : status;
    status = status == AOTC_OK ? make_maps(kernel, error) : status;
    if (status == AOTC_OK) {
        make_guards(kernel);
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

void aotci_kernel_close(struct aotc_kernel *kernel) {
    const aotc_allocator *allocator = &kernel->archive->allocator;
    if (kernel->index.bytes != NULL) {
        aotci_deallocate(allocator, kernel->guards, made_bytes(kernel), 1);
        aotci_content_free(kernel->archive, &kernel->index);
    }
    aotci_deallocate(allocator, kernel, 1, sizeof *kernel);
}
