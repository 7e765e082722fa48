/* first_touch.c: prefetch the library's code, and its reserve of memory, for a first launch.
 *
 * The system maps a program's code at its first use, a few pages at once, which takes as long as
 * reading a small archive. A first launch goes through most files of the library, one after the
 * other, so one byte of each is read while the program starts. Then a driver starts and evicts most
 * of it from the nearest caches, and a launch would wait for one cache line after the other. So
 * opening the first archive prefetches all of it at once, at little extra cost.
 */
#include "first_touch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cubin.h"
#include "dispatch.h"
#include "guard.h"
#include "memory.h"
#include "plan.h"
#include "sha256.h"
#include "validate.h"

enum {
    LINE_BYTES = 64,
    FUNCTION_BYTES = 2048,  /* about the size of the last function */
    MOST_BYTES = 128 << 10, /* twice the library's size: beyond it is other code */
};

#define PLACE(function) ((uintptr_t)&(function))

/* From the first to the last of the named functions, one of each file. */
struct extent {
    uintptr_t begin, end;
};

/* Read a byte of each function if requested. */
static inline struct extent code_extent(bool is_read) {
    const uintptr_t places[] = {
        PLACE(aotc_open_file),    PLACE(aotci_root_open),        PLACE(aotci_index_decode),
        PLACE(aotci_sha256),      PLACE(aotc_kernel_get),        PLACE(aotci_kernel_open),
        PLACE(aotci_memo_find),   PLACE(aotci_validate_index),   PLACE(aotci_validate_kernel),
        PLACE(aotci_guard_of),    PLACE(aotc_load),              PLACE(aotci_driver_open),
        PLACE(aotci_load_kernel), PLACE(aotci_cubin_check),      PLACE(aotc_launch),
        PLACE(aotci_plan_launch), PLACE(aotci_count_programs),
    };
    struct extent extent = {places[0], places[0]};
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
        extent.begin = places[i] < extent.begin ? places[i] : extent.begin;
        extent.end = places[i] > extent.end ? places[i] : extent.end;
        if (is_read) {
            (void)*(const volatile unsigned char *)places[i];
        }
    }
    return extent;
}

__attribute__((constructor)) static void touch_code(void) {
    (void)code_extent(true);
    aotci_touch_reserve();
}

void aotci_fetch_code(void) {
    static atomic_bool was_fetched;
    if (atomic_load_explicit(&was_fetched, memory_order_relaxed)) {
        return;
    }
    atomic_store_explicit(&was_fetched, true, memory_order_relaxed);
    const struct extent extent = code_extent(false);
    if (extent.end - extent.begin > MOST_BYTES) {
        return;
    }
    for (uintptr_t at = extent.begin; at < extent.end + FUNCTION_BYTES; at += LINE_BYTES) {
        __builtin_prefetch((const void *)at);
    }
}
