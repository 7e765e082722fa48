/* memory.h: the pages that the library has for its first archives. */
#ifndef AOTCI_MEMORY_H
#define AOTCI_MEMORY_H

enum { RESERVE_BYTES = (1 << 15) - 64 }; /* with what it says of itself, whole pages */

/* Touch them, when the library is loaded (memory.c). */
void aotci_touch_reserve(void);

#endif
