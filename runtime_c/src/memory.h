/* memory.h: the library's reserve of pages for its first archives. */
#ifndef AOTCI_MEMORY_H
#define AOTCI_MEMORY_H

enum { RESERVE_BYTES = (1 << 15) - 64 }; /* with its state, whole pages */

/* Touch the reserve, when the library is loaded (memory.c). */
void aotci_touch_reserve(void);

#endif
