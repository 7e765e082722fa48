/* _native_tuned.h: what an autotuner chose for the arguments of launches. */
#ifndef AOTC_NATIVE_TUNED_H
#define AOTC_NATIVE_TUNED_H

#include "_native_launcher.h"

/* Of an entry: what arguments are compared by, and the same as an array; places (numbers) and values of what is set,
 * the config. */
enum { ENTRY_KEPT, ENTRY_PARTS, ENTRY_PLACES, ENTRY_VALUES, ENTRY_SETTINGS, ENTRY_CONFIG, ENTRY_FIELDS };

/* What was chosen, by what arguments are compared by. */
struct native_tuned {
    struct native_state *state;
    struct native_launcher *launcher; /* borrowed */
    PyObject *keys;                   /* of parameters: whether the autotuner's key has it */
    PyObject *entries;                /* a list, the last one that was added first */
    PyObject *dtype;                  /* the attribute's name */
};

/* Make an empty table for a launcher that outlives it; `keys` are names. 0 or -1. */
int native_tuned_begin(struct native_tuned *self, struct native_launcher *launcher,
                         PyObject *keys);
void native_tuned_end(struct native_tuned *self);

/* Forget what was chosen. 0 or -1. */
int native_tuned_clear(struct native_tuned *self);

/* The array in a field of an entry. */
static inline const void *native_entry_array(PyObject *entry, Py_ssize_t field) {
    return PyBytes_AS_STRING(PyTuple_GET_ITEM(entry, field));
}

/* The entry for arguments like these, a new reference; NULL without an error if there is none. Tensors that were read
 * for it are `known`; unless `are_known`, code of somebody's ran since. */
PyObject *native_tuned_find(const struct native_tuned *self, PyObject *const *objects,
                              struct known_tensor *known, bool *are_known);

/* Keep what was chosen for arguments; without an error if it cannot be kept. */
void native_tuned_add(struct native_tuned *self, PyObject *const *objects, PyObject *config,
                        PyObject *settings);

#endif
