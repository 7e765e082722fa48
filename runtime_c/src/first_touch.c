/* first_touch.c: have the pages of the library's code, and of its reserve of memory, when it is loaded.
 *
 * The system maps a program's code when it is touched first, a few pages around at once, and takes as long for that as
 * a small archive to read. A first launch goes through most files of the library, one after the other: so one byte of
 * each is read while the program starts.
 */
#include "cubin.h"
#include "dispatch.h"
#include "guard.h"
#include "memory.h"
#include "plan.h"
#include "sha256.h"
#include "validate.h"

#define PLACE(function) ((uintptr_t)&(function))

__attribute__((constructor)) static void touch_code(void) {
    const uintptr_t places[] = {
        PLACE(aotc_open_file),    PLACE(aotci_root_open),        PLACE(aotci_index_decode),
        PLACE(aotci_sha256),      PLACE(aotc_kernel_get),        PLACE(aotci_kernel_open),
        PLACE(aotci_memo_find),   PLACE(aotci_validate_index),   PLACE(aotci_validate_kernel),
        PLACE(aotci_guard_of),    PLACE(aotc_load),              PLACE(aotci_driver_open),
        PLACE(aotci_load_kernel), PLACE(aotci_cubin_check),      PLACE(aotc_launch),
        PLACE(aotci_plan_launch), PLACE(aotci_count_programs),
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
        (void)*(const volatile unsigned char *)places[i];
    }
    aotci_touch_reserve();
}
