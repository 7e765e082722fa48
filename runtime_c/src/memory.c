/* memory.c: memory through the caller's allocator. */
#include <stdlib.h>
#include <string.h>

#include "archive.h"

static size_t total_bytes(size_t count, size_t element_bytes) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, element_bytes, &bytes)) {
        return SIZE_MAX;
    }
    return bytes == 0 ? 1 : bytes;
}

void *aotci_allocate(const aotc_allocator *allocator, size_t count, size_t element_bytes) {
    const size_t size_bytes = total_bytes(count, element_bytes);
    if (size_bytes == SIZE_MAX) {
        return NULL;
    }
    if (allocator->allocate == NULL) {
        return calloc(1, size_bytes);
    }
    void *memory = allocator->allocate(allocator->user, size_bytes);
    if (memory != NULL) {
        memset(memory, 0, size_bytes);
    }
    return memory;
}

void aotci_deallocate(const aotc_allocator *allocator, void *memory, size_t count,
                      size_t element_bytes) {
    if (memory == NULL) {
        return;
    }
    if (allocator->deallocate == NULL) {
        free(memory);
    } else {
        allocator->deallocate(allocator->user, memory, total_bytes(count, element_bytes));
    }
}
