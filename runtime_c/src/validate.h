/* validate.h: check the root of an archive and the index of a kernel, each once, for all later
 * uses. */
#ifndef AOTCI_VALIDATE_H
#define AOTCI_VALIDATE_H

#include "archive.h"

/* Check the directory of the root, or of the index of a kernel, and set the sections. The bytes are
 * verified. FORMAT, LIMIT. */
aotc_status aotci_validate_directory(struct aotci_tables *tables, bool is_root, aotc_error *error);

/* Check every record of the root: the rules of docs/reference/archive-format.md for a C reader.
 * FORMAT, LIMIT. */
aotc_status aotci_validate_root(const struct aotc_archive *archive, aotc_error *error);

/* Check the record of one kernel, whatever the others contain. FORMAT, LIMIT. */
aotc_status aotci_validate_entry(const struct aotc_archive *archive, uint32_t number,
                                 const struct entry_record *entry, aotc_error *error);

/* The possible offset of a frame after one that ends at `end`. */
uint64_t aotci_frame_start(const struct aotc_archive *archive, uint64_t end);

/* Return whether a frame of so many bytes may lie there, given the size of the file. */
bool aotci_is_place(const struct aotc_archive *archive, uint64_t offset, uint64_t stored_bytes);

/* Check every record of the index of a kernel. FORMAT, LIMIT, NOMEM. */
aotc_status aotci_validate_index(const struct aotc_kernel *kernel, aotc_error *error);

/* Check the record of a kernel and all it owns (validate_kernel.c). FORMAT, LIMIT, NOMEM. */
aotc_status aotci_validate_kernel(const struct aotc_kernel *kernel, aotc_error *error);

/* Report that `field` of record `index` of a section is wrong. */
aotc_status aotci_bad_record(const struct aotci_tables *tables, aotc_error *error,
                             enum section_kind kind, uint32_t index, const char *field,
                             const char *expected);

/* Report that a count is above a limit of the format. */
aotc_status aotci_above_limit(const struct aotci_tables *tables, aotc_error *error,
                              const char *what, uint64_t count, uint64_t most);

/* Return whether an offset is a string's, of at most so many bytes (for a name at least one). */
bool aotci_is_text(const struct aotci_tables *tables, uint32_t offset, uint32_t most_bytes);
bool aotci_is_name(const struct aotci_tables *tables, uint32_t offset);

/* Return whether a NUL-terminated string is UTF-8. */
bool aotci_is_utf8(const char *string);

#endif
