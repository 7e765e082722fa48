/* _native_launcher.h: a Launcher, for launches of decorated functions. */
#ifndef AOTC_NATIVE_LAUNCHER_H
#define AOTC_NATIVE_LAUNCHER_H

#include "_native.h"

enum { MAX_NAMES = 2 * LIMIT_PARAMS };

struct native_launcher {
    PyObject_HEAD struct native_state *state;
    PyObject *names;    /* of parameters, then of options; interned */
    PyObject *defaults; /* of parameters */
    PyObject *hooks;    /* a list: called before each launch */
    PyObject *refusals; /* exceptions that lead to the next candidate */
    PyObject *unbound;  /* parameters, each None */
    PyObject *known;    /* capsules by keys */
    PyObject *last_key, *last;
    uint32_t param_count, name_count;
    uint8_t *kinds;  /* key_kind of each name */
    PyObject **unpassed; /* the default for each name, borrowed */
    PyObject *last_keywords;  /* of the last call with any, or NULL: a call's names are its code's */
    uint16_t *keyword_places; /* of the names in it */
    PyObject *fixed; /* of parameters: values with kernels of their own, or None */
};

/* Return whether an object is a number, a string or None: they run no foreign code. */
bool native_is_plain(PyObject *object);

/* Return whether two values of a constant are certainly the same; runs no foreign code. */
bool native_is_same(PyObject *a, PyObject *b);

/* The index of a parameter or an option, -1 if there is none of that name. */
int64_t native_launcher_find(const struct native_launcher *self, PyObject *name);

/* Bind a call's arguments to MAX_NAMES objects, borrowed; missing ones get their default, options
 * None. 0 or -1. */
int native_launcher_bind(struct native_launcher *self, PyObject *const *args,
                         Py_ssize_t count, PyObject *keywords, PyObject **objects);

/* Launch the bound objects; a callable grid is called. `known` has the tensors already read, if no
 * foreign code ran since: one for each name, or NULL. 0 or -1. */
int native_launcher_launch(struct native_launcher *self, PyObject *const *objects,
                           const struct known_tensor *known, PyObject *grid);

/* Make an object of a type whose objects live for a launch, in the memory of the previous one: the
 * allocator takes longer than all lookups of a launch. Its fields are zero. NULL with an exception. */
PyObject *native_make_spare(PyObject **spare, PyTypeObject *type);

/* Free such an object, untracked by the collector and with zero fields; keep its memory for the
 * next one while the module exists. */
void native_let_spare(PyObject **spare, PyObject *object, bool is_kept);
void native_free_spare(PyObject **spare);

#endif
