/* _native_tuned.h: an autotuner's choices for the arguments of launches.
 *
 * Code on the path of every launch is here, to be inlined.
 */
#ifndef AOTC_NATIVE_TUNED_H
#define AOTC_NATIVE_TUNED_H

#include "_native_launcher.h"

/* Of an entry: the compared parts of arguments, and the same as an array; indices (numbers) and
 * values of the settings, the config. */
enum { ENTRY_KEPT, ENTRY_PARTS, ENTRY_PLACES, ENTRY_VALUES, ENTRY_SETTINGS, ENTRY_CONFIG, ENTRY_FIELDS };

/* The number of tensors kept for the launch: more would cost pages of the stack for rare cases. */
enum { MAX_KNOWN_TENSORS = 32 };

/* Choices by the compared parts of arguments. */
struct native_tuned {
    struct native_state *state;
    struct native_launcher *launcher; /* borrowed */
    PyObject *keys;                   /* of parameters: whether they are in the autotuner's key */
    PyObject *entries;                /* a list, the newest first */
    PyObject *dtype;                  /* the attribute's name */
};

/* Make an empty table for a launcher that outlives it; `keys` are names. 0 or -1. */
int native_tuned_begin(struct native_tuned *self, struct native_launcher *launcher,
                         PyObject *keys);
void native_tuned_end(struct native_tuned *self);

/* Clear the choices. 0 or -1. */
int native_tuned_clear(struct native_tuned *self);

/* The array in a field of an entry. */
static inline const void *native_entry_array(PyObject *entry, Py_ssize_t field) {
    return PyBytes_AS_STRING(PyTuple_GET_ITEM(entry, field));
}

/* Store the choice for arguments, if possible; sets no exception. */
void native_tuned_add(struct native_tuned *self, PyObject *const *objects, PyObject *config,
                        PyObject *settings);

/* ---- the path of every launch ---------------------------------------------------------------- */

/* The compared part of one argument. */
struct native_part {
    enum native_part_kind {
        BY_DTYPE,        /* of a tensor with an exchange table, as a number */
        BY_DTYPE_OBJECT, /* of other tensors */
        BY_KEY,          /* its value, in the autotuner's key */
        BY_TYPE,
    } kind;
    uint32_t dtype;
    PyObject *object; /* borrowed from the entry */
};

/* Read a tensor through its type's exchange table, which is faster than an attribute. False, and no
 * lanes, without a table. */
static inline bool native_read_quickly(const struct native_tuned *self, PyObject *object,
                                       struct known_tensor *known) {
    known->tensor.lanes = 0;
    if (native_is_plain(object)) {
        return false;
    }
    const struct tensor_type *type = native_tensor_type(self->state, Py_TYPE(object));
    known->exchange = type->exchange;
    if (type->protocol == PROTOCOL_EXCHANGE &&
        known->exchange->tensor_from_object(object, &known->tensor) != 0) {
        PyErr_Clear();
        known->tensor.lanes = 0;
    }
    return known->tensor.lanes != 0;
}

static inline uint32_t native_dtype_number(const struct dl_tensor *tensor) {
    return (uint32_t)tensor->code << 24 | (uint32_t)tensor->bits << 16 | tensor->lanes;
}

/* The dtype of an argument, a new reference; NULL without an error if it has none. */
static inline PyObject *native_dtype_of(const struct native_tuned *self, PyObject *object) {
    if (PyLong_Check(object) || PyFloat_CheckExact(object) || object == Py_None ||
        PyUnicode_Check(object)) {
        return NULL;
    }
    PyObject *dtype = PyObject_GetAttr(object, self->dtype);
    if (dtype == NULL) {
        PyErr_Clear();
    }
    return dtype;
}

static inline bool native_is_like(const struct native_tuned *self, PyObject *entry,
                                  PyObject *const *objects, struct known_tensor *known,
                                  bool *are_known) {
    const struct native_part *part = native_entry_array(entry, ENTRY_PARTS);
    PyTypeObject *last = NULL; /* of the previous tensor, mostly the same for all */
    const struct dl_exchange *exchange = NULL;
    const uint32_t count = self->launcher->param_count;
    const size_t step = count <= MAX_KNOWN_TENSORS; /* with more, none is kept */
    *are_known = step != 0;
    for (uint32_t i = 0; i < count; ++i, ++part, known += step) {
        PyObject *object = objects[i];
        if (part->kind == BY_DTYPE && Py_TYPE(object) == last) {
            known->exchange = exchange;
            if (exchange->tensor_from_object(object, &known->tensor) != 0) {
                PyErr_Clear();
                return false;
            }
            if (native_dtype_number(&known->tensor) != part->dtype) {
                return false;
            }
            continue;
        }
        known->tensor.lanes = 0;
        if (part->kind == BY_DTYPE) {
            if (!native_read_quickly(self, object, known) ||
                native_dtype_number(&known->tensor) != part->dtype) {
                return false;
            }
            last = Py_TYPE(object);
            exchange = known->exchange;
        } else if (part->kind == BY_DTYPE_OBJECT) {
            PyObject *dtype = native_dtype_of(self, object);
            Py_XDECREF(dtype); /* compared only by identity */
            *are_known = false;
            if (dtype != part->object) {
                return false;
            }
        } else if (part->kind == BY_TYPE ? (PyObject *)Py_TYPE(object) != part->object
                                         : !native_is_same(object, part->object)) {
            return false;
        }
    }
    return true;
}

/* The entry for like arguments, a new reference; NULL without an error if there is none. `known`
 * has the tensors read for it, MAX_KNOWN_TENSORS; unless `are_known`, foreign code ran since. */
static inline PyObject *native_tuned_find(const struct native_tuned *self,
                                          PyObject *const *objects,
                                          struct known_tensor *known, bool *are_known) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->entries); ++i) {
        PyObject *entry = Py_NewRef(PyList_GET_ITEM(self->entries, i));
        if (native_is_like(self, entry, objects, known, are_known)) {
            return entry;
        }
        Py_DECREF(entry);
    }
    return NULL;
}

#endif
