/* _native_tuned.c: an autotuner's choices for the arguments of launches.
 *
 * Arguments are alike if they have the same values in the key, dtypes of tensors and types
 * otherwise.
 */
#include "_native_tuned.h"

#include <string.h>

enum { MAX_ENTRIES = 16 };

/* The compared part of an argument, a new reference. */
static PyObject *part_of(const struct native_tuned *self, uint32_t i, PyObject *object,
                         struct native_part *part) {
    struct known_tensor known;
    PyObject *dtype = NULL;
    part->dtype = 0;
    /* A tensor in the key is compared only by its dtype: the table must not keep it alive. */
    if (native_read_quickly(self, object, &known)) {
        part->kind = BY_DTYPE;
        part->dtype = native_dtype_number(&known.tensor);
        part->object = Py_NewRef(Py_None);
    } else if ((dtype = native_dtype_of(self, object)) != NULL) {
        part->kind = BY_DTYPE_OBJECT;
        part->object = dtype;
    } else if (PyTuple_GET_ITEM(self->keys, i) == Py_True &&
               !native_is_memory(self->state, object)) {
        part->kind = BY_KEY;
        part->object = Py_NewRef(object);
    } else {
        part->kind = BY_TYPE;
        part->object = Py_NewRef((PyObject *)Py_TYPE(object));
    }
    return part->object;
}

void native_tuned_add(struct native_tuned *self, PyObject *const *objects, PyObject *config,
                        PyObject *settings) {
    const Py_ssize_t count = self->launcher->param_count;
    uint32_t numbers[MAX_NAMES];
    PyObject *held = PyTuple_New(count);
    PyObject *parts = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(struct native_part));
    for (Py_ssize_t i = 0; held != NULL && parts != NULL && i < count; ++i) {
        struct native_part *part = (struct native_part *)(void *)PyBytes_AS_STRING(parts) + i;
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
