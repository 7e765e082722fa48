/* first_touch.h: have the library's code at hand. */
#ifndef AOTCI_FIRST_TOUCH_H
#define AOTCI_FIRST_TOUCH_H

/* Have the processor fetch the library's code, all lines at once; once in a process. */
void aotci_fetch_code(void);

#endif
