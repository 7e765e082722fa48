/* validate.c: check the root of an archive, and of a kernel's index the directory, strings,
 * targets, expressions and blobs.
 *
 * Data is checked before it is relied on: first the offsets of sections, then the strings that
 * messages may quote, then the tables that others refer to; the kernel comes last
 * (validate_kernel.c). Sizes are added in 64 bits and compared with the rest, so nothing overflows
 * and nothing is read outside the index.
 */
#include "validate.h"

#include <inttypes.h>
#include <string.h>

#include "expression.h"

/* Size and C alignment of each record, and the maximum number (0: as many as the index holds); CODE
 * and STRINGS are bytes. */
static const struct {
    const char *name;
    uint32_t record_bytes;
    uint32_t alignment;
    uint32_t most;
} layouts[SECTION_COUNT + 1] = {
    [SECTION_ARCHIVE] = {"ARCHIVE", sizeof(struct archive_record), 4},
    [SECTION_TARGETS] = {"TARGETS", sizeof(struct target_record), 4, LIMIT_TARGETS},
    [SECTION_ENTRIES] = {"ENTRIES", sizeof(struct entry_record), 8, LIMIT_KERNELS},
    [SECTION_SLOTS] = {"SLOTS", sizeof(struct slot_record), 4},
    [SECTION_KERNELS] = {"KERNELS", sizeof(struct kernel_record), 8},
    [SECTION_PARAMS] = {"PARAMS", sizeof(struct param_record), 4},
    [SECTION_TYPE_VARIABLES] = {"TYPE_VARIABLES", sizeof(struct type_variable_record), 4},
    [SECTION_CHOICES] = {"CHOICES", sizeof(struct choice_record), 4},
    [SECTION_VALUES] = {"VALUES", sizeof(struct value_record), 8},
    [SECTION_GUARDS] = {"GUARDS", sizeof(struct guard_record), 4},
    [SECTION_CONFIGS] = {"CONFIGS", sizeof(struct config_record), 4},
    [SECTION_VARIANTS] = {"VARIANTS", sizeof(struct variant_record), 8, LIMIT_VARIANTS},
    [SECTION_CUBIN_PARAMS] = {"CUBIN_PARAMS", sizeof(struct cubin_param_record), 4},
    [SECTION_TENSOR_MAPS] = {"TENSOR_MAPS", sizeof(struct tensor_map_record), 4},
    [SECTION_SELECTIONS] = {"SELECTIONS", sizeof(struct selection_record), 4},
    [SECTION_FEATURES] = {"FEATURES", sizeof(struct feature_record), 4},
    [SECTION_BRANCHES] = {"BRANCHES", sizeof(struct branch_record), 8},
    [SECTION_LEAVES] = {"LEAVES", sizeof(struct leaf_record), 4},
    [SECTION_LEAF_CONFIGS] = {"LEAF_CONFIGS", sizeof(struct leaf_config_record), 4},
    [SECTION_EXPRESSIONS] = {"EXPRESSIONS", sizeof(struct expression_record), 4},
    [SECTION_BLOBS] = {"BLOBS", sizeof(struct blob_record), 4},
    [SECTION_FRAMES] = {"FRAMES", sizeof(struct frame_record), 4},
    [SECTION_CODE] = {"CODE", 1, 1},
    [SECTION_STRINGS] = {"STRINGS", 1, 1},
};

static const enum section_kind root_sections[] = {SECTION_ARCHIVE, SECTION_TARGETS, SECTION_ENTRIES,
                                                  SECTION_SLOTS, SECTION_STRINGS};
static const enum section_kind kernel_sections[] = {
    SECTION_TARGETS,      SECTION_KERNELS,      SECTION_PARAMS,      SECTION_TYPE_VARIABLES,
    SECTION_CHOICES,      SECTION_VALUES,       SECTION_GUARDS,      SECTION_CONFIGS,
    SECTION_VARIANTS,     SECTION_CUBIN_PARAMS, SECTION_TENSOR_MAPS, SECTION_SELECTIONS,
    SECTION_FEATURES,     SECTION_BRANCHES,     SECTION_LEAVES,      SECTION_LEAF_CONFIGS,
    SECTION_EXPRESSIONS,  SECTION_BLOBS,        SECTION_FRAMES,      SECTION_CODE,
    SECTION_STRINGS,
};

static const char remedy[] = "the archive is damaged or its writer is wrong: build it again";

aotc_status aotci_bad_record(const struct aotci_tables *tables, aotc_error *error,
                             enum section_kind kind, uint32_t index, const char *field,
                             const char *expected) {
    return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = tables->file,
                      .field =
                          aotci_text("%s[%" PRIu32 "].%s", layouts[kind].name, index, field).chars,
                      .expected = expected, .got = "something else", .remedy = remedy);
}

aotc_status aotci_above_limit(const struct aotci_tables *tables, aotc_error *error,
                              const char *what, uint64_t count, uint64_t most) {
    return AOTCI_FAIL(error, AOTC_ERROR_LIMIT, .file = tables->file, .field = what,
                      .expected = aotci_text("at most %" PRIu64, most).chars,
                      .got = aotci_text("%" PRIu64, count).chars, .remedy = remedy);
}

/* ---- the directory -------------------------------------------------------------------------- */

static aotc_status bad_section(const struct aotci_tables *tables, aotc_error *error, unsigned kind,
                               const char *field, const char *expected) {
    const char *name = kind <= SECTION_COUNT ? layouts[kind].name : "a section after STRINGS";
    return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = tables->file,
                      .field = aotci_text("directory, %s, %s", name, field).chars,
                      .expected = expected, .got = "something else", .remedy = remedy);
}

static bool is_zero(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Check the entry of section `kind`, which must begin at `*end`, and move `*end` after it. */
static aotc_status check_entry(const struct aotci_tables *tables, aotc_error *error, unsigned kind,
                               const struct directory_entry *entry, uint64_t *end) {
    if (entry->kind != kind) {
        return bad_section(tables, error, kind, "kind", "the kinds in order");
    }
    if (kind <= SECTION_COUNT) {
        const uint32_t known_bytes = layouts[kind].record_bytes;
        const bool fits = entry->record_bytes == known_bytes ||
                          (tables->is_newer && known_bytes > 1 &&
                           entry->record_bytes > known_bytes &&
                           entry->record_bytes % layouts[kind].alignment == 0);
        if (!fits) {
            return bad_section(tables, error, kind, "record_bytes", "the record's size");
        }
    }
    const uint64_t size_bytes = (uint64_t)entry->record_bytes * entry->count;
    if (size_bytes > LIMIT_INDEX_BYTES) {
        return aotci_above_limit(tables, error, "directory, size of a section", size_bytes,
                                 LIMIT_INDEX_BYTES);
    }
    const uint32_t most = kind <= SECTION_COUNT ? layouts[kind].most : 0;
    if (most != 0 && entry->count > most) {
        return aotci_above_limit(tables, error, layouts[kind].name, entry->count, most);
    }
    if (entry->offset != *end) {
        return bad_section(tables, error, kind, "offset", "the end of the section before");
    }
    const uint64_t used_end = entry->offset + size_bytes;
    *end = (used_end + 7) / 8 * 8;
    if (*end > tables->size_bytes) {
        return bad_section(tables, error, kind, "count", "a section inside the index");
    }
    if (!tables->is_partial && !is_zero(tables->bytes + used_end, (size_t)(*end - used_end))) {
        return bad_section(tables, error, kind, "padding", "zeros");
    }
    return AOTC_OK;
}

aotc_status aotci_validate_directory(struct aotci_tables *tables, bool is_root, aotc_error *error) {
    const enum section_kind *kinds = is_root ? root_sections : kernel_sections;
    const uint32_t known_count =
        is_root ? (uint32_t)(sizeof root_sections / sizeof *root_sections)
                : (uint32_t)(sizeof kernel_sections / sizeof *kernel_sections);
    uint32_t head[2] = {0, 0};
    if (tables->size_bytes >= sizeof head) {
        memcpy(head, tables->bytes, sizeof head);
    }
    const uint32_t section_count = head[0];
    if (section_count < known_count || (section_count > known_count && !tables->is_newer) ||
        head[1] != 0) {
        return bad_section(tables, error, kinds[0], "section_count",
                           aotci_text("%" PRIu32 " sections", known_count).chars);
    }
    uint64_t end = sizeof head + sizeof(struct directory_entry) * (uint64_t)section_count;
    if (end > tables->size_bytes) {
        return bad_section(tables, error, kinds[0], "section_count",
                           "a directory inside the index");
    }
    const struct directory_entry *entries = (const void *)(tables->bytes + sizeof head);
    for (uint32_t i = 0; i < section_count; ++i) {
        const unsigned kind = i < known_count ? kinds[i] : SECTION_COUNT + 1 + i - known_count;
        const aotc_status status = check_entry(tables, error, kind, &entries[i], &end);
        if (status != AOTC_OK) {
            return status;
        }
        if (i < known_count) {
            tables->sections[kind] = (struct aotci_table){
                .records = tables->bytes + entries[i].offset,
                .offset = entries[i].offset,
                .count = entries[i].count,
                .stride = entries[i].record_bytes,
            };
        }
    }
    if (end != tables->size_bytes) {
        return bad_section(tables, error, SECTION_STRINGS, "end", "the end of the index");
    }
    return AOTC_OK;
}

/* ---- strings -------------------------------------------------------------------------------- */

/* Size of the UTF-8 sequence at `bytes`, before a NUL; 0 if it is invalid. */
static unsigned utf8_sequence(const unsigned char *bytes) {
    static const struct {
        unsigned char first, last, low, high; /* range of the lead, range of the second byte */
        unsigned length;
    } forms[] = {
        {0x01, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
        {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
        {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i) {
        if (bytes[0] < forms[i].first || bytes[0] > forms[i].last) {
            continue;
        }
        if (forms[i].length == 1) {
            return 1;
        }
        if (bytes[1] < forms[i].low || bytes[1] > forms[i].high) {
            return 0;
        }
        for (unsigned k = 2; k < forms[i].length; ++k) {
            if ((bytes[k] & 0xC0) != 0x80) {
                return 0;
            }
        }
        return forms[i].length;
    }
    return 0;
}

bool aotci_is_utf8(const char *string) {
    const unsigned char *bytes = (const unsigned char *)string;
    while (*bytes != 0) {
        const unsigned length = *bytes < 0x80 ? 1 : utf8_sequence(bytes);
        if (length == 0) {
            return false;
        }
        bytes += length;
    }
    return true;
}

static aotc_status check_strings(const struct aotci_tables *tables, aotc_error *error) {
    const struct aotci_table *table = &tables->sections[SECTION_STRINGS];
    const unsigned char *bytes = table->records;
    if (table->count == 0 || bytes[0] != 0 || bytes[table->count - 1] != 0) {
        return bad_section(tables, error, SECTION_STRINGS, "bytes",
                           "strings ended by NUL, the first empty");
    }
    const char *before = (const char *)bytes;
    for (uint32_t at = 1; at < table->count;) {
        const char *string = (const char *)bytes + at;
        if (strcmp(before, string) >= 0) {
            return bad_section(tables, error, SECTION_STRINGS, "bytes",
                               "strings in increasing order");
        }
        if (!aotci_is_utf8(string)) {
            return bad_section(tables, error, SECTION_STRINGS, "bytes", "UTF-8");
        }
        at += (uint32_t)strlen(string) + 1;
        before = string;
    }
    return AOTC_OK;
}

bool aotci_is_text(const struct aotci_tables *tables, uint32_t offset, uint32_t most_bytes) {
    const struct aotci_table *table = &tables->sections[SECTION_STRINGS];
    if (offset >= table->count || (offset != 0 && table->records[offset - 1] != 0)) {
        return false;
    }
    const uint32_t left_bytes = table->count - offset;
    const uint32_t searched_bytes = left_bytes < most_bytes + 1 ? left_bytes : most_bytes + 1;
    return memchr(table->records + offset, 0, searched_bytes) != NULL;
}

bool aotci_is_name(const struct aotci_tables *tables, uint32_t offset) {
    return offset != 0 && aotci_is_text(tables, offset, LIMIT_NAME_BYTES);
}

/* ---- the archive, targets, expressions, blobs ------------------------------------------------ */

static aotc_status check_archive_record(const struct aotci_tables *tables, aotc_error *error) {
    if (aotci_count(tables, SECTION_ARCHIVE) != 1) {
        return bad_section(tables, error, SECTION_ARCHIVE, "count", "one record");
    }
    const struct archive_record *record = aotci_record(tables, SECTION_ARCHIVE, 0);
    if (!aotci_is_name(tables, record->name) || !aotci_is_name(tables, record->version)) {
        return aotci_bad_record(tables, error, SECTION_ARCHIVE, 0, "name, version", "names");
    }
    if (!aotci_is_text(tables, record->toolchain, LIMIT_TEXT_BYTES) || record->zero != 0) {
        return aotci_bad_record(tables, error, SECTION_ARCHIVE, 0, "toolchain",
                                "a text, and zero after it");
    }
    return AOTC_OK;
}

/* Compare a target's name with its numbers. */
static bool target_name_fits(const struct aotci_tables *tables,
                             const struct target_record *target) {
    static const char letters[] = {
        [FEATURE_PLAIN] = '\0', [FEATURE_ARCH] = 'a', [FEATURE_FAMILY] = 'f'};
    if (target->feature > FEATURE_FAMILY || target->minor > 9 || target->major == 0 ||
        target->major > 99) {
        return false;
    }
    /* Without printf, to keep its code out of a first launch. */
    char spelled[8] = "sm_";
    char *at = spelled + 3;
    if (target->major > 9) {
        *at++ = (char)('0' + target->major / 10);
    }
    *at++ = (char)('0' + target->major % 10);
    *at++ = (char)('0' + target->minor);
    *at = letters[target->feature];
    return strcmp(spelled, aotci_string(tables, target->name)) == 0;
}

static aotc_status check_targets(const struct aotci_tables *tables, aotc_error *error) {
    const uint32_t count = aotci_count(tables, SECTION_TARGETS);
    for (uint32_t i = 0; i < count; ++i) {
        const struct target_record *target = aotci_target(tables, i);
        if (!aotci_is_name(tables, target->name) || target->zero != 0 ||
            !target_name_fits(tables, target)) {
            return aotci_bad_record(tables, error, SECTION_TARGETS, i, "name",
                                    "the name of its numbers");
        }
        /* Strings are distinct and in order, so the order of offsets is the order of names. */
        if (i != 0 && aotci_target(tables, i - 1)->name >= target->name) {
            return aotci_bad_record(tables, error, SECTION_TARGETS, i, "name", "increasing names");
        }
    }
    return AOTC_OK;
}

static aotc_status check_expressions(const struct aotci_tables *tables, aotc_error *error) {
    const struct aotci_table *code = &tables->sections[SECTION_CODE];
    uint32_t end = 0;
    for (uint32_t i = 0; i < aotci_count(tables, SECTION_EXPRESSIONS); ++i) {
        const struct expression_record *expression = aotci_expression(tables, i);
        if (expression->code_bytes > LIMIT_CODE_BYTES) {
            return aotci_above_limit(tables, error, "bytecode of an expression",
                                     expression->code_bytes, LIMIT_CODE_BYTES);
        }
        if (expression->stack_depth > LIMIT_STACK) {
            return aotci_above_limit(tables, error, "stack of an expression",
                                     expression->stack_depth, LIMIT_STACK);
        }
        if (expression->code_offset != end || expression->code_bytes == 0 ||
            expression->code_bytes > code->count - end) {
            return aotci_bad_record(tables, error, SECTION_EXPRESSIONS, i,
                                    "code_offset, code_bytes", "the slice after the previous one");
        }
        end += expression->code_bytes;
        if (expression->text == 0 || expression->zero != 0 ||
            !aotci_is_text(tables, expression->text, LIMIT_EXPRESSION_TEXT_BYTES)) {
            return aotci_bad_record(tables, error, SECTION_EXPRESSIONS, i, "text",
                                    "1 to 1024 bytes");
        }
        const char *wrong = aotci_expression_check(code->records + expression->code_offset,
                                                   expression->code_bytes, expression->stack_depth);
        if (wrong != NULL) {
            return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = tables->file,
                              .field = aotci_text("EXPRESSIONS[%" PRIu32 "].code", i).chars,
                              .expected = "a valid program", .got = wrong, .remedy = remedy);
        }
    }
    return end == code->count
               ? AOTC_OK
               : bad_section(tables, error, SECTION_CODE, "bytes", "code with an owner");
}

/* ---- frames ----------------------------------------------------------------------------------- */

uint64_t aotci_frame_start(const struct aotc_archive *archive, uint64_t end) {
    return archive->is_compressed ? end : (end + STORED_ALIGN - 1) / STORED_ALIGN * STORED_ALIGN;
}

bool aotci_is_place(const struct aotc_archive *archive, uint64_t offset, uint64_t stored_bytes) {
    return offset >= archive->head_bytes && offset <= archive->file_bytes &&
           stored_bytes <= archive->file_bytes - offset &&
           (archive->is_compressed || offset % STORED_ALIGN == 0);
}

/* Check the sizes of a frame in a record of a table. */
static aotc_status check_sizes(const struct aotc_archive *archive, const struct aotci_tables *tables,
                               enum section_kind kind, uint32_t number, const struct frame_record *frame,
                               uint32_t most, aotc_error *error) {
    if (frame->raw_bytes > most) {
        return aotci_above_limit(tables, error, "decoded size of a frame", frame->raw_bytes, most);
    }
    if (frame->raw_bytes == 0 || (!archive->is_compressed && frame->stored_bytes != frame->raw_bytes)) {
        return aotci_bad_record(tables, error, kind, number, "raw_bytes",
                                "a size, and stored_bytes if nothing is compressed");
    }
    return AOTC_OK;
}

/* ---- the root --------------------------------------------------------------------------------- */

aotc_status aotci_validate_entry(const struct aotc_archive *archive, uint32_t number,
                                 const struct entry_record *entry, aotc_error *error) {
    const struct aotci_tables *tables = &archive->root;
    const aotc_status status = check_sizes(archive, tables, SECTION_ENTRIES, number, &entry->frame,
                                           LIMIT_INDEX_BYTES, error);
    if (status != AOTC_OK) {
        return status;
    }
    if (entry->frame_count > entry->frame.raw_bytes / sizeof(struct frame_record)) {
        return aotci_bad_record(tables, error, SECTION_ENTRIES, number, "frame_count",
                                "no more than the index has room for");
    }
    if (!aotci_is_place(archive, entry->offset, aotci_index_bytes(entry))) {
        return aotci_bad_record(tables, error, SECTION_ENTRIES, number, "offset, stored_bytes",
                                "a place in the file");
    }
    return AOTC_OK;
}

/* Kernels in the order of their names, and their indices in the same order. */
static aotc_status check_entries(const struct aotc_archive *archive, aotc_error *error) {
    const struct aotci_tables *tables = &archive->root;
    uint64_t end = archive->head_bytes;
    for (uint32_t i = 0; i < aotci_count(tables, SECTION_ENTRIES); ++i) {
        const struct entry_record *entry = aotci_entry(tables, i);
        const aotc_status status = aotci_validate_entry(archive, i, entry, error);
        if (status != AOTC_OK) {
            return status;
        }
        if (!aotci_is_name(tables, entry->name)) {
            return aotci_bad_record(tables, error, SECTION_ENTRIES, i, "name", "a name");
        }
        /* Offsets of strings are in the order of the strings. */
        if (i != 0 && aotci_entry(tables, i - 1)->name >= entry->name) {
            return aotci_bad_record(tables, error, SECTION_ENTRIES, i, "name",
                                    "increasing names, each once");
        }
        if (entry->offset != aotci_frame_start(archive, end)) {
            return aotci_bad_record(tables, error, SECTION_ENTRIES, i, "offset, stored_bytes",
                                    "a place in the file after the previous index");
        }
        end = entry->offset + aotci_index_bytes(entry);
    }
    return AOTC_OK;
}

/* Slots for at most half as many kernels, a power of two, or none. */
static uint32_t slot_count(uint32_t kernel_count) {
    uint32_t count = kernel_count == 0 ? 0 : 2;
    while (count < 2 * kernel_count) {
        count *= 2;
    }
    return count;
}

/* Each kernel takes the first slot, from its name's own on, that no earlier kernel has. So any
 * other slot in between belongs to an earlier kernel, and the rest are empty. */
static aotc_status check_slots(const struct aotci_tables *tables, aotc_error *error) {
    const uint32_t kernel_count = aotci_count(tables, SECTION_ENTRIES);
    const uint32_t count = aotci_count(tables, SECTION_SLOTS);
    uint32_t empty = 0;
    if (count != slot_count(kernel_count)) {
        return bad_section(tables, error, SECTION_SLOTS, "count", "two for each kernel, a power of two");
    }
    for (uint32_t i = 0; i < count; ++i) {
        const struct slot_record *slot = aotci_slot(tables, i);
        empty += slot->kernel == 0 && slot->tag == 0;
    }
    if (empty != count - kernel_count) {
        return bad_section(tables, error, SECTION_SLOTS, "records", "one for each kernel, and zeros");
    }
    for (uint32_t i = 0; i < kernel_count; ++i) {
        const uint64_t hash = aotci_name_hash(aotci_string(tables, aotci_entry(tables, i)->name));
        uint32_t at = (uint32_t)hash & (count - 1);
        const struct slot_record *slot = aotci_slot(tables, at);
        for (uint32_t step = 0; step < i && slot->kernel != 0 && slot->kernel < i + 1; ++step) {
            at = (at + 1) & (count - 1);
            slot = aotci_slot(tables, at);
        }
        if (slot->kernel != i + 1 || slot->tag != (uint32_t)(hash >> 32)) {
            return aotci_bad_record(tables, error, SECTION_SLOTS, at, "tag, kernel",
                                    "the kernels, each after those that were there before");
        }
    }
    return AOTC_OK;
}

aotc_status aotci_validate_root(const struct aotc_archive *archive, aotc_error *error) {
    const struct aotci_tables *tables = &archive->root;
    aotc_status status = check_strings(tables, error);
    status = status == AOTC_OK ? check_archive_record(tables, error) : status;
    status = status == AOTC_OK ? check_targets(tables, error) : status;
    status = status == AOTC_OK ? check_entries(archive, error) : status;
    return status == AOTC_OK ? check_slots(tables, error) : status;
}

/* ---- the index of a kernel ---------------------------------------------------------------------- */

/* Check the frames, whose offsets follow the index. */
static aotc_status check_frames(const struct aotc_kernel *kernel, aotc_error *error) {
    const struct aotci_tables *tables = &kernel->tables;
    const uint32_t count = aotci_count(tables, SECTION_FRAMES);
    if (count != kernel->entry.frame_count) {
        return bad_section(tables, error, SECTION_FRAMES, "count", "the frame_count of the root");
    }
    for (uint32_t i = 0; i < count; ++i) {
        const aotc_status status = check_sizes(kernel->archive, tables, SECTION_FRAMES, i,
                                               aotci_frame(tables, i), LIMIT_BLOB_BYTES, error);
        if (status != AOTC_OK) {
            return status;
        }
    }
    return AOTC_OK;
}

/* Whether blobs up to `end` fill the kernel's frame `number`; before the first frame there are
 * none. */
static bool is_filled(const struct aotci_tables *tables, int64_t number, uint32_t end) {
    return number < 0 ? end == 0 : end == aotci_frame(tables, (uint32_t)number)->raw_bytes;
}

/* The blobs cover the frames, one after the other. */
static aotc_status check_blobs(const struct aotci_tables *tables, aotc_error *error) {
    const uint32_t frame_count = aotci_count(tables, SECTION_FRAMES);
    int64_t frame = -1;
    uint32_t end = 0;
    uint32_t kind = 0;
    for (uint32_t i = 0; i < aotci_count(tables, SECTION_BLOBS); ++i) {
        const struct blob_record *blob = aotci_blob(tables, i);
        const uint64_t blob_end = (uint64_t)blob->start + blob->raw_bytes;
        if (blob_end > LIMIT_BLOB_BYTES) {
            return aotci_above_limit(tables, error, "decoded size of a frame", blob_end,
                                     LIMIT_BLOB_BYTES);
        }
        if ((blob->kind != BLOB_CUBIN && blob->kind != BLOB_PTX) || blob->raw_bytes == 0) {
            return aotci_bad_record(tables, error, SECTION_BLOBS, i, "kind",
                                    "a cubin or PTX, not empty");
        }
        const bool follows = blob->start != 0 ? blob->frame == frame && blob->start == end &&
                                                    blob->kind == kind
                                              : blob->frame == frame + 1 &&
                                                    blob->frame < frame_count &&
                                                    is_filled(tables, frame, end);
        if (!follows) {
            return aotci_bad_record(tables, error, SECTION_BLOBS, i, "frame, start",
                                    "the place after the previous blob");
        }
        frame = blob->frame;
        kind = blob->kind;
        end = (uint32_t)blob_end;
    }
    return frame + 1 == frame_count && is_filled(tables, frame, end)
               ? AOTC_OK
               : bad_section(tables, error, SECTION_BLOBS, "end", "the end of the kernel's frames");
}

aotc_status aotci_validate_index(const struct aotc_kernel *kernel, aotc_error *error) {
    aotc_status status = check_strings(&kernel->tables, error);
    status = status == AOTC_OK ? check_targets(&kernel->tables, error) : status;
    status = status == AOTC_OK ? check_expressions(&kernel->tables, error) : status;
    status = status == AOTC_OK ? check_frames(kernel, error) : status;
    status = status == AOTC_OK ? check_blobs(&kernel->tables, error) : status;
    return status == AOTC_OK ? aotci_validate_kernel(kernel, error) : status;
}
