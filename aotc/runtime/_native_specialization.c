/* _native_specialization.c: the kernels for launches of a function with certain constants, options
 * and types, best first; the first that the loader accepts is launched.
 *
 * The accepted one is cached by facts that distinguish the kernels: dtypes, and whether numbers and
 * addresses are multiples of 16, or 1. They are read from the arguments as converted for the first
 * kernel, so a single kernel costs no more than its launch.
 *
 * A specialization is a capsule: only the kernel tried first changes. It is held while in use,
 * since the caller's code may launch with the same launcher meanwhile.
 */
#include "_native.h"

#include <string.h>

enum { FACT_SLOTS = 16, MULTIPLE = 16 };

/* ---- candidates ----------------------------------------------------------------------------- */

/* A kernel, with the choices and the config of its launches. */
struct candidate {
    struct native_kernel *kernel; /* owned */
    uint16_t *params;             /* the function's parameter for each of the kernel's */
    PyObject *held;               /* owner of the values' borrowed names and strings */
    aotc_value *choices, *config;
    uint32_t choice_count, config_count;
    bool is_alike;      /* arguments converted for the first candidate are valid for this one */
    bool is_alike_wide; /* or for the widest */
};

/* The candidate launched for given facts. */
struct fact_slot {
    bool is_used;
    uint32_t candidate;
    uint16_t facts[LIMIT_PARAMS];
};

struct specialization {
    uint32_t candidate_count, fact_count;
    uint32_t widest; /* of the candidates with the first one's parameters: converts most numbers */
    bool is_wide;    /* the first one refused a number: facts are read from the widest */
    uint16_t *telling; /* parameters of the first candidate whose facts distinguish */
    struct fact_slot *slots;
    struct fact_slot *last; /* the last one found, or the first */
    struct candidate candidates[];
};

static const char capsule_name[] = "aotc specialization";

static void free_specialization(struct specialization *specialization) {
    for (uint32_t i = 0; i < specialization->candidate_count; ++i) {
        struct candidate *candidate = &specialization->candidates[i];
        PyMem_Free(candidate->params);
        PyMem_Free(candidate->choices);
        PyMem_Free(candidate->config);
        Py_XDECREF(candidate->held);
        Py_XDECREF((PyObject *)candidate->kernel);
    }
    PyMem_Free(specialization->telling);
    PyMem_Free(specialization->slots);
    PyMem_Free(specialization);
}

static void destroy(PyObject *capsule) {
    free_specialization(PyCapsule_GetPointer(capsule, capsule_name));
}

/* Read a tuple of indices below a limit. NULL with an exception on failure. */
static uint16_t *read_indices(PyObject *tuple, uint32_t limit) {
    const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    uint16_t *indices = PyMem_Calloc((size_t)count + 1, sizeof *indices);
    if (indices == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        const unsigned long index = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple, i));
        if (index >= limit) {
            PyMem_Free(indices);
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "an index of a parameter is out of range");
            }
            return NULL;
        }
        indices[i] = (uint16_t)index;
    }
    return indices;
}

/* Read choices or a config, from a held dictionary. 0 or -1. */
static int read_values(struct native_kernel *kernel, PyObject *dictionary, const char *what,
                       uint32_t limit, aotc_value **values, uint32_t *count) {
    struct launch launch; /* for messages */
    Py_ssize_t position = 0;
    PyObject *name = NULL;
    PyObject *value = NULL;
    const Py_ssize_t size = PyDict_GET_SIZE(dictionary);
    *values = PyMem_Calloc((size_t)size + 1, sizeof **values);
    if (*values == NULL || size > (Py_ssize_t)limit) {
        PyErr_SetString(*values == NULL ? PyExc_MemoryError : PyExc_ValueError, what);
        return -1;
    }
    native_begin(&launch, kernel);
    while (PyDict_Next(dictionary, &position, &name, &value)) {
        if (native_read_value(&launch, what, name, value, &(*values)[*count]) < 0) {
            return -1;
        }
        *count += 1;
    }
    return 0;
}

/* Read (kernel, params, config, choices). 0 or -1. */
static int read_candidate(struct native_state *state, uint32_t name_count, PyObject *object,
                          struct candidate *candidate) {
    PyObject *kernel = NULL;
    PyObject *params = NULL;
    PyObject *config = NULL;
    PyObject *choices = NULL;
    if (!PyTuple_Check(object) ||
        !PyArg_ParseTuple(object, "O!O!O!O!", state->kernel_type, &kernel, &PyTuple_Type, &params,
                          &PyDict_Type, &config, &PyDict_Type, &choices)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "a candidate is a tuple");
        }
        return -1;
    }
    candidate->kernel = (struct native_kernel *)Py_NewRef(kernel);
    if (PyTuple_GET_SIZE(params) != (Py_ssize_t)candidate->kernel->param_count) {
        PyErr_SetString(PyExc_ValueError, "a candidate has other parameters than its kernel");
        return -1;
    }
    candidate->params = read_indices(params, name_count);
    PyObject *copies[] = {PyDict_Copy(config), PyDict_Copy(choices)};
    candidate->held = Py_BuildValue("(NN)", copies[0], copies[1]);
    if (candidate->params == NULL || candidate->held == NULL) {
        return -1;
    }
    return read_values(candidate->kernel, copies[0], "config", LIMIT_CONFIG_ENTRIES,
                       &candidate->config, &candidate->config_count) == 0 &&
                   read_values(candidate->kernel, copies[1], "choice", LIMIT_CHOICES,
                               &candidate->choices, &candidate->choice_count) == 0
               ? 0
               : -1;
}

/* Return whether two candidates convert arguments alike: they may differ only in the dtypes of
 * pointers, which the C library checks. */
static bool convert_alike(const struct candidate *a, const struct candidate *b) {
    const uint32_t count = a->kernel->param_count;
    bool is_alike = count == b->kernel->param_count &&
                    memcmp(a->params, b->params, count * sizeof *a->params) == 0;
    for (uint32_t i = 0; is_alike && i < count; ++i) {
        const struct kernel_param *first = &a->kernel->params[i];
        const struct kernel_param *other = &b->kernel->params[i];
        is_alike = first->kind == other->kind && first->access == other->access &&
                   first->is_nullable == other->is_nullable && first->type_variable < 0 &&
                   other->type_variable < 0 && first->kind != AOTC_TENSOR &&
                   (first->kind == AOTC_POINTER || first->dtype == other->dtype);
    }
    return is_alike;
}

/* The candidate with the widest scalars, of those with the first one's parameters. */
static uint32_t find_widest(const struct specialization *specialization) {
    const struct candidate *first = &specialization->candidates[0];
    const uint32_t count = first->kernel->param_count;
    uint32_t widest = 0;
    uint32_t most = 0;
    for (uint32_t i = 0; i < specialization->candidate_count; ++i) {
        const struct candidate *candidate = &specialization->candidates[i];
        uint32_t width = 0;
        if (candidate->kernel->param_count != count ||
            memcmp(candidate->params, first->params, count * sizeof *first->params) != 0) {
            continue;
        }
        for (uint32_t k = 0; k < count; ++k) {
            const struct kernel_param *param = &candidate->kernel->params[k];
            width += param->kind == AOTC_SCALAR && (param->dtype == AOTC_I64 || param->dtype == AOTC_U64);
        }
        if (width > most) {
            most = width;
            widest = i;
        }
    }
    return widest;
}

PyObject *native_specialization_new(struct native_state *state, uint32_t name_count,
                                    PyObject *answer) {
    PyObject *listed = NULL;
    PyObject *telling = NULL;
    if (!PyArg_ParseTuple(answer, "O!O!", &PyTuple_Type, &listed, &PyTuple_Type, &telling)) {
        return NULL;
    }
    const size_t count = (size_t)PyTuple_GET_SIZE(listed);
    struct specialization *specialization =
        PyMem_Calloc(1, sizeof *specialization + count * sizeof *specialization->candidates);
    if (specialization == NULL || count == 0) {
        PyMem_Free(specialization);
        PyErr_SetString(PyExc_ValueError, "there are no candidates");
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(specialization, capsule_name, destroy);
    if (capsule == NULL) {
        PyMem_Free(specialization);
        return NULL;
    }
    (void)PyCapsule_SetContext(capsule, specialization); /* read without comparing names */
    for (size_t i = 0; i < count; ++i) {
        specialization->candidate_count += 1;
        if (read_candidate(state, name_count, PyTuple_GET_ITEM(listed, (Py_ssize_t)i),
                           &specialization->candidates[i]) < 0) {
            Py_DECREF(capsule);
            return NULL;
        }
        specialization->candidates[i].is_alike =
            i == 0 || convert_alike(&specialization->candidates[0], &specialization->candidates[i]);
    }
    specialization->widest = find_widest(specialization);
    for (size_t i = 0; i < count; ++i) {
        specialization->candidates[i].is_alike_wide =
            i == specialization->widest ||
            convert_alike(&specialization->candidates[specialization->widest],
                          &specialization->candidates[i]);
    }
    specialization->telling = read_indices(telling, specialization->candidates[0].kernel->param_count);
    specialization->fact_count = (uint32_t)PyTuple_GET_SIZE(telling);
    if (count > 1) {
        specialization->slots = PyMem_Calloc(FACT_SLOTS, sizeof *specialization->slots);
        specialization->last = specialization->slots;
    }
    if (specialization->telling == NULL || (count > 1 && specialization->slots == NULL)) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        Py_CLEAR(capsule);
    }
    return capsule;
}

/* ---- launching ------------------------------------------------------------------------------ */

static uint16_t fact_of(const aotc_arg *arg) {
    const bool is_pointer = arg->kind != AOTC_SCALAR;
    const int64_t number = arg->kind == AOTC_TENSOR ? (int64_t)(intptr_t)arg->as.tensor->address
                                                    : arg->as.i64;
    return (uint16_t)((uint32_t)arg->dtype << 3 | ((uint64_t)number % MULTIPLE == 0 ? 4u : 0u) |
                      (!is_pointer && number == 1 ? 2u : 0u) |
                      (!is_pointer && number == (int32_t)number ? 1u : 0u));
}

/* The slot of a launch with these facts, mostly the last one's, or NULL. */
static struct fact_slot *find_slot(struct specialization *specialization, const struct launch *launch,
                                   uint16_t facts[LIMIT_PARAMS], bool *is_known) {
    uint32_t hash = 0;
    uint32_t differences = 0;
    for (uint32_t i = 0; i < specialization->fact_count; ++i) {
        facts[i] = fact_of(&launch->args[specialization->telling[i]]);
        differences |= facts[i] ^ specialization->last->facts[i];
    }
    if (differences != 0) {
        for (uint32_t i = 0; i < specialization->fact_count; ++i) {
            hash = (hash ^ facts[i]) * UINT32_C(0x9E3779B1);
        }
        specialization->last = &specialization->slots[(hash >> 16) % FACT_SLOTS];
        differences = (uint32_t)memcmp(specialization->last->facts, facts, specialization->fact_count * sizeof *facts);
    }
    *is_known = specialization->last->is_used && differences == 0;
    return specialization->last;
}

static void use(struct launch *launch, const struct candidate *candidate) {
    launch->kernel = candidate->kernel;
    launch->choice_count = candidate->choice_count;
    launch->config_count = candidate->config_count;
    for (uint32_t i = 0; i < candidate->choice_count; ++i) {
        launch->choices[i] = candidate->choices[i];
    }
    for (uint32_t i = 0; i < candidate->config_count; ++i) {
        launch->config[i] = candidate->config[i];
    }
}

/* Convert the arguments for a candidate; the launch must be ended. 0 or -1. */
static int prepare(struct launch *launch, const struct candidate *candidate,
                   PyObject *const *objects, const struct known_tensor *known, PyObject *grid) {
    native_begin(launch, candidate->kernel);
    launch->known = known;
    launch->places = candidate->params;
    for (uint32_t i = 0; i < candidate->kernel->param_count; ++i) {
        launch->objects[i] = objects[candidate->params[i]];
    }
    use(launch, candidate);
    if (!native_read_plain_grid(launch, grid)) {
        launch->known = NULL;
        if (native_read_grid(launch, grid) < 0) {
            return -1;
        }
    }
    return native_convert(launch);
}

/* Separate from native_launch_specialized and its large frame. */
__attribute__((noinline)) static int launch_one(const struct candidate *candidate,
                                                PyObject *const *objects, PyObject *grid) {
    struct launch launch;
    const int result =
        prepare(&launch, candidate, objects, NULL, grid) < 0 ? -1 : native_run(&launch, NULL);
    native_end(&launch);
    return result;
}

/* Launch the first candidate, other than `tried`, that accepts the arguments. Returns its index, or
 * -1 with the first candidate's exception, or another one's if it is not a refusal. */
static int64_t launch_any(const struct specialization *specialization, uint32_t tried,
                          PyObject *const *objects, PyObject *grid, PyObject *refusals) {
    PyObject *first = native_take_exception();
    for (uint32_t i = 0; i < specialization->candidate_count; ++i) {
        if (i == tried) {
            continue;
        }
        if (launch_one(&specialization->candidates[i], objects, grid) == 0) {
            Py_XDECREF(first);
            return i;
        }
        if (!PyErr_ExceptionMatches(refusals)) {
            Py_XDECREF(first);
            return -1;
        }
        PyObject *refusal = native_take_exception();
        if (first == NULL) {
            first = refusal;
        } else {
            Py_DECREF(refusal);
        }
    }
    PyErr_SetObject((PyObject *)Py_TYPE(first), first);
    Py_DECREF(first);
    return -1;
}

int native_launch_specialized(PyObject *capsule, PyObject *const *objects,
                              const struct known_tensor *known, PyObject *grid, PyObject *refusals) {
    struct specialization *specialization = PyCapsule_GetContext(capsule);
    struct launch launch;
    uint16_t facts[LIMIT_PARAMS];
    struct fact_slot *slot = NULL;
    uint32_t chosen = 0;
    int64_t launched = 0;
    uint32_t converted = specialization->is_wide ? specialization->widest : 0;
    int result = prepare(&launch, &specialization->candidates[converted], objects, known, grid);
    if (result < 0 && converted != specialization->widest && PyErr_ExceptionMatches(refusals)) {
        PyErr_Clear(); /* a number is too large for the first; from now on facts tell such launches */
        specialization->is_wide = true;
        converted = specialization->widest;
        native_end(&launch);
        result = prepare(&launch, &specialization->candidates[converted], objects, NULL, grid);
    }
    if (result == 0 && specialization->candidate_count > 1) {
        bool is_known = false;
        slot = find_slot(specialization, &launch, facts, &is_known);
        chosen = is_known ? slot->candidate : 0;
    }
    const struct candidate *candidate = &specialization->candidates[chosen];
    const bool is_ready = converted == 0 ? candidate->is_alike : candidate->is_alike_wide;
    if (result == 0 && is_ready) {
        use(&launch, candidate);
        result = native_run(&launch, NULL);
    }
    native_end(&launch);
    if (result == 0 && !is_ready) {
        result = launch_one(candidate, objects, grid);
    }
    if (result == 0 || specialization->candidate_count == 1) {
        return result;
    }
    if (!PyErr_ExceptionMatches(refusals)) {
        return -1;
    }
    launched = launch_any(specialization, chosen, objects, grid, refusals);
    if (launched >= 0 && slot != NULL) {
        slot->is_used = true;
        slot->candidate = (uint32_t)launched;
        memcpy(slot->facts, facts, specialization->fact_count * sizeof *facts);
    }
    return launched < 0 ? -1 : 0;
}
