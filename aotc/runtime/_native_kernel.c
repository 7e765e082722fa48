/* _native_kernel.c: Kernel, a callable: convert the arguments of a call, choose, launch.
 *
 *   kernel(x, y, n, CAUSAL=True, stream=s)            every keyword a param, a choice, or one
 *                                                     of stream, grid, config
 *   kernel.launch(args, grid=, stream=, config=, choices=, pdl=, scratch=)
 *   kernel.select(args, ...)                          the effect of a launch
 *
 * The call is the hot path: it is a vectorcall and allocates nothing. A variable that another
 * function sets on success is not initialized before: a processor that renames memory (AMD's since
 * Zen 2) would predict the read to return the initial value, and restart, which takes as long as
 * the rest of the function.
 */
#include "_native.h"

#include <inttypes.h>
#include <string.h>
#include <structmember.h>

#include "plan.h"

/* ---- converting ----------------------------------------------------------------------------- */

static int missing_argument(const struct launch *launch, uint32_t index) {
    uint32_t given = 0;
    for (uint32_t i = 0; i < launch->kernel->param_count; ++i) {
        given += launch->objects[i] != NULL;
    }
    if (given == index) {
        return native_wrong_count(launch, given);
    }
    return native_bad_argument(launch, index, "a value", "none", NULL);
}

/* A scalar whose type variable the other arguments determine, unless it has its own dtype. */
static int read_variable_scalar(struct launch *launch, uint32_t index) {
    const unsigned variable = (unsigned)launch->kernel->params[index].type_variable;
    PyObject *object = launch->objects[index];
    PyObject *number = NULL;
    uint32_t dtype = launch->bound[variable];
    const int is_pair = native_split_pair(launch, index, object, &number, &dtype);
    if (is_pair < 0) {
        return -1;
    }
    if (dtype == AOTC_DTYPE_NONE && launch->kernel->variables[variable].dtype_count == 1) {
        dtype = launch->kernel->variables[variable].dtypes[0];
    }
    if (dtype == AOTC_DTYPE_NONE) {
        return native_bad_argument(
            launch, index, "a number with its dtype, such as (1.0, \"fp32\")",
            native_type_text(object).chars, "no other argument says the dtype");
    }
    launch->bound[variable] = (uint8_t)dtype;
    return native_read_scalar(launch, index, is_pair ? number : object, dtype);
}

/* Read the deferred arguments: first those that may need the stream, then the scalars whose dtypes
 * the former determine. */
static int convert_deferred(struct launch *launch) {
    const struct native_kernel *kernel = launch->kernel;
    for (uint32_t i = 0; i < kernel->param_count; ++i) {
        if (launch->args[i].kind == 0 && kernel->params[i].kind != AOTC_SCALAR &&
            native_read_dlpack(launch, i, launch->objects[i]) < 0) {
            return -1;
        }
    }
    for (uint32_t i = 0; i < kernel->param_count; ++i) {
        if (launch->args[i].kind == 0 && read_variable_scalar(launch, i) < 0) {
            return -1;
        }
    }
    return 0;
}

int native_convert(struct launch *launch) {
    const struct native_kernel *kernel = launch->kernel;
    for (uint32_t i = 0; i < kernel->param_count; ++i) {
        PyObject *object = launch->objects[i];
        const struct kernel_param *param = &kernel->params[i];
        int result = 0;
        if (object == NULL) {
            return missing_argument(launch, i);
        }
        if (param->kind != AOTC_SCALAR) {
            result = native_read_tensor(launch, i, object);
        } else if (param->dtype != AOTC_DTYPE_NONE) {
            result = native_read_scalar(launch, i, object, param->dtype);
        } else {
            launch->args[i].kind = 0;
            launch->is_deferred = true;
        }
        if (result < 0) {
            return -1;
        }
    }
    return launch->is_deferred ? convert_deferred(launch) : 0;
}

/* ---- launching ------------------------------------------------------------------------------ */

static int closed(const struct native_kernel *kernel) {
    return NATIVE_FAIL(kernel->state, AOTC_ERROR_STATE, .file = kernel->handle->path,
                       .kernel = PyUnicode_AsUTF8(kernel->name), .field = "library",
                       .expected = "an open one", .got = "one that was closed",
                       .remedy = "load it again");
}

/* Launch, or select, with possible lazy loading: without Python's lock, which other loads need to
 * decompress. */
static aotc_status run_late(struct launch *launch, const aotc_launch_desc *desc,
                            aotc_selection *selection, aotc_error *error) {
    struct native_kernel *self = (struct native_kernel *)Py_NewRef((PyObject *)launch->kernel);
    aotc_archive *archive = native_hold(self->handle);
    aotc_status status;
    self->handle->references += 1; /* the decompression hook uses it */
    for (uint32_t i = 0; i < self->param_count; ++i) {
        Py_INCREF(launch->objects[i]); /* another thread may drop them */
    }
    Py_BEGIN_ALLOW_THREADS status = selection == NULL
                                        ? aotc_launch(self->kernel, desc, error)
                                        : aotc_select(self->kernel, desc, selection, error);
    Py_END_ALLOW_THREADS
    for (uint32_t i = 0; i < self->param_count; ++i) {
        Py_DECREF(launch->objects[i]);
    }
    native_let_go(archive);
    native_handle_release(self->handle);
    Py_DECREF(self);
    return status;
}

int native_run(struct launch *launch, aotc_selection *selection) {
    /* From here on no Python code runs until the launch is done. */
    if (launch->kernel->handle->archive == NULL) {
        return closed(launch->kernel);
    }
    const aotc_launch_desc desc = {
        .struct_size = (uint32_t)sizeof desc,
        .flags = launch->flags,
        .args = launch->args,
        .choices = launch->choices,
        .config = launch->config,
        .arg_count = launch->kernel->param_count,
        .choice_count = launch->choice_count,
        .config_count = launch->config_count,
        .grid_rank = launch->grid_rank,
        .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
        .stream = (struct CUstream_st *)launch->stream,
        .scratch = launch->scratch,
        .scratch_bytes = launch->scratch_bytes,
    };
    bool entered = false;
    if (native_enter(launch, &entered) < 0) {
        return -1;
    }
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    const aotc_kernel *kernel = launch->kernel->kernel;
    aotc_status status = selection == NULL ? aotci_launch(kernel, &desc, false, &error)
                                           : (aotc_status)AOTCI_NOT_READY;
    if (status == (aotc_status)AOTCI_NOT_READY) {
        status = run_late(launch, &desc, selection, &error);
    }
    if (entered) {
        native_leave(launch);
    }
    return status == AOTC_OK ? 0 : native_raise(launch->state, &error);
}

static PyObject *kernel_call(PyObject *object, PyObject *const *args, size_t flagged_count,
                             PyObject *keywords) {
    struct launch launch;
    const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
    native_begin(&launch, (struct native_kernel *)object);
    int result = native_bind_positional(&launch, args, count);
    if (keywords != NULL) {
        const Py_ssize_t keyword_count = PyTuple_GET_SIZE(keywords);
        for (Py_ssize_t i = 0; result == 0 && i < keyword_count; ++i) {
            result = native_bind_keyword(&launch, PyTuple_GET_ITEM(keywords, i), args[count + i]);
        }
    }
    if (result == 0) {
        result = native_convert(&launch) < 0 ? -1 : native_run(&launch, NULL);
    }
    native_end(&launch);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Launch; or only select, if there is a selection to fill; or record the launch. */
static int launch_with_options(PyObject *object, PyObject *args, PyObject *keywords,
                               aotc_selection *selection, struct recorder *recorder) {
    static char *words[] = {"args", "grid", "stream", "config", "choices", "pdl", "scratch", NULL};
    struct launch launch;
    PyObject *arguments = NULL;
    PyObject *grid = Py_None;
    PyObject *stream = Py_None;
    PyObject *config = Py_None;
    PyObject *choices = Py_None;
    PyObject *scratch = Py_None;
    int pdl = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOOOpO", words, &arguments, &grid, &stream,
                                     &config, &choices, &pdl, &scratch)) {
        return -1;
    }
    native_begin(&launch, (struct native_kernel *)object);
    launch.flags = pdl ? AOTC_LAUNCH_PDL : 0;
    int result = native_bind_collection(&launch, arguments);
    if (result == 0 && native_read_stream(&launch, stream) == 0 &&
        native_read_grid(&launch, grid) == 0 && native_read_config(&launch, config) == 0 &&
        native_read_choices(&launch, choices) == 0 && native_read_scratch(&launch, scratch) == 0) {
        if (recorder != NULL) {
            launch.has_stream = true;
            launch.stream = (uintptr_t)recorder;
        }
        result = native_convert(&launch) < 0 ? -1 : native_run(&launch, selection);
    } else {
        result = -1;
    }
    native_end(&launch);
    return result;
}

static PyObject *kernel_launch(PyObject *object, PyObject *args, PyObject *keywords) {
    if (launch_with_options(object, args, keywords, NULL, NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Import aotc.runtime.info, at its first use. */
static int import_info(struct native_state *state) {
    if (state->describe == NULL) {
        state->describe = PyImport_ImportModule("aotc.runtime.info");
    }
    return state->describe == NULL ? -1 : 0;
}

static PyObject *kernel_select(PyObject *object, PyObject *args, PyObject *keywords) {
    struct native_state *state = ((struct native_kernel *)object)->state;
    aotc_selection chosen = {.struct_size = (uint32_t)sizeof chosen};
    if (launch_with_options(object, args, keywords, &chosen, NULL) < 0) {
        return NULL;
    }
    if (import_info(state) < 0) {
        return NULL;
    }
    return PyObject_CallMethod(state->describe, "Selection", "I(III)(III)(III)IKIK", chosen.variant,
                               chosen.grid[0], chosen.grid[1], chosen.grid[2], chosen.block[0],
                               chosen.block[1], chosen.block[2], chosen.cluster[0],
                               chosen.cluster[1], chosen.cluster[2], chosen.dynamic_shared_bytes,
                               (unsigned long long)chosen.scratch_bytes, chosen.scratch_align,
                               (unsigned long long)(uintptr_t)chosen.function);
}

/* _plan((major, minor), at_once, args, **options): the plan of a launch on such a GPU. */
static PyObject *kernel_plan(PyObject *object, PyObject *args, PyObject *keywords) {
    struct native_kernel *self = (struct native_kernel *)object;
    struct recorder recorder;
    int major = 0;
    int minor = 0;
    int at_once = 0;
    PyObject *head = PyTuple_GetSlice(args, 0, 2);
    PyObject *rest = PyTuple_GetSlice(args, 2, PyTuple_GET_SIZE(args));
    PyObject *plan = NULL;
    if (head != NULL && rest != NULL && PyArg_ParseTuple(head, "(ii)i", &major, &minor, &at_once) &&
        import_info(self->state) == 0 &&
        native_plan_begin(self, major, minor, at_once, &recorder) == 0) {
        const int result = launch_with_options(object, rest, keywords, NULL, &recorder);
        native_plan_end(&recorder);
        plan = result < 0 ? NULL : native_plan_object(self, &recorder);
    }
    Py_XDECREF(head);
    Py_XDECREF(rest);
    return plan;
}

/* ---- the object ----------------------------------------------------------------------------- */

static int read_params(struct native_kernel *self) {
    for (uint32_t i = 0; i < self->param_count; ++i) {
        aotc_param_info info = {.struct_size = (uint32_t)sizeof info};
        (void)aotc_kernel_get_param(self->kernel, i, &info);
        self->params[i] = (struct kernel_param){
            .name = PyUnicode_InternFromString(info.name),
            .kind = (uint8_t)info.kind,
            .dtype = (uint8_t)info.dtype,
            .rank = (uint8_t)info.rank,
            .access = (uint8_t)info.access,
            .type_variable = (int8_t)info.type_variable,
            .is_nullable = info.nullable != 0,
        };
        if (self->params[i].name == NULL) {
            return -1;
        }
    }
    for (uint32_t i = 0; i < self->choice_count; ++i) {
        aotc_choice_info info = {.struct_size = (uint32_t)sizeof info};
        (void)aotc_kernel_get_choice(self->kernel, i, &info);
        self->choice_names[i] = PyUnicode_InternFromString(info.name);
        if (self->choice_names[i] == NULL) {
            return -1;
        }
    }
    for (uint32_t i = 0; i < self->type_variable_count; ++i) {
        aotc_type_variable_info info = {.struct_size = (uint32_t)sizeof info};
        (void)aotc_kernel_get_type_variable(self->kernel, i, &info);
        self->variables[i].dtype_count = (uint8_t)info.dtype_count;
        memcpy(self->variables[i].dtypes, info.dtypes, sizeof info.dtypes);
    }
    return 0;
}

PyObject *native_kernel_new(struct native_state *state, struct native_handle *handle,
                            const aotc_kernel *kernel) {
    aotc_kernel_info info = {.struct_size = (uint32_t)sizeof info};
    struct native_kernel *self =
        (struct native_kernel *)state->kernel_type->tp_alloc(state->kernel_type, 0);
    if (self == NULL) {
        return NULL;
    }
    (void)aotc_kernel_get_info(kernel, &info);
    self->vectorcall = kernel_call;
    self->state = state;
    self->handle = handle;
    handle->references += 1;
    self->kernel = kernel;
    self->name = PyUnicode_FromString(info.name);
    self->params = PyMem_Calloc(info.param_count + 1u, sizeof *self->params);
    self->choice_names = PyMem_Calloc(info.choice_count + 1u, sizeof *self->choice_names);
    if (self->params != NULL && self->choice_names != NULL) {
        self->param_count = info.param_count;
        self->choice_count = info.choice_count;
        self->type_variable_count = info.type_variable_count;
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    if (PyErr_Occurred() || read_params(self) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static void kernel_dealloc(PyObject *object) {
    struct native_kernel *self = (struct native_kernel *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (uint32_t i = 0; i < self->param_count; ++i) {
        Py_XDECREF(self->params[i].name);
    }
    for (uint32_t i = 0; i < self->choice_count; ++i) {
        Py_XDECREF(self->choice_names[i]);
    }
    PyMem_Free(self->params);
    PyMem_Free(self->choice_names);
    Py_XDECREF(self->name);
    native_handle_release(self->handle);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Call a function of aotc.runtime.info with a kernel's description. */
static PyObject *ask_info(struct native_kernel *self, const char *function) {
    struct native_state *state = self->state;
    if (import_info(state) < 0) {
        return NULL;
    }
    aotc_archive *archive = native_hold(self->handle);
    if (archive == NULL) {
        (void)closed(self);
        return NULL;
    }
    PyObject *described = native_describe(self);
    native_let_go(archive);
    PyObject *answer =
        described == NULL ? NULL : PyObject_CallMethod(state->describe, function, "(O)", described);
    Py_XDECREF(described);
    return answer;
}

static PyObject *kernel_info(PyObject *object, void *Py_UNUSED(closure)) {
    return ask_info((struct native_kernel *)object, "kernel_info");
}

static PyObject *kernel_repr(PyObject *object) {
    struct native_kernel *self = (struct native_kernel *)object;
    if (self->handle->archive == NULL) {
        return PyUnicode_FromFormat("<aotc kernel %U of a closed library>", self->name);
    }
    return ask_info(self, "kernel_repr");
}

static PyMethodDef kernel_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))kernel_launch, METH_VARARGS | METH_KEYWORDS,
     "launch($self, args, *, grid=None, stream=None, config=None, choices=None, pdl=False, "
     "scratch=None)\n--\n\n"
     "Choose a variant for the arguments and launch it."},
    {"select", (PyCFunction)(void (*)(void))kernel_select, METH_VARARGS | METH_KEYWORDS,
     "select($self, args, *, grid=None, stream=None, config=None, choices=None, pdl=False, "
     "scratch=None)\n--\n\n"
     "Say what a launch would do, as a `Selection`."},
    {"_plan", (PyCFunction)(void (*)(void))kernel_plan, METH_VARARGS | METH_KEYWORDS,
     "Write down what a launch would be, as a `Plan`, without a GPU."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct native_kernel, vectorcall), READONLY,
     NULL},
    {"name", T_OBJECT_EX, offsetof(struct native_kernel, name), READONLY, "Name of the kernel."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef kernel_getters[] = {
    {"info", kernel_info, NULL,
     "Params, types, choices, guards, configs and variants, as `KernelInfo`.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot kernel_slots[] = {
    {Py_tp_doc, "A kernel of a loaded library: call it to launch it."},
    {Py_tp_dealloc, kernel_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, kernel_repr},
    {Py_tp_methods, kernel_methods},
    {Py_tp_members, kernel_members},
    {Py_tp_getset, kernel_getters},
    {0, NULL},
};

PyType_Spec native_kernel_spec = {
    .name = "aotc.runtime._native.Kernel",
    .basicsize = sizeof(struct native_kernel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = kernel_slots,
};
