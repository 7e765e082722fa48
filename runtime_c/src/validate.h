/* validate.h: check the index of an archive, once, so that everything after may trust it. */
#ifndef AOTCI_VALIDATE_H
#define AOTCI_VALIDATE_H

#include "archive.h"

/* Check the directory and set `archive->sections`. `archive->index` and `file_bytes` are set, and
 * the index is known to be what was written. FORMAT, LIMIT. */
aotc_status aotci_validate_directory(struct aotc_archive *archive, aotc_error *error);

/* Check every record of every section: the rules of docs/reference/archive-format.md that a C reader keeps.
 * FORMAT, LIMIT. */
aotc_status aotci_validate_records(struct aotc_archive *archive, aotc_error *error);

/* The same for the records of kernels and all they own (validate_kernel.c). */
aotc_status aotci_validate_kernels(struct aotc_archive *archive, aotc_error *error);

/* Report that `field` of record `index` of a section is wrong. */
aotc_status aotci_bad_record(const struct aotc_archive *archive, aotc_error *error,
                             enum section_kind kind, uint32_t index, const char *field,
                             const char *expected);

/* The same for a count above a limit of the format. */
aotc_status aotci_above_limit(const struct aotc_archive *archive, aotc_error *error,
                              const char *what, uint64_t count, uint64_t most);

/* Say whether an offset is that of a string, and of how many bytes at most (at least one for a
 * name). */
bool aotci_is_text(const struct aotc_archive *archive, uint32_t offset, uint32_t most_bytes);
bool aotci_is_name(const struct aotc_archive *archive, uint32_t offset);

#endif
