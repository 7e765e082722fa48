/* error.c: statuses by name, and the filling in of a caller's aotc_error. */
#include "error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *const status_names[] = {
    [AOTC_OK] = "OK",
    [AOTC_ERROR_IO] = "IO",
    [AOTC_ERROR_FORMAT] = "FORMAT",
    [AOTC_ERROR_VERSION] = "VERSION",
    [AOTC_ERROR_LIMIT] = "LIMIT",
    [AOTC_ERROR_CHECKSUM] = "CHECKSUM",
    [AOTC_ERROR_SIGNATURE] = "SIGNATURE",
    [AOTC_ERROR_NOT_FOUND] = "NOT_FOUND",
    [AOTC_ERROR_ARCH] = "ARCH",
    [AOTC_ERROR_DRIVER] = "DRIVER",
    [AOTC_ERROR_ARG] = "ARG",
    [AOTC_ERROR_STATE] = "STATE",
    [AOTC_ERROR_CAPTURE] = "CAPTURE",
    [AOTC_ERROR_FORKED] = "FORKED",
    [AOTC_ERROR_NOMEM] = "NOMEM",
    [AOTC_ERROR_CUDA] = "CUDA",
    [AOTC_ERROR_UNSUPPORTED] = "UNSUPPORTED",
};

const char *aotc_status_name(aotc_status status) {
    const size_t index = (size_t)status;
    return index < sizeof status_names / sizeof *status_names ? status_names[index] : "UNKNOWN";
}

const char *aotci_refused(const char *why) { return why; }

uint32_t aotc_version(void) { return AOTC_VERSION_NUMBER; }

static void text_add(struct aotci_text *text, const char *format, va_list arguments) {
    const size_t used = strlen(text->chars);
    const size_t room = sizeof text->chars - used;
    const int needed = vsnprintf(text->chars + used, room, format, arguments);
    if (needed >= 0 && (size_t)needed >= room) {
        memcpy(text->chars + sizeof text->chars - 4, "...", 4);
    }
}

struct aotci_text aotci_text(const char *format, ...) {
    struct aotci_text text = {""};
    va_list arguments;
    va_start(arguments, format);
    text_add(&text, format, arguments);
    va_end(arguments);
    return text;
}

void aotci_text_add(struct aotci_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text_add(text, format, arguments);
    va_end(arguments);
}

bool aotci_is_struct(const void *given, uint32_t struct_size, size_t known_bytes) {
    const unsigned char *bytes = given;
    for (size_t i = known_bytes; i < struct_size; ++i) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return struct_size >= known_bytes;
}

static void copy(char *target, size_t size_bytes, const char *source) {
    (void)snprintf(target, size_bytes, "%s", source == NULL ? "" : source);
}

/* Append to the message, truncated at its end. */
__attribute__((format(printf, 2, 3))) static void say(aotc_error *error, const char *format, ...) {
    const size_t used = strlen(error->message);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->message + used, sizeof error->message - used, format, arguments);
    va_end(arguments);
}

/* Replace characters that control a terminal or begin a line by question marks: names come from
 * untrusted files. Controls are 00 to 1F, 7F, and in UTF-8 C2 80 to C2 9F. */
static void make_printable(char *text) {
    unsigned char *bytes = (unsigned char *)text;
    for (size_t i = 0; bytes[i] != '\0'; ++i) {
        if (bytes[i] < 0x20 || bytes[i] == 0x7F) {
            bytes[i] = '?';
        } else if (bytes[i] == 0xC2 && bytes[i + 1] >= 0x80 && bytes[i + 1] < 0xA0) {
            bytes[i] = bytes[i + 1] = '?';
        }
    }
}

static void compose_message(aotc_error *error) {
    if (error->file[0] != '\0') {
        say(error, "%s: ", error->file);
    }
    if (error->kernel[0] != '\0') {
        say(error, "kernel '%s': ", error->kernel);
    }
    say(error, "%s",
        error->field[0] != '\0' ? error->field : aotc_status_name((aotc_status)error->status));
    if (error->expected[0] != '\0') {
        say(error, ": expected %s", error->expected);
    }
    if (error->got[0] != '\0') {
        say(error, "%s%s", error->expected[0] != '\0' ? ", got " : ": ", error->got);
    }
    if (error->remedy[0] != '\0') {
        say(error, "; %s", error->remedy);
    }
    make_printable(error->message);
}

aotc_status aotci_fail(aotc_error *error, aotc_status status, const struct aotci_detail *detail) {
    /* A struct smaller than the first version's cannot be written; the status must suffice. */
    if (error == NULL || error->struct_size < sizeof(aotc_error)) {
        return status;
    }
    error->status = (int32_t)status;
    error->cuda = detail->cuda;
    error->os_error = detail->os_error;
    copy(error->file, sizeof error->file, detail->file);
    copy(error->kernel, sizeof error->kernel, detail->kernel);
    copy(error->field, sizeof error->field, detail->field);
    copy(error->expected, sizeof error->expected, detail->expected);
    copy(error->got, sizeof error->got, detail->got);
    copy(error->remedy, sizeof error->remedy, detail->remedy);
    error->message[0] = '\0';
    compose_message(error);
    return status;
}
