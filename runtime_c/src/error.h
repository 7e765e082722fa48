/* error.h: the reporting of failures by every function of the library.
 *
 * A failure is a status and a `struct aotci_detail` of borrowed strings; `aotci_fail` copies them
 * into the caller's `aotc_error`, if there is one, composes the message, and returns the status, so
 * a caller writes
 *
 *   return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "grid", .got = aotci_text("%d", n).chars);
 *
 * Nothing is allocated: the temporaries of `aotci_text` live until the end of that statement. Every
 * internal name begins with `aotci_`, so the static library has no name clashes.
 */
#ifndef AOTCI_ERROR_H
#define AOTCI_ERROR_H

#include <stdbool.h>

#include "aotc/aotc.h"

struct aotci_detail {
    const char *file;
    const char *kernel;
    const char *field; /* the wrong field */
    const char *expected;
    const char *got;
    const char *remedy;
    int cuda;
    int os_error;
};

/* A short text as a value; longer ones end in "...". */
struct aotci_text {
    char chars[512];
};

/* For functions called only on failure: compilers place them apart, and a first launch touches
 * fewer pages. */
#define AOTCI_COLD __attribute__((cold))

AOTCI_COLD aotc_status aotci_fail(aotc_error *error, aotc_status status,
                                  const struct aotci_detail *detail);

#define AOTCI_FAIL(error, status, ...)                                                             \
    aotci_fail((error), (status), &(struct aotci_detail){__VA_ARGS__})

AOTCI_COLD __attribute__((format(printf, 1, 2))) struct aotci_text aotci_text(const char *format, ...);

/* Return `why`, a description of an error, for a caller to report. */
AOTCI_COLD const char *aotci_refused(const char *why);

/* Return whether this library understands a caller's struct: at least as large as in the first
 * version, and zero in unknown fields. */
bool aotci_is_struct(const void *given, uint32_t struct_size, size_t known_bytes);

/* Append to a text, truncated at its end. */
AOTCI_COLD __attribute__((format(printf, 2, 3))) void aotci_text_add(struct aotci_text *text,
                                                                     const char *format, ...);

#endif
