/* fork.c: distinguish a forked child from the process that loaded an archive.
 *
 * CUDA does not survive fork, and calling it in the child is undefined, so every launch must check.
 * A page that the kernel clears in a forked child answers at the cost of one read. Without such a
 * page, the process id answers at the cost of a system call. The page belongs to the process, from
 * the time the library is loaded: making one takes as long as opening a small archive.
 */
#define _GNU_SOURCE /* MADV_WIPEONFORK */
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

/* The page holds the mark of this process; 0 in a child that has loaded nothing yet. */
static _Atomic uint64_t *page;

/* A process id may repeat, in a child of a child; a time does not. */
static uint64_t mark_of_process(void) {
    uint64_t mark = atomic_load(page);
    if (mark == 0) {
        struct timespec now;
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        const uint64_t made = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + 1;
        mark = atomic_compare_exchange_strong(page, &mark, made) ? made : mark;
    }
    return mark;
}

#ifdef MADV_WIPEONFORK
__attribute__((constructor)) static void make_page(void) {
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *made = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
        return;
    }
    if (madvise(made, page_bytes, MADV_WIPEONFORK) != 0) {
        (void)munmap(made, page_bytes);
        return;
    }
    page = made;
    (void)mark_of_process();
}
#endif

bool aotci_may_be_forked(void) { return page == NULL || atomic_load(page) == 0; }

void aotci_mark_process(struct aotc_archive *archive) {
    archive->process = page == NULL ? (uint64_t)getpid() : mark_of_process();
}

bool aotci_is_forked(const struct aotc_archive *archive) {
    const uint64_t mark =
        page != NULL ? atomic_load_explicit(page, memory_order_relaxed) : (uint64_t)getpid();
    return mark != archive->process;
}
