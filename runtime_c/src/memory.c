/* memory.c: memory through the caller's allocator, or from a reserve, malloc and the system.
 *
 * A first launch makes a dozen allocations, 10 to 25 KB in all. In a program that has just started
 * its driver, malloc returns untouched pages, and the system has to map them. So the library has
 * some pages of its own, touched when it is loaded (first_touch.c). Allocations lie in them one
 * behind the other; the last one can be freed, and when all are, the reserve is empty again.
 * Allocations that do not fit go to malloc.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS under -std=c11 */
#include "memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "archive.h"

/* Tables that are mostly empty come from the system: cleared, and mapped at first use; calloc
 * clears all reused memory. */
enum { LARGE_BYTES = 1 << 16 };

/* ---- the reserve -------------------------------------------------------------------------------- */

/* With a sanitizer every allocation goes to malloc, to be watched. */
#if defined(__SANITIZE_ADDRESS__)
#define IS_WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define IS_WATCHED 1
#endif
#endif
#ifndef IS_WATCHED
#define IS_WATCHED 0
#endif

enum { PAGE_BYTES = 4096, PIECE_ALIGN = 16, FIELD_BITS = 20, FIELD_MASK = (1 << FIELD_BITS) - 1 };
_Static_assert(RESERVE_BYTES <= (int)FIELD_MASK, "offsets fit a field");

static struct {
    _Alignas(PAGE_BYTES) unsigned char bytes[RESERVE_BYTES];
    /* The whole state in one word: the start of the free part, the end of the part ever used
     * (memory beyond is zero), and above these the number of allocations in use. */
    _Atomic uint64_t state;
} reserve;

struct state {
    uint32_t next, used, piece_count;
};

static struct state unpack(uint64_t word) {
    return (struct state){(uint32_t)word & FIELD_MASK, (uint32_t)(word >> FIELD_BITS) & FIELD_MASK,
                          (uint32_t)(word >> 2 * FIELD_BITS)};
}

static uint64_t pack(struct state state) {
    return (uint64_t)state.piece_count << 2 * FIELD_BITS | (uint64_t)state.used << FIELD_BITS |
           state.next;
}

static uint32_t piece_bytes(size_t size_bytes) {
    return (uint32_t)((size_bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN);
}

static bool is_reserved(const void *memory) {
    return (uintptr_t)memory - (uintptr_t)reserve.bytes < RESERVE_BYTES;
}

/* Allocate from the reserve, or return NULL if it is full. */
static void *take(size_t size_bytes, bool is_cleared) {
    uint64_t word = atomic_load_explicit(&reserve.state, memory_order_acquire);
    struct state before, after;
    do {
        before = after = unpack(word);
        if (IS_WATCHED || size_bytes > RESERVE_BYTES - before.next) {
            return NULL;
        }
        after.next += piece_bytes(size_bytes);
        after.used = after.next > before.used ? after.next : before.used;
        after.piece_count += 1;
    } while (!atomic_compare_exchange_weak_explicit(&reserve.state, &word, pack(after),
                                                    memory_order_acq_rel, memory_order_acquire));
    unsigned char *piece = reserve.bytes + before.next;
    if (is_cleared && before.next < before.used) {
        const uint32_t end = after.next < before.used ? after.next : before.used;
        memset(piece, 0, end - before.next);
    }
    return piece;
}

static void give_back(const unsigned char *piece, size_t size_bytes) {
    const uint32_t end = (uint32_t)(piece - reserve.bytes) + piece_bytes(size_bytes);
    uint64_t word = atomic_load_explicit(&reserve.state, memory_order_relaxed);
    struct state state;
    do {
        state = unpack(word);
        state.piece_count -= 1;
        if (state.piece_count == 0) {
            state.next = 0;
        } else if (state.next == end) {
            state.next = (uint32_t)(piece - reserve.bytes);
        }
    } while (!atomic_compare_exchange_weak_explicit(&reserve.state, &word, pack(state),
                                                    memory_order_acq_rel, memory_order_relaxed));
}

void aotci_touch_reserve(void) {
    for (size_t i = 0; !IS_WATCHED && i < sizeof reserve; i += PAGE_BYTES) {
        *((volatile unsigned char *)&reserve + i) = 0;
    }
}

/* ---- any memory --------------------------------------------------------------------------------- */

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
        void *piece = take(size_bytes, is_cleared);
        if (piece != NULL) {
            return piece;
        }
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
    const size_t size_bytes = total_bytes(count, element_bytes);
    if (memory == NULL) {
        return;
    }
    if (allocator->deallocate != NULL) {
        allocator->deallocate(allocator->user, memory, size_bytes);
    } else if (size_bytes >= LARGE_BYTES) {
        (void)munmap(memory, size_bytes);
    } else if (is_reserved(memory)) {
        give_back(memory, size_bytes);
    } else {
        free(memory);
    }
}
