/* _native_chain.c: launches of decorated functions: an autotuner's config, constants of heuristics.
 *
 *   Chain        the decorators of a function, from the outermost to its launcher
 *   ChainLaunch  the callable chain[grid]
 *
 * A call's arguments are bound once. The autotuner's step applies the config chosen earlier for
 * like arguments. Heuristics run a program for each constant, or call the function if there is no
 * program, or it has no answer. Unknown cases, and errors before the launch, go to the decorators'
 * own `run`.
 *
 * Entries and values are held while foreign code may run.
 */
#include "_native_tuned.h"
#include "_native_program.h"

#include <string.h>
#include <structmember.h>

enum { MAX_COMPUTED = 64 };

struct native_chain {
    PyObject_HEAD struct native_state *state;
    struct native_launcher *launcher;
    PyObject *steps;   /* for each: None, the autotuner's, or a tuple of (name, function, program) */
    /* The constants of all steps, concatenated. */
    struct constant {
        uint32_t place; /* of the parameter */
        struct program *program; /* or NULL */
    } *constants;
    size_t constant_count;
    PyObject *tuner;   /* or None */
    PyObject *run;     /* the outermost decorator's method */
    PyObject *chosen;  /* (args, kwargs) -> (config, settings) of a launch by `run`, or None */
    struct native_tuned tuned;
    PyObject *last;    /* the entry with the autotuner's best config, or NULL */
    PyObject *best_config; /* the attribute's name */
};

struct chain_call {
    PyObject *const *args;
    Py_ssize_t count;
    PyObject *keywords, *grid;
};

/* The results of steps so far, and the arguments for functions. */
struct computing {
    PyObject *objects[MAX_NAMES];
    PyObject *values[MAX_COMPUTED]; /* of the first constants, owned */
    size_t count;
    PyObject *passed; /* the arguments for functions, or NULL: none was called */
    PyObject *entry;  /* of the autotuner, or NULL */
    bool are_known;   /* `known` is current: no foreign code ran since */
    struct known_tensor known[MAX_KNOWN_TENSORS];
};

/* ---- steps ----------------------------------------------------------------------------------- */

/* Apply an entry's config. 0 or -1. */
static int apply_config(struct native_chain *self, struct computing *now) {
    PyObject *entry = now->entry;
    const uint32_t *places = native_entry_array(entry, ENTRY_PLACES);
    PyObject *values = PyTuple_GET_ITEM(entry, ENTRY_VALUES);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); ++i) {
        now->objects[places[i]] = PyTuple_GET_ITEM(values, i);
    }
    if (now->passed != NULL &&
        PyDict_Update(now->passed, PyTuple_GET_ITEM(entry, ENTRY_SETTINGS)) < 0) {
        return -1;
    }
    if (self->last == entry) {
        return 0;
    }
    now->are_known = false;
    Py_XSETREF(self->last, Py_NewRef(entry));
    return PyObject_SetAttr(self->tuner, self->best_config,
                            PyTuple_GET_ITEM(entry, ENTRY_CONFIG));
}

/* A call's arguments by name: as in Triton, without defaults. */
static PyObject *passed_by_name(const struct native_chain *self, const struct chain_call *call) {
    PyObject *passed = PyDict_New();
    for (Py_ssize_t i = 0; passed != NULL && i < call->count; ++i) {
        if (PyDict_SetItem(passed, PyTuple_GET_ITEM(self->launcher->names, i), call->args[i]) < 0) {
            Py_CLEAR(passed);
        }
    }
    const Py_ssize_t keyword_count = call->keywords == NULL ? 0 : PyTuple_GET_SIZE(call->keywords);
    for (Py_ssize_t i = 0; passed != NULL && i < keyword_count; ++i) {
        if (PyDict_SetItem(passed, PyTuple_GET_ITEM(call->keywords, i),
                           call->args[call->count + i]) < 0) {
            Py_CLEAR(passed);
        }
    }
    return passed;
}

/* Make the arguments for functions: the call's, the config, and the earlier constants. 0 or -1. */
static int make_passed(const struct native_chain *self, const struct chain_call *call,
                       struct computing *now) {
    now->passed = passed_by_name(self, call);
    int result = now->passed == NULL ? -1 : 0;
    if (result == 0 && now->entry != NULL) {
        result = PyDict_Update(now->passed, PyTuple_GET_ITEM(now->entry, ENTRY_SETTINGS));
    }
    for (size_t i = 0; result == 0 && i < now->count; ++i) {
        PyObject *name = PyTuple_GET_ITEM(self->launcher->names, self->constants[i].place);
        result = PyDict_SetItem(now->passed, name, now->values[i]);
    }
    return result;
}

/* Compute the next constant. 0 or -1. */
static int compute_one(const struct native_chain *self, const struct chain_call *call,
                       PyObject *function, struct computing *now) {
    const struct constant *constant = &self->constants[now->count];
    PyObject *value = constant->program == NULL
                          ? NULL
                          : native_program_run(constant->program, now->objects,
                                               self->launcher->defaults);
    if (value == NULL && now->passed == NULL && make_passed(self, call, now) < 0) {
        return -1;
    }
    if (value == NULL) {
        now->are_known = false;
        value = PyObject_CallOneArg(function, now->passed);
    }
    if (value == NULL) {
        return -1;
    }
    now->objects[constant->place] = value;
    now->values[now->count++] = value;
    return now->passed == NULL
               ? 0
               : PyDict_SetItem(now->passed,
                                PyTuple_GET_ITEM(self->launcher->names, constant->place), value);
}

/* Compute the constants of a step, each from the earlier ones. */
static int compute(const struct native_chain *self, const struct chain_call *call, PyObject *step,
                   struct computing *now) {
    int result = 0;
    for (Py_ssize_t i = 0; result == 0 && i < PyTuple_GET_SIZE(step); ++i) {
        result = compute_one(self, call, PyTuple_GET_ITEM(PyTuple_GET_ITEM(step, i), 1), now);
    }
    return result;
}

/* ---- a call ---------------------------------------------------------------------------------- */

enum outcome { LAUNCHED, FAILED, NOT_KNOWN };

static enum outcome launch_known(struct native_chain *self, const struct chain_call *call) {
    struct computing now;
    enum outcome outcome = LAUNCHED;
    now.count = 0;
    now.passed = NULL;
    now.entry = NULL;
    now.are_known = false;
    if (native_launcher_bind(self->launcher, call->args, call->count, call->keywords,
                             now.objects) < 0) {
        PyErr_Clear(); /* `run` will report it as Triton does */
        return NOT_KNOWN;
    }
    for (Py_ssize_t i = 0; outcome == LAUNCHED && i < PyTuple_GET_SIZE(self->steps); ++i) {
        PyObject *step = PyTuple_GET_ITEM(self->steps, i);
        if (step != Py_None) {
            outcome = compute(self, call, step, &now) < 0 ? FAILED : LAUNCHED;
            continue;
        }
        now.entry =
            native_tuned_find(&self->tuned, now.objects, now.known, &now.are_known);
        if (now.entry == NULL) {
            outcome = NOT_KNOWN;
        } else if (apply_config(self, &now) < 0) {
            outcome = FAILED;
        }
    }
    const struct known_tensor *known = now.are_known ? now.known : NULL;
    if (outcome == LAUNCHED &&
        native_launcher_launch(self->launcher, now.objects, known, call->grid) < 0) {
        /* With an autotuner another config may work. */
        const bool is_refused =
            now.entry != NULL && PyErr_ExceptionMatches(self->launcher->refusals) != 0;
        outcome = is_refused ? NOT_KNOWN : FAILED;
        if (is_refused) {
            PyErr_Clear();
            (void)native_tuned_clear(&self->tuned);
        }
    }
    for (size_t i = 0; i < now.count; ++i) {
        Py_DECREF(now.values[i]);
    }
    Py_XDECREF(now.passed);
    Py_XDECREF(now.entry);
    return outcome;
}

/* Query the autotuner's choice for a launch, and store it. 0 or -1. */
static int keep_choice(struct native_chain *self, const struct chain_call *call, PyObject *args,
                       PyObject *words) {
    PyObject *objects[MAX_NAMES];
    if (native_launcher_bind(self->launcher, call->args, call->count, call->keywords, objects) < 0) {
        PyErr_Clear();
        return 0;
    }
    PyObject *found = PyObject_CallFunctionObjArgs(self->chosen, args, words, NULL);
    if (found == NULL) {
        return -1;
    }
    if (PyTuple_Check(found) && PyTuple_GET_SIZE(found) == 2 &&
        PyDict_Check(PyTuple_GET_ITEM(found, 1))) {
        native_tuned_add(&self->tuned, objects, PyTuple_GET_ITEM(found, 0),
                           PyTuple_GET_ITEM(found, 1));
    }
    Py_DECREF(found);
    return 0;
}

/* run(*args, **keywords, grid=grid, warmup=False) */
static PyObject *launch_by_run(struct native_chain *self, const struct chain_call *call) {
    PyObject *args = PyTuple_New(call->count);
    PyObject *words = PyDict_New();
    bool is_made = args != NULL && words != NULL;
    for (Py_ssize_t i = 0; is_made && i < call->count; ++i) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(call->args[i]));
    }
    const Py_ssize_t keyword_count = call->keywords == NULL ? 0 : PyTuple_GET_SIZE(call->keywords);
    for (Py_ssize_t i = 0; is_made && i < keyword_count; ++i) {
        is_made = PyDict_SetItem(words, PyTuple_GET_ITEM(call->keywords, i),
                                 call->args[call->count + i]) == 0;
    }
    is_made = is_made && PyDict_SetItemString(words, "grid", call->grid) == 0 &&
              PyDict_SetItemString(words, "warmup", Py_False) == 0;
    Py_CLEAR(self->last); /* `run` sets the best config */
    PyObject *result = is_made ? PyObject_Call(self->run, args, words) : NULL;
    if (result != NULL && self->tuner != Py_None && self->steps != Py_None &&
        keep_choice(self, call, args, words) < 0) {
        Py_CLEAR(result);
    }
    Py_XDECREF(args);
    Py_XDECREF(words);
    return result;
}

/* chain[grid] */
struct native_chain_launch {
    PyObject_HEAD vectorcallfunc vectorcall;
    struct native_chain *chain;
    PyObject *grid;
};

static PyObject *call_chain(PyObject *object, PyObject *const *args, size_t flagged_count,
                            PyObject *keywords) {
    struct native_chain *self = ((struct native_chain_launch *)object)->chain;
    PyObject *grid = Py_NewRef(((struct native_chain_launch *)object)->grid);
    const struct chain_call call = {args, PyVectorcall_NARGS(flagged_count), keywords, grid};
    Py_INCREF(self);
    /* Hooks see the arguments of `run`. */
    const bool is_plain =
        self->steps != Py_None && PyList_GET_SIZE(self->launcher->hooks) == 0;
    const enum outcome outcome = is_plain ? launch_known(self, &call) : NOT_KNOWN;
    PyObject *result = NULL;
    if (outcome == NOT_KNOWN) {
        result = launch_by_run(self, &call);
    } else if (outcome == LAUNCHED) {
        result = Py_NewRef(Py_None);
    }
    Py_DECREF(grid);
    Py_DECREF(self);
    return result;
}

static PyObject *chain_subscript(PyObject *object, PyObject *grid) {
    struct native_chain *self = (struct native_chain *)object;
    struct native_state *state = self->state;
    struct native_chain_launch *launch = (struct native_chain_launch *)native_make_spare(
        &state->spare_chain_launch, state->chain_launch_type);
    if (launch != NULL) {
        launch->vectorcall = call_chain;
        launch->chain = (struct native_chain *)Py_NewRef(object);
        launch->grid = Py_NewRef(grid);
    }
    return (PyObject *)launch;
}

/* ---- the objects ----------------------------------------------------------------------------- */

static int chain_launch_traverse(PyObject *object, visitproc visit, void *arg) {
    struct native_chain_launch *self = (struct native_chain_launch *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->chain);
    Py_VISIT(self->grid);
    return 0;
}

static void chain_launch_dealloc(PyObject *object) {
    struct native_chain_launch *self = (struct native_chain_launch *)object;
    PyTypeObject *type = Py_TYPE(object);
    struct native_state *state = self->chain == NULL ? NULL : self->chain->state;
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->chain);
    Py_CLEAR(self->grid);
    native_let_spare(state == NULL ? NULL : &state->spare_chain_launch, object,
                     state != NULL && state->chain_launch_type != NULL);
    Py_DECREF(type);
}

static PyMemberDef chain_launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct native_chain_launch, vectorcall), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot chain_launch_slots[] = {
    {Py_tp_doc, "What launches a decorated function with a grid."},
    {Py_tp_dealloc, chain_launch_dealloc},
    {Py_tp_traverse, chain_launch_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, chain_launch_members},
    {0, NULL},
};

PyType_Spec native_chain_launch_spec = {
    .name = "aotc.runtime._native.ChainLaunch",
    .basicsize = sizeof(struct native_chain_launch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = chain_launch_slots,
};

static int not_steps(void) {
    PyErr_SetString(PyExc_ValueError,
                    "steps are None, or a tuple of None and (name, function, program or None)");
    return -1;
}

/* Read a constant of a step. 0 or -1. */
static int read_constant(struct native_chain *self, PyObject *item) {
    PyObject *name = NULL;
    PyObject *function = NULL;
    PyObject *program = NULL;
    if (!PyTuple_Check(item) || self->constant_count == MAX_COMPUTED ||
        !PyArg_ParseTuple(item, "UOO", &name, &function, &program)) {
        PyErr_Clear();
        return not_steps();
    }
    const int64_t place = native_launcher_find(self->launcher, name);
    if (place < 0) {
        return not_steps();
    }
    struct constant *constant = &self->constants[self->constant_count++];
    constant->place = (uint32_t)place;
    if (program != Py_None) {
        constant->program = native_program_new(program, self->launcher->param_count);
        return constant->program == NULL ? -1 : 0;
    }
    return 0;
}

/* Check that each step is None, or a tuple that calls can use without checks. 0 or -1. */
static int read_steps(struct native_chain *self) {
    int tuner_count = 0;
    self->constants = PyMem_Calloc(MAX_COMPUTED, sizeof *self->constants);
    if (self->constants == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (self->steps == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(self->steps)) {
        return not_steps();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->steps); ++i) {
        PyObject *step = PyTuple_GET_ITEM(self->steps, i);
        tuner_count += step == Py_None;
        if (step != Py_None && !PyTuple_Check(step)) {
            return not_steps();
        }
        for (Py_ssize_t k = 0; step != Py_None && k < PyTuple_GET_SIZE(step); ++k) {
            if (read_constant(self, PyTuple_GET_ITEM(step, k)) < 0) {
                return -1;
            }
        }
    }
    return tuner_count <= 1 ? 0 : not_steps();
}

/* Chain(launcher, steps, tuner, keys, run, chosen) */
static PyObject *chain_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    struct native_state *state = native_state_of(type);
    PyObject *launcher = NULL;
    PyObject *steps = NULL;
    PyObject *tuner = NULL;
    PyObject *keys = NULL;
    PyObject *run = NULL;
    PyObject *chosen = NULL;
    if (state == NULL || !PyArg_ParseTuple(args, "O!OOO!OO", state->launcher_type, &launcher, &steps,
                                           &tuner, &PyFrozenSet_Type, &keys, &run, &chosen)) {
        return NULL;
    }
    struct native_chain *self = (struct native_chain *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = state;
    self->launcher = (struct native_launcher *)Py_NewRef(launcher);
    self->steps = Py_NewRef(steps);
    self->tuner = Py_NewRef(tuner);
    self->run = Py_NewRef(run);
    self->chosen = Py_NewRef(chosen);
    self->best_config = PyUnicode_InternFromString("best_config");
    const bool is_made = self->best_config != NULL &&
                         native_tuned_begin(&self->tuned, self->launcher, keys) == 0 &&
                         read_steps(self) == 0;
    if (!is_made) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int chain_traverse(PyObject *object, visitproc visit, void *arg) {
    struct native_chain *self = (struct native_chain *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->launcher);
    Py_VISIT(self->steps);
    Py_VISIT(self->tuner);
    Py_VISIT(self->run);
    Py_VISIT(self->chosen);
    Py_VISIT(self->tuned.entries);
    Py_VISIT(self->last);
    return 0;
}

/* References to the decorators, and so to the chain, are dropped only with the object: a call may
 * be running. */
static int chain_clear(PyObject *object) {
    struct native_chain *self = (struct native_chain *)object;
    return self->tuned.entries == NULL ? 0 : native_tuned_clear(&self->tuned);
}

static void chain_dealloc(PyObject *object) {
    struct native_chain *self = (struct native_chain *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    for (size_t i = 0; i < self->constant_count; ++i) {
        native_program_free(self->constants[i].program);
    }
    PyMem_Free(self->constants);
    Py_XDECREF((PyObject *)self->launcher);
    Py_XDECREF(self->steps);
    Py_XDECREF(self->tuner);
    native_tuned_end(&self->tuned);
    Py_XDECREF(self->run);
    Py_XDECREF(self->chosen);
    Py_XDECREF(self->last);
    Py_XDECREF(self->best_config);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyType_Slot chain_slots[] = {
    {Py_tp_doc, "Launches of a function through its autotuner and heuristics."},
    {Py_tp_new, chain_new},
    {Py_tp_dealloc, chain_dealloc},
    {Py_tp_traverse, chain_traverse},
    {Py_tp_clear, chain_clear},
    {Py_mp_subscript, chain_subscript},
    {0, NULL},
};

PyType_Spec native_chain_spec = {
    .name = "aotc.runtime._native.Chain",
    .basicsize = sizeof(struct native_chain),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = chain_slots,
};
