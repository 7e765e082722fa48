/* _native_tuned.c: what an autotuner chose for the arguments of launches.
 *
 * Arguments are like others if the values of the key, dtypes of tensors and types of all else are the same.
 */
#include "_native_tuned.h"

#include <string.h>

enum { MAX_ENTRIES = 16 };

/* What one argument is compared by. */
struct part {
    enum part_kind {
        BY_DTYPE,        /* of a tensor whose type has a table of functions that say it, as a number */
        BY_DTYPE_OBJECT, /* of other tensors */
        BY_KEY,          /* its value: the autotuner's key has it */
        BY_TYPE,
    } kind;
    uint32_t dtype;
    PyObject *object; /* borrowed from the entry */
};

/* Read a tensor whose type has a table of functions for it: reading an attribute takes longer. False, and no lanes, if it
 * is none. */
static bool read_quickly(const struct native_tuned *self, PyObject *object,
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

static uint32_t dtype_number(const struct dl_tensor *tensor) {
    return (uint32_t)tensor->code << 24 | (uint32_t)tensor->bits << 16 | tensor->lanes;
}

/* The dtype of an argument, a new reference; NULL without an error if it has none. */
static PyObject *dtype_of(const struct native_tuned *self, PyObject *object) {
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

/* What an argument is compared by, a new reference. */
static PyObject *part_of(const struct native_tuned *self, uint32_t i, PyObject *object,
                         struct part *part) {
    struct known_tensor known;
    PyObject *dtype = NULL;
    part->dtype = 0;
    /* A tensor in the key is compared by its dtype alone: it shall not be kept. */
    if (read_quickly(self, object, &known)) {
        part->kind = BY_DTYPE;
        part->dtype = dtype_number(&known.tensor);
        part->object = Py_NewRef(Py_None);
    } else if ((dtype = dtype_of(self, object)) != NULL) {
        part->kind = BY_DTYPE_OBJECT;
        part->object = dtype;
    } else if (PyTuple_GET_ITEM(self->keys, i) == Py_True) {
        part->kind = BY_KEY;
        part->object = Py_NewRef(object);
    } else {
        part->kind = BY_TYPE;
        part->object = Py_NewRef((PyObject *)Py_TYPE(object));
    }
    return part->object;
}

static bool is_like(const struct native_tuned *self, PyObject *entry, PyObject *const *objects,
                    struct known_tensor *known, bool *are_known) {
    const struct part *part = native_entry_array(entry, ENTRY_PARTS);
    PyTypeObject *last = NULL; /* of the tensor before, mostly that of all */
    const struct dl_exchange *exchange = NULL;
    *are_known = true;
    for (uint32_t i = 0; i < self->launcher->param_count; ++i, ++part, ++known) {
        PyObject *object = objects[i];
        if (part->kind == BY_DTYPE && Py_TYPE(object) == last) {
            known->exchange = exchange;
            if (exchange->tensor_from_object(object, &known->tensor) != 0) {
                PyErr_Clear();
                return false;
            }
            if (dtype_number(&known->tensor) != part->dtype) {
                return false;
            }
            continue;
        }
        known->tensor.lanes = 0;
        if (part->kind == BY_DTYPE) {
            if (!read_quickly(self, object, known) ||
                dtype_number(&known->tensor) != part->dtype) {
                return false;
            }
            last = Py_TYPE(object);
            exchange = known->exchange;
        } else if (part->kind == BY_DTYPE_OBJECT) {
            PyObject *dtype = dtype_of(self, object);
            Py_XDECREF(dtype); /* compared by identity alone */
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

PyObject *native_tuned_find(const struct native_tuned *self, PyObject *const *objects,
                              struct known_tensor *known, bool *are_known) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->entries); ++i) {
        PyObject *entry = Py_NewRef(PyList_GET_ITEM(self->entries, i));
        if (is_like(self, entry, objects, known, are_known)) {
            return entry;
        }
        Py_DECREF(entry);
    }
    return NULL;
}

void native_tuned_add(struct native_tuned *self, PyObject *const *objects, PyObject *config,
                        PyObject *settings) {
    const Py_ssize_t count = self->launcher->param_count;
    uint32_t numbers[MAX_NAMES];
    PyObject *held = PyTuple_New(count);
    PyObject *parts = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(struct part));
    for (Py_ssize_t i = 0; held != NULL && parts != NULL && i < count; ++i) {
        struct part *part = (struct part *)(void *)PyBytes_AS_STRING(parts) + i;
        PyTuple_SET_ITEM(held, i, part_of(self, (uint32_t)i, objects[i], part));
    }
    PyObject *values = PyTuple_New(PyDict_GET_SIZE(settings));
    PyObject *name = NULL;
    PyObject *value = NULL;
    Py_ssize_t position = 0;
    bool is_known = held != NULL && parts != NULL && values != NULL &&
                    PyDict_GET_SIZE(settings) <= MAX_NAMES;
    for (Py_ssize_t i = 0; is_known && PyDict_Next(settings, &position, &name, &value); ++i) {
        const int64_t at = PyUnicode_Check(name) ? native_launcher_find(self->launcher, name) : -1;
        is_known = at >= 0;
        numbers[i] = (uint32_t)at;
        PyTuple_SET_ITEM(values, i, Py_NewRef(value));
    }
    const Py_ssize_t place_bytes = PyDict_GET_SIZE(settings) * (Py_ssize_t)sizeof *numbers;
    PyObject *places = is_known ? PyBytes_FromStringAndSize((const char *)numbers, place_bytes) : NULL;
    PyObject *kept = places != NULL ? PyDict_Copy(settings) : NULL;
    PyObject *entry =
        kept == NULL ? NULL : PyTuple_Pack(ENTRY_FIELDS, held, parts, places, values, kept, config);
    if (entry != NULL && PyList_Insert(self->entries, 0, entry) == 0 &&
        PyList_GET_SIZE(self->entries) > MAX_ENTRIES) {
        (void)PyList_SetSlice(self->entries, MAX_ENTRIES, PyList_GET_SIZE(self->entries), NULL);
    }
    PyErr_Clear();
    Py_XDECREF(held);
    Py_XDECREF(places);
    Py_XDECREF(values);
    Py_XDECREF(parts);
    Py_XDECREF(kept);
    Py_XDECREF(entry);
}

int native_tuned_clear(struct native_tuned *self) {
    return PyList_SetSlice(self->entries, 0, PyList_GET_SIZE(self->entries), NULL);
}

int native_tuned_begin(struct native_tuned *self, struct native_launcher *launcher,
                         PyObject *keys) {
    self->state = launcher->state;
    self->launcher = launcher;
    self->entries = PyList_New(0);
    self->dtype = PyUnicode_InternFromString("dtype");
    self->keys = PyTuple_New(launcher->param_count);
    bool is_made = self->entries != NULL && self->dtype != NULL && self->keys != NULL;
    for (uint32_t i = 0; is_made && i < launcher->param_count; ++i) {
        const int is_key = PySet_Contains(keys, PyTuple_GET_ITEM(launcher->names, i));
        is_made = is_key >= 0;
        PyTuple_SET_ITEM(self->keys, i, PyBool_FromLong(is_key == 1));
    }
    return is_made ? 0 : -1;
}

void native_tuned_end(struct native_tuned *self) {
    Py_XDECREF(self->keys);
    Py_XDECREF(self->entries);
    Py_XDECREF(self->dtype);
}
