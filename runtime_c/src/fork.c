/* fork.c: tell a forked child from the process that loaded an archive.
 *
 * CUDA does not survive fork, and calling it in the child is undefined, so every launch must know.
 * A page that the kernel clears in a forked child tells the two apart for the price of one read;
 * where there is no such page, the process id does, for the price of a system call.
 */
#define _GNU_SOURCE /* MADV_WIPEONFORK */
#include <sys/mman.h>
#include <unistd.h>

#include "load.h"

void aotci_mark_process(struct aotc_archive *archive) {
    archive->process = (long)getpid();
#ifdef MADV_WIPEONFORK
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return;
    }
    if (madvise(page, page_bytes, MADV_WIPEONFORK) != 0) {
        (void)munmap(page, page_bytes);
        return;
    }
    *(volatile uint32_t *)page = 1;
    archive->fork_page = page;
#endif
}

void aotci_unmark_process(struct aotc_archive *archive) {
    if (archive->fork_page != NULL) {
        (void)munmap((void *)(uintptr_t)archive->fork_page, (size_t)sysconf(_SC_PAGESIZE));
        archive->fork_page = NULL;
    }
}

bool aotci_is_forked(const struct aotc_archive *archive) {
    return archive->fork_page != NULL ? *archive->fork_page == 0
                                      : archive->process != (long)getpid();
}
