/* memory.c: memory through the caller's allocator. */
#define _GNU_SOURCE /* MAP_ANONYMOUS under -std=c11 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "archive.h"

/* Tables that are mostly empty: pages come from the system cleared, and only those that are used; calloc clears
 * all of what it gave out before. */
enum { LARGE_BYTES = 1 << 16 };

static size_t total_bytes(size_t count, size_t element_bytes) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, element_bytes, &bytes)) {
        return SIZE_MAX;
    }
    return bytes == 0 ? 1 : bytes;
}

static void *allocate(const aotc_allocator *allocator, size_t count, size_t element_bytes, bool is_cleared) {
    const size_t size_bytes = total_bytes(count, element_bytes);
    if (size_bytes == SIZE_MAX) {
        return NULL;
    }
    if (allocator->allocate == NULL && size_bytes >= LARGE_BYTES) {
        void *pages =
            mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return pages == MAP_FAILED ? NULL : pages;
    }
    if (allocator->allocate == NULL) {
        return is_cleared ? calloc(1, size_bytes) : malloc(size_bytes);
    }
    void *memory = allocator->allocate(allocator->user, size_bytes);
    if (memory != NULL && is_cleared) {
        memset(memory, 0, size_bytes);
    }
    return memory;
}

void *aotci_allocate(const aotc_allocator *allocator, size_t count, size_t element_bytes) {
    return allocate(allocator, count, element_bytes, true);
}

void *aotci_allocate_bytes(const aotc_allocator *allocator, size_t size_bytes) {
    return allocate(allocator, size_bytes, 1, false);
}

void aotci_deallocate(const aotc_allocator *allocator, void *memory, size_t count,
                      size_t element_bytes) {
    if (memory == NULL) {
        return;
    }
    if (allocator->deallocate == NULL && total_bytes(count, element_bytes) >= LARGE_BYTES) {
        (void)munmap(memory, total_bytes(count, element_bytes));
    } else if (allocator->deallocate == NULL) {
        free(memory);
    } else {
        allocator->deallocate(allocator->user, memory, total_bytes(count, element_bytes));
    }
}
