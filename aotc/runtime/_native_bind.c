/* _native_bind.c: bind the keywords of a call to the arguments of a launch.
 *
 * Keywords are compared by identity first, since both sides are interned. References borrowed from
 * a dictionary of the caller's are kept alive by a copy of that dictionary until the launch is
 * over.
 */
#include <inttypes.h>
#include <string.h>

#include "_native.h"

/* ---- binding -------------------------------------------------------------------------------- */

void native_begin(struct launch *launch, struct native_kernel *kernel) {
    /* Field by field: for a block of this size compilers call memset, or use a slower instruction. */
    launch->kernel = kernel;
    launch->state = kernel->state;
    launch->reads_base = launch->is_deferred = launch->has_stream = launch->has_vote = false;
    launch->voter = launch->device_param = 0;
    launch->asked = NULL;
    launch->stream = 0;
    launch->device = -1;
    launch->choice_count = launch->choices_given = launch->options_given = 0;
    launch->config_count = launch->held_count = launch->tensor_count = 0;
    launch->flags = launch->grid_rank = 0;
    launch->grid[0] = launch->grid[1] = launch->grid[2] = 0;
    launch->scratch = NULL;
    launch->scratch_bytes = 0;
    launch->known = NULL;
    launch->places = NULL;
    memset(launch->bound, 0, sizeof launch->bound);
    memset(launch->objects, 0, kernel->param_count * sizeof *launch->objects);
}

void native_end(struct launch *launch) {
    if (launch->held_count == 0) {
        return;
    }
    /* A capsule's destructor may run Python code, which must not find our exception. */
    PyObject *exception = native_take_exception();
    for (uint32_t i = 0; i < launch->held_count; ++i) {
        Py_DECREF(launch->held[i]);
    }
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
}

#define LAUNCH_FAIL(launch, ...)                                                                   \
    NATIVE_FAIL((launch)->state, AOTC_ERROR_ARG, .file = (launch)->kernel->handle->path,           \
                .kernel = PyUnicode_AsUTF8((launch)->kernel->name), __VA_ARGS__)

int native_bad_argument(const struct launch *launch, uint32_t index, const char *expected,
                        const char *got, const char *remedy) {
    const char *name = PyUnicode_AsUTF8(launch->kernel->params[index].name);
    return LAUNCH_FAIL(launch, .field = aotci_text("argument '%s'", name).chars,
                       .expected = expected, .got = got, .remedy = remedy);
}

int native_bad_protocol(const struct launch *launch, uint32_t index, const char *expected) {
    /* The current exception has the details: it becomes the cause. */
    return native_bad_argument(launch, index, expected,
                               "one that raised an exception when it was asked",
                               "see the exception that caused this one");
}

const char *native_chars(PyObject *string) {
    Py_ssize_t size = 0;
    const char *chars = PyUnicode_AsUTF8AndSize(string, &size);
    if (chars != NULL && strlen(chars) != (size_t)size) {
        PyErr_SetString(PyExc_ValueError, "embedded null character");
        return NULL;
    }
    return chars;
}

struct aotci_text native_type_text(PyObject *object) {
    return object == Py_None ? aotci_text("None") : aotci_text("%.200s", Py_TYPE(object)->tp_name);
}

static struct aotci_text name_list(PyObject *const *names, uint32_t count, size_t stride_bytes) {
    struct aotci_text list = {""};
    for (uint32_t i = 0; i < count; ++i) {
        PyObject *name = *(PyObject *const *)((const char *)names + i * stride_bytes);
        aotci_text_add(&list, "%s%s", i == 0 ? "" : ", ", PyUnicode_AsUTF8(name));
    }
    return list;
}

static struct aotci_text param_list(const struct native_kernel *kernel) {
    return name_list(&kernel->params[0].name, kernel->param_count, sizeof *kernel->params);
}

static struct aotci_text choice_list(const struct native_kernel *kernel) {
    return name_list(kernel->choice_names, kernel->choice_count, sizeof *kernel->choice_names);
}

int native_wrong_count(const struct launch *launch, Py_ssize_t count) {
    const struct native_kernel *kernel = launch->kernel;
    return LAUNCH_FAIL(
        launch, .field = "arguments",
        .expected =
            aotci_text("%" PRIu32 " (%s)", kernel->param_count, param_list(kernel).chars).chars,
        .got = aotci_text("%zd", count).chars);
}

int native_bind_positional(struct launch *launch, PyObject *const *args, Py_ssize_t count) {
    if (count > (Py_ssize_t)launch->kernel->param_count) {
        return native_wrong_count(launch, count);
    }
    memcpy(launch->objects, args, (size_t)count * sizeof *args);
    return 0;
}

/* Return whether two strings are equal; interned ones are the same object. -1 on failure. */
static int same_name(PyObject *a, PyObject *b) {
    if (a == b) {
        return 1;
    }
    return PyUnicode_Check(b) ? PyUnicode_Compare(a, b) == 0 && !PyErr_Occurred() : 0;
}

static bool bind_param(struct launch *launch, PyObject *name, PyObject *object, int *result) {
    const struct native_kernel *kernel = launch->kernel;
    for (uint32_t i = 0; i < kernel->param_count; ++i) {
        if (same_name(kernel->params[i].name, name)) {
            *result = launch->objects[i] == NULL
                          ? 0
                          : native_bad_argument(launch, i, "one value",
                                                "two: by position and by name", NULL);
            launch->objects[i] = object;
            return true;
        }
    }
    return false;
}

static int given_twice(const struct launch *launch, const char *what, PyObject *name) {
    return LAUNCH_FAIL(launch, .field = aotci_text("%s '%s'", what, PyUnicode_AsUTF8(name)).chars,
                       .expected = "one value", .got = "two");
}

static bool bind_choice(struct launch *launch, PyObject *name, PyObject *object, int *result) {
    const struct native_kernel *kernel = launch->kernel;
    for (uint32_t i = 0; i < kernel->choice_count; ++i) {
        if (same_name(kernel->choice_names[i], name)) {
            /* Strings of a derived class may repeat, even in a dictionary. */
            if (launch->choices_given >> i & 1) {
                *result = given_twice(launch, "choice", kernel->choice_names[i]);
                return true;
            }
            launch->choices_given |= UINT32_C(1) << i;
            aotc_value *value = &launch->choices[launch->choice_count++];
            *result = native_read_value(launch, "choice", kernel->choice_names[i], object, value);
            return true;
        }
    }
    return false;
}

static struct aotci_text name_text(PyObject *name) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    return text == NULL ? native_type_text(name) : aotci_text("'%.200s'", text);
}

static int unknown_keyword(const struct launch *launch, PyObject *name, bool with_options) {
    const struct native_kernel *kernel = launch->kernel;
    const struct aotci_text params = param_list(kernel);
    const struct aotci_text choices = choice_list(kernel);
    struct aotci_text expected = aotci_text("an argument (%s)", params.chars);
    if (kernel->choice_count != 0) {
        aotci_text_add(&expected, ", a choice (%s)", choices.chars);
    }
    if (with_options) {
        aotci_text_add(&expected, ", or stream, grid, config");
    }
    return LAUNCH_FAIL(launch, .field = "keyword", .expected = expected.chars,
                       .got = name_text(name).chars);
}

/* ---- options -------------------------------------------------------------------------------- */

bool native_read_plain_grid(struct launch *launch, PyObject *object) {
    const Py_ssize_t rank = PyTuple_CheckExact(object) ? PyTuple_GET_SIZE(object) : 0;
    bool is_plain = rank >= 1 && rank <= 3;
    for (Py_ssize_t i = 0; is_plain && i < rank; ++i) {
        PyObject *item = PyTuple_GET_ITEM(object, i);
        int overflow; /* set only by the call: see _native_kernel.c */
        is_plain = PyLong_CheckExact(item);
        if (is_plain) {
            launch->grid[i] = PyLong_AsLongLongAndOverflow(item, &overflow);
            is_plain = overflow == 0;
        }
    }
    launch->grid_rank = is_plain ? (uint32_t)rank : 0;
    return is_plain;
}

int native_read_grid(struct launch *launch, PyObject *object) {
    PyObject *items = NULL;
    if (object == Py_None || native_read_plain_grid(launch, object)) {
        return 0;
    }
    if (PyIndex_Check(object) && !PySequence_Check(object)) {
        items = PyTuple_Pack(1, object);
    } else {
        items = PySequence_Check(object) ? PySequence_Tuple(object) : NULL;
    }
    const Py_ssize_t rank = items == NULL ? 0 : PyTuple_GET_SIZE(items);
    bool valid = rank >= 1 && rank <= 3;
    for (Py_ssize_t i = 0; valid && i < rank; ++i) {
        PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(items, i));
        int overflow = 0;
        launch->grid[i] = number == NULL ? -1 : PyLong_AsLongLongAndOverflow(number, &overflow);
        valid = number != NULL && overflow == 0;
        Py_XDECREF(number);
    }
    Py_XDECREF(items);
    if (!valid) {
        PyErr_Clear();
        return LAUNCH_FAIL(launch, .field = "grid",
                           .expected = "an integer, or 1 to 3 of them: numbers of programs",
                           .got = native_type_text(object).chars);
    }
    launch->grid_rank = (uint32_t)rank;
    return 0;
}

/* Pass each entry of a dictionary to `take`, from a copy held until the launch is over. */
static int for_each_entry(struct launch *launch, PyObject *dictionary,
                          int (*take)(struct launch *launch, PyObject *name, PyObject *value)) {
    Py_ssize_t position = 0;
    PyObject *name = NULL;
    PyObject *value = NULL;
    PyObject *copy = PyDict_Copy(dictionary);
    if (copy == NULL) {
        return -1;
    }
    launch->held[launch->held_count++] = copy;
    while (PyDict_Next(copy, &position, &name, &value)) {
        if (take(launch, name, value) < 0) {
            return -1;
        }
    }
    return 0;
}

static int take_config(struct launch *launch, PyObject *name, PyObject *value) {
    if (launch->config_count == LIMIT_CONFIG_ENTRIES) {
        return LAUNCH_FAIL(launch, .field = "config",
                           .expected = aotci_text("at most %d entries", LIMIT_CONFIG_ENTRIES).chars,
                           .got = "more");
    }
    return native_read_value(launch, "config", name, value,
                             &launch->config[launch->config_count++]);
}

int native_read_config(struct launch *launch, PyObject *object) {
    if (object == Py_None) {
        return 0;
    }
    if (!PyDict_Check(object)) {
        return LAUNCH_FAIL(launch, .field = "config",
                           .expected = "a dictionary such as {\"num_warps\": 8}",
                           .got = native_type_text(object).chars);
    }
    return for_each_entry(launch, object, take_config);
}

static int take_choice(struct launch *launch, PyObject *name, PyObject *value) {
    int result = 0;
    if (bind_choice(launch, name, value, &result)) {
        return result;
    }
    const struct aotci_text list = choice_list(launch->kernel);
    return LAUNCH_FAIL(launch, .field = "choices",
                       .expected = launch->kernel->choice_count == 0
                                       ? "none: the kernel has no choices"
                                       : list.chars,
                       .got = name_text(name).chars);
}

int native_read_choices(struct launch *launch, PyObject *object) {
    if (object == Py_None) {
        return 0;
    }
    if (!PyDict_Check(object)) {
        return LAUNCH_FAIL(launch, .field = "choices",
                           .expected = "a dictionary such as {\"CAUSAL\": True}",
                           .got = native_type_text(object).chars);
    }
    return for_each_entry(launch, object, take_choice);
}

int native_read_scratch(struct launch *launch, PyObject *object) {
    Py_ssize_t size_bytes = 0;
    unsigned long long address = 0;
    if (object == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(object) || !PyArg_ParseTuple(object, "Kn", &address, &size_bytes) ||
        size_bytes < 0) {
        PyErr_Clear();
        return LAUNCH_FAIL(launch, .field = "scratch",
                           .expected = "a tuple (address, size in bytes)",
                           .got = native_type_text(object).chars);
    }
    launch->scratch = (void *)(uintptr_t)address;
    launch->scratch_bytes = (uint64_t)size_bytes;
    return 0;
}

int native_bind_keyword(struct launch *launch, PyObject *name, PyObject *object) {
    const struct native_names *names = &launch->state->names;
    int result = 0;
    if (bind_param(launch, name, object, &result) || bind_choice(launch, name, object, &result)) {
        return result;
    }
    const struct {
        PyObject *name;
        int (*read)(struct launch *launch, PyObject *object);
    } options[] = {
        {names->stream, native_read_stream},
        {names->grid, native_read_grid},
        {names->config, native_read_config},
    };
    for (unsigned i = 0; i < sizeof options / sizeof *options; ++i) {
        if (same_name(options[i].name, name)) {
            if (launch->options_given >> i & 1) {
                return given_twice(launch, "option", options[i].name);
            }
            launch->options_given |= 1u << i;
            return options[i].read(launch, object);
        }
    }
    return unknown_keyword(launch, name, true);
}

static int take_argument(struct launch *launch, PyObject *name, PyObject *value) {
    int result = 0;
    return bind_param(launch, name, value, &result) ? result : unknown_keyword(launch, name, false);
}

int native_bind_collection(struct launch *launch, PyObject *args) {
    if (PyDict_Check(args)) {
        return for_each_entry(launch, args, take_argument);
    }
    PyObject *tuple =
        PySequence_Check(args) && !PyUnicode_Check(args) ? PySequence_Tuple(args) : NULL;
    if (tuple == NULL) {
        PyErr_Clear();
        return LAUNCH_FAIL(launch, .field = "args",
                           .expected = "a sequence, or a dictionary by name",
                           .got = native_type_text(args).chars);
    }
    launch->held[launch->held_count++] = tuple;
    return native_bind_positional(launch, &PyTuple_GET_ITEM(tuple, 0), PyTuple_GET_SIZE(tuple));
}
