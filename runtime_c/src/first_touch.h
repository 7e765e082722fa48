/* first_touch.h: prefetch the library's code. */
#ifndef AOTCI_FIRST_TOUCH_H
#define AOTCI_FIRST_TOUCH_H

/* Prefetch all cache lines of the library's code; once in a process. */
void aotci_fetch_code(void);

#endif
