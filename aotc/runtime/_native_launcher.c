/* _native_launcher.c: launches as Triton programs write them, function[grid](*args, **constants).
 *
 *   Launcher  the parameters of a function, and its specializations
 *   Launch    the callable launcher[grid]
 *
 * A launch's arguments are bound to the function's parameters as Python would. Values of constants,
 * types of the other arguments and options are the key of a specialization, which `_find` of the
 * class derived from Launcher looks up once. The key of the last launch is compared first, by
 * identity and without a dictionary lookup.
 *
 * Arguments belong to the caller until the call is over, defaults to the launcher.
 */
#include "_native_launcher.h"

#include <string.h>
#include <structmember.h>

enum { MAX_KNOWN = 4096 };

/* The part of an argument in the key of a launch. */
enum key_kind {
    BY_VALUE, /* constants and options */
    BY_TYPE,
    BY_FIXED, /* whether it is a value of some kernel; memory and other values by type */
};

/* ---- the launcher --------------------------------------------------------------------------- */

/* Parameters, or options, and their arguments, as a new dictionary: a copy of one with the names
 * need not grow. */
static PyObject *bound_to(const struct native_launcher *self, PyObject *const *objects,
                          bool are_options) {
    const uint32_t first = are_options ? self->param_count : 0;
    const uint32_t end = are_options ? self->name_count : self->param_count;
    PyObject *bound = are_options ? PyDict_New() : PyDict_Copy(self->unbound);
    for (uint32_t i = first; bound != NULL && i < end; ++i) {
        if (PyDict_SetItem(bound, PyTuple_GET_ITEM(self->names, i), objects[i]) < 0) {
            Py_CLEAR(bound);
        }
    }
    return bound;
}

/* Request candidates from the derived class, after a launch's error (or NULL). */
static PyObject *find(struct native_launcher *self, PyObject *const *objects, PyObject *error,
                      bool is_last) {
    PyObject *bound = bound_to(self, objects, false);
    PyObject *options = bound == NULL ? NULL : bound_to(self, objects, true);
    PyObject *answer = NULL;
    if (options != NULL) {
        answer = error == NULL
                     ? PyObject_CallMethod((PyObject *)self, "_find", "OO", bound, options)
                     : PyObject_CallMethod((PyObject *)self, is_last ? "_refuse" : "_find_again",
                                           "OOO", error, bound, options);
    }
    PyObject *capsule =
        answer == NULL ? NULL : native_specialization_new(self->state, self->name_count, answer);
    Py_XDECREF(bound);
    Py_XDECREF(options);
    Py_XDECREF(answer);
    return capsule;
}

bool native_is_plain(PyObject *object) {
    return PyLong_CheckExact(object) || PyUnicode_CheckExact(object) ||
           PyFloat_CheckExact(object) || PyBool_Check(object) || object == Py_None;
}

bool native_is_same(PyObject *a, PyObject *b) {
    return a == b ||
           (Py_TYPE(a) == Py_TYPE(b) && native_is_plain(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1);
}

/* The key part of a number, a string or None, if some kernels were built for fixed values: the
 * value, if it is one of these; else the type. Borrowed; runs no foreign code. */
static PyObject *fixed_part(const struct native_launcher *self, uint32_t i, PyObject *object) {
    PyObject *values = PyTuple_GET_ITEM(self->fixed, i);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(values); ++k) {
        if (native_is_same(object, PyTuple_GET_ITEM(values, k))) {
            return PyTuple_GET_ITEM(values, k);
        }
    }
    return (PyObject *)Py_TYPE(object);
}

/* The key part of an argument: the value of a constant, or of a fixed value of some kernel; else
 * the type. A key outlives the launch, so memory is never part of it: kernels differ by its dtype
 * and alignment, which a specialization checks, and are built for its absence. Borrowed. */
static PyObject *key_part(const struct native_launcher *self, uint32_t i, PyObject *object) {
    if (self->kinds[i] == BY_VALUE) {
        return object;
    }
    if (self->kinds[i] == BY_TYPE) {
        return (PyObject *)Py_TYPE(object);
    }
    if (!native_is_plain(object) && !PyTuple_Check(object) && /* a tuple may hold memory */
        !native_is_memory(self->state, object)) {
        return object; /* a constant of another type may compare equal */
    }
    return fixed_part(self, i, object);
}

/* Return whether a part of the last key is an argument's; runs no foreign code. */
static bool is_part(const struct native_launcher *self, uint32_t i, PyObject *object,
                    PyObject *part) {
    if (self->kinds[i] == BY_VALUE) {
        return native_is_same(object, part);
    }
    if (self->kinds[i] == BY_FIXED && native_is_plain(object)) {
        return fixed_part(self, i, object) == part;
    }
    /* For other objects than numbers, strings and None, only memory has its type as its part. */
    return (PyObject *)Py_TYPE(object) == part || (self->kinds[i] == BY_FIXED && object == part);
}

/* The key of a launch: a part for each argument, and options; then types, since 1, 1.0 and True are
 * equal. */
static PyObject *make_key(const struct native_launcher *self, PyObject *const *objects) {
    PyObject *key = PyTuple_New((Py_ssize_t)self->name_count + self->param_count);
    for (uint32_t i = 0; key != NULL && i < self->name_count; ++i) {
        PyTuple_SET_ITEM(key, i, Py_NewRef(key_part(self, i, objects[i])));
        if (i < self->param_count) {
            PyObject *type = (PyObject *)Py_TYPE(objects[i]);
            PyTuple_SET_ITEM(key, (Py_ssize_t)self->name_count + i, Py_NewRef(type));
        }
    }
    return key;
}

static bool is_last_key(const struct native_launcher *self, PyObject *const *objects) {
    if (self->last_key == NULL) {
        return false;
    }
    /* Options are mostly the same objects: the defaults. */
    PyObject *const *options = &PyTuple_GET_ITEM(self->last_key, self->param_count);
    const bool has_options = memcmp(objects + self->param_count, options,
                                    (self->name_count - self->param_count) * sizeof *objects) == 0;
    const uint32_t end = has_options ? self->param_count : self->name_count;
    for (uint32_t i = 0; i < end; ++i) {
        if (!is_part(self, i, objects[i], PyTuple_GET_ITEM(self->last_key, i))) {
            return false;
        }
    }
    return true;
}

/* Return the capsule of a launch's specialization, as a new reference. */
static PyObject *specialize(struct native_launcher *self, PyObject *const *objects) {
    PyObject *key = make_key(self, objects);
    PyObject *found = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(self->known, key));
    /* A constant that may change, such as a list, cannot be in a key. */
    const bool is_kept = !PyErr_Occurred();
    if (key == NULL || (!is_kept && !PyErr_ExceptionMatches(PyExc_TypeError))) {
        Py_XDECREF(key);
        return NULL;
    }
    PyErr_Clear();
    if (found == NULL) {
        found = find(self, objects, NULL, false);
        if (found != NULL && is_kept) {
            if (PyDict_GET_SIZE(self->known) >= MAX_KNOWN) {
                PyDict_Clear(self->known);
            }
            if (PyDict_SetItem(self->known, key, found) < 0) {
                Py_CLEAR(found);
            }
        }
    }
    if (found != NULL && is_kept) {
        PyObject *last_key = self->last_key;
        PyObject *last = self->last;
        self->last_key = Py_NewRef(key);
        self->last = Py_NewRef(found);
        Py_XDECREF(last_key); /* may run code, and both are changed by then */
        Py_XDECREF(last);
    }
    Py_DECREF(key);
    return found;
}

/* Launch; if no candidate accepts the arguments, find further ones, and launch these. */
static int launch_bound(struct native_launcher *self, PyObject *const *objects,
                        const struct known_tensor *known, PyObject *grid) {
    const bool is_last = is_last_key(self, objects);
    PyObject *capsule = is_last ? Py_NewRef(self->last) : specialize(self, objects);
    for (int attempt = 0; capsule != NULL; ++attempt) {
        const int result = native_launch_specialized(
            capsule, objects, is_last && attempt == 0 ? known : NULL, grid, self->refusals);
        Py_DECREF(capsule);
        if (result == 0 || !PyErr_ExceptionMatches(self->refusals)) {
            return result;
        }
        PyObject *error = native_take_exception();
        capsule = find(self, objects, error, attempt > 0);
        Py_DECREF(error);
    }
    return -1;
}

/* ---- a call --------------------------------------------------------------------------------- */

int64_t native_launcher_find(const struct native_launcher *self, PyObject *name) {
    for (uint32_t i = 0; i < self->name_count; ++i) {
        if (PyTuple_GET_ITEM(self->names, i) == name) {
            return i;
        }
    }
    for (uint32_t i = 0; i < self->name_count; ++i) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(self->names, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Find the indices of a call's names. 0 or -1. */
static int place_keywords(struct native_launcher *self, PyObject *keywords) {
    if (PyTuple_GET_SIZE(keywords) > (Py_ssize_t)self->name_count) {
        PyErr_SetString(PyExc_TypeError, "more names than there are parameters and options");
        return -1;
    }
    Py_CLEAR(self->last_keywords);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i) {
        PyObject *name = PyTuple_GET_ITEM(keywords, i);
        const int64_t at = native_launcher_find(self, name);
        if (at < 0) { /* as in Triton */
            PyErr_Format(PyExc_KeyError, "Keyword argument %U was specified but unrecognised",
                         name);
            return -1;
        }
        self->keyword_places[i] = (uint16_t)at;
    }
    self->last_keywords = Py_NewRef(keywords);
    return 0;
}

int native_launcher_bind(struct native_launcher *self, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords, PyObject **objects) {
    const Py_ssize_t keyword_count = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    if (count > (Py_ssize_t)self->param_count) {
        PyErr_Format(PyExc_TypeError, "expected at most %u arguments, got %zd",
                     (unsigned)self->param_count, count);
        return -1;
    }
    memcpy(objects, args, (size_t)count * sizeof *objects);
    memcpy(objects + count, self->unpassed + count,
           (self->name_count - (size_t)count) * sizeof *objects);
    if (keyword_count != 0 && keywords != self->last_keywords &&
        place_keywords(self, keywords) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < keyword_count; ++i) {
        if (self->keyword_places[i] < count) { /* a call names nothing twice */
            PyErr_Format(PyExc_TypeError, "got two values for argument '%U'",
                         PyTuple_GET_ITEM(keywords, i));
            return -1;
        }
        objects[self->keyword_places[i]] = args[count + i];
    }
    return 0;
}

static int call_hooks(const struct native_launcher *self, PyObject *const *args, size_t count,
                      PyObject *keywords) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->hooks); ++i) {
        PyObject *hook = Py_NewRef(PyList_GET_ITEM(self->hooks, i));
        PyObject *result = PyObject_Vectorcall(hook, args, count, keywords);
        Py_DECREF(hook);
        Py_XDECREF(result);
        if (result == NULL) {
            return -1;
        }
    }
    return 0;
}

int native_launcher_launch(struct native_launcher *self, PyObject *const *objects,
                           const struct known_tensor *known, PyObject *grid) {
    if (PyTuple_CheckExact(grid) || !PyCallable_Check(grid)) {
        return launch_bound(self, objects, known, grid);
    }
    PyObject *meta = bound_to(self, objects, false);
    PyObject *found = meta == NULL ? NULL : PyObject_CallOneArg(grid, meta);
    const int result = found == NULL ? -1 : launch_bound(self, objects, NULL, found);
    Py_XDECREF(meta);
    Py_XDECREF(found);
    return result;
}

/* launcher[grid] */
struct native_grid_launch {
    PyObject_HEAD vectorcallfunc vectorcall;
    struct native_launcher *launcher; /* owned */
    PyObject *grid;
};

static PyObject *call_launch(PyObject *object, PyObject *const *args, size_t flagged_count,
                             PyObject *keywords) {
    struct native_launcher *self = ((struct native_grid_launch *)object)->launcher;
    PyObject *grid = Py_NewRef(((struct native_grid_launch *)object)->grid);
    const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
    PyObject *objects[MAX_NAMES];
    int result = call_hooks(self, args, (size_t)count, keywords);
    if (result == 0) {
        result = native_launcher_bind(self, args, count, keywords, objects);
    }
    if (result == 0) {
        result = native_launcher_launch(self, objects, NULL, grid);
    }
    Py_DECREF(grid);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *launcher_subscript(PyObject *object, PyObject *grid) {
    struct native_launcher *self = (struct native_launcher *)object;
    struct native_state *state = self->state;
    struct native_grid_launch *launch = (struct native_grid_launch *)native_make_spare(
        &state->spare_grid_launch, state->grid_launch_type);
    if (launch != NULL) {
        launch->vectorcall = call_launch;
        launch->launcher = (struct native_launcher *)Py_NewRef(object);
        launch->grid = Py_NewRef(grid);
    }
    return (PyObject *)launch;
}

PyObject *native_make_spare(PyObject **spare, PyTypeObject *type) {
    PyObject *object = *spare;
    if (object == NULL) {
        return type->tp_alloc(type, 0);
    }
    *spare = NULL;
    (void)PyObject_Init(object, type);
    PyObject_GC_Track(object);
    return object;
}

void native_let_spare(PyObject **spare, PyObject *object, bool is_kept) {
    if (is_kept && *spare == NULL) {
        *spare = object;
    } else {
        PyObject_GC_Del(object);
    }
}

void native_free_spare(PyObject **spare) {
    if (*spare != NULL) {
        PyObject_GC_Del(*spare);
        *spare = NULL;
    }
}

/* ---- the objects ---------------------------------------------------------------------------- */

static int grid_launch_traverse(PyObject *object, visitproc visit, void *arg) {
    struct native_grid_launch *self = (struct native_grid_launch *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->launcher);
    Py_VISIT(self->grid);
    return 0;
}

static void grid_launch_dealloc(PyObject *object) {
    struct native_grid_launch *self = (struct native_grid_launch *)object;
    PyTypeObject *type = Py_TYPE(object);
    struct native_state *state = self->launcher == NULL ? NULL : self->launcher->state;
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->launcher);
    Py_CLEAR(self->grid);
    native_let_spare(state == NULL ? NULL : &state->spare_grid_launch, object,
                     state != NULL && state->grid_launch_type != NULL);
    Py_DECREF(type);
}

static PyMemberDef grid_launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct native_grid_launch, vectorcall), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot grid_launch_slots[] = {
    {Py_tp_doc, "What launches a function with a grid."},
    {Py_tp_dealloc, grid_launch_dealloc},
    {Py_tp_traverse, grid_launch_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, grid_launch_members},
    {0, NULL},
};

PyType_Spec native_grid_launch_spec = {
    .name = "aotc.runtime._native.Launch",
    .basicsize = sizeof(struct native_grid_launch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = grid_launch_slots,
};

static int read_names(struct native_launcher *self, PyObject *names, PyObject *options) {
    PyObject *listed = PySequence_Concat(names, options);
    const Py_ssize_t count = listed == NULL ? 0 : PyTuple_GET_SIZE(listed);
    self->names = listed == NULL ? NULL : PyTuple_New(count);
    if (self->names == NULL) {
        Py_XDECREF(listed);
        return -1;
    }
    self->param_count = (uint32_t)PyTuple_GET_SIZE(names);
    self->name_count = (uint32_t)count;
    bool is_valid =
        count <= MAX_NAMES && PyTuple_GET_SIZE(self->defaults) == PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; is_valid && i < count; ++i) {
        PyObject *name = Py_NewRef(PyTuple_GET_ITEM(listed, i));
        is_valid = PyUnicode_CheckExact(name);
        if (is_valid) {
            PyUnicode_InternInPlace(&name); /* `bind` compares interned names */
        }
        PyTuple_SET_ITEM(self->names, i, name);
    }
    Py_DECREF(listed);
    if (!is_valid) {
        PyErr_SetString(PyExc_ValueError, "a launcher needs names and a default for each");
        return -1;
    }
    return 0;
}

static int read_constants(struct native_launcher *self, PyObject *constants, PyObject *fixed) {
    self->kinds = PyMem_Calloc((size_t)self->name_count + 1, sizeof *self->kinds); /* BY_VALUE */
    self->known = PyDict_New();
    if (self->kinds == NULL) {
        PyErr_NoMemory();
    }
    self->fixed = PyTuple_New(self->param_count);
    self->unbound = PyDict_New();
    for (uint32_t i = 0; i < self->param_count && !PyErr_Occurred(); ++i) {
        PyObject *name = PyTuple_GET_ITEM(self->names, i);
        PyObject *values = PyDict_GetItemWithError(fixed, name);
        PyTuple_SET_ITEM(self->fixed, i, Py_NewRef(values == NULL ? Py_None : values));
        if (PySet_Contains(constants, name) == 0) {
            self->kinds[i] = values == NULL ? BY_TYPE : BY_FIXED;
        }
        (void)PyDict_SetItem(self->unbound, name, Py_None); /* a failure is checked below */
        if (values != NULL && !PyTuple_Check(values)) {
            PyErr_SetString(PyExc_TypeError, "fixed values are tuples");
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int make_places(struct native_launcher *self) {
    self->unpassed = PyMem_Calloc((size_t)self->name_count + 1, sizeof(PyObject *));
    self->keyword_places = PyMem_Calloc((size_t)self->name_count + 1, sizeof *self->keyword_places);
    if (self->unpassed == NULL || self->keyword_places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < self->name_count; ++i) {
        self->unpassed[i] = i < self->param_count ? PyTuple_GET_ITEM(self->defaults, i) : Py_None;
    }
    return 0;
}

/* Launcher(names, defaults, constants, fixed, options, hooks, refusals) */
static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    PyObject *names = NULL;
    PyObject *defaults = NULL;
    PyObject *constants = NULL;
    PyObject *fixed = NULL;
    PyObject *options = NULL;
    PyObject *hooks = NULL;
    PyObject *refusals = NULL;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!", &PyTuple_Type, &names, &PyTuple_Type, &defaults,
                          &PyFrozenSet_Type, &constants, &PyDict_Type, &fixed, &PyTuple_Type,
                          &options, &PyList_Type, &hooks, &PyTuple_Type, &refusals)) {
        return NULL;
    }
    struct native_state *state = native_state_of(type);
    struct native_launcher *self =
        state == NULL ? NULL : (struct native_launcher *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = state;
    self->defaults = Py_NewRef(defaults);
    self->hooks = Py_NewRef(hooks);
    self->refusals = Py_NewRef(refusals);
    if (read_names(self, names, options) < 0 || read_constants(self, constants, fixed) < 0 ||
        make_places(self) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int launcher_traverse(PyObject *object, visitproc visit, void *arg) {
    struct native_launcher *self = (struct native_launcher *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->defaults);
    Py_VISIT(self->hooks);
    Py_VISIT(self->refusals);
    Py_VISIT(self->fixed);
    Py_VISIT(self->known);
    Py_VISIT(self->last_key);
    Py_VISIT(self->last);
    return 0;
}

/* A launch may still use names and defaults: they are dropped only with the object. */
static int launcher_clear(PyObject *object) {
    struct native_launcher *self = (struct native_launcher *)object;
    PyDict_Clear(self->known);
    Py_CLEAR(self->last_key);
    Py_CLEAR(self->last);
    return 0;
}

static void launcher_dealloc(PyObject *object) {
    struct native_launcher *self = (struct native_launcher *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->names);
    Py_XDECREF(self->defaults);
    Py_XDECREF(self->hooks);
    Py_XDECREF(self->refusals);
    Py_XDECREF(self->fixed);
    Py_XDECREF(self->known);
    Py_XDECREF(self->unbound);
    Py_XDECREF(self->last_key);
    Py_XDECREF(self->last);
    Py_XDECREF(self->last_keywords);
    PyMem_Free(self->kinds);
    PyMem_Free((void *)self->unpassed);
    PyMem_Free(self->keyword_places);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyType_Slot launcher_slots[] = {
    {Py_tp_doc, "Launches of a function; aotc.triton derives from it what finds kernels."},
    {Py_tp_new, launcher_new},
    {Py_tp_dealloc, launcher_dealloc},
    {Py_tp_traverse, launcher_traverse},
    {Py_tp_clear, launcher_clear},
    {Py_mp_subscript, launcher_subscript},
    {0, NULL},
};

PyType_Spec native_launcher_spec = {
    .name = "aotc.runtime._native.Launcher",
    .basicsize = sizeof(struct native_launcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = launcher_slots,
};
