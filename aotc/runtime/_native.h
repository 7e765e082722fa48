/* _native.h: the parts of the extension module aotc.runtime._native.
 *
 *     _native.c           the module, its state, and errors as Python exceptions
 *     _native_archive.c   Archive: open, load, close
 *     _native_kernel.c    Kernel: convert the arguments of a call, launch
 *     _native_launcher.c  launches as Triton programs write them: from a call to a specialization
 *     _native_chain.c     the same for functions with an autotuner or heuristics
 *     _native_tuned.c     the autotuner's choices for such functions
 *     _native_specialization.c  the candidate kernels of such a launch
 *     _native_bind.c      keywords of a call, bound to arguments, choices and options
 *     _native_describe.c  the description of a kernel, as tuples
 *     _native_map.c       maps of tensors, for kernels with maps in memory
 *     _native_plan.c      a driver that records a launch
 *     _native_tensor.c    pointers and shapes of the caller's tensors
 *     _native_torch.c     the same for torch before the C exchange table
 *     _native_cuda_array.c  the same for __cuda_array_interface__
 *     _native_dlpack.c    the same for DLPack: capsules and the C exchange table
 *     _native_scalar.c    numbers, and the values of choices and configs
 *     _native_stream.c    streams, and the context of a launch
 *
 * The module is compiled together with the C library and uses two of its private headers: error.h,
 * so that messages of both read alike, and load.h, to see the state loaded for a device.
 *
 * A launch holds Python's lock from beginning to end, so nothing here needs locks of its own. But
 * any call into Python may let other threads run, and one of them may close the archive: after the
 * arguments are converted and before the C library is called, `handle->archive` is checked again.
 * Until then no data of the archive is read; a kernel has its own copy of the data for binding.
 */
#ifndef AOTC_NATIVE_H
#define AOTC_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_native_dlpack.h"
#include "error.h"
#include "load.h"

/* ---- the module ----------------------------------------------------------------------------- */

enum protocol {
    PROTOCOL_NONE = 0,   /* not a tensor */
    PROTOCOL_EXCHANGE,   /* DLPack's C exchange table: one C call, no Python */
    PROTOCOL_TORCH,      /* torch before the exchange table: methods of torch.Tensor */
    PROTOCOL_CUDA_ARRAY, /* __cuda_array_interface__ */
    PROTOCOL_DLPACK,     /* __dlpack__ */
    PROTOCOL_POINTER,    /* data_ptr(), and a dtype */
};

/* A type seen in a launch. */
struct tensor_type {
    PyTypeObject *type; /* owned; NULL: an empty slot */
    enum protocol protocol;
    bool has_dlpack, has_data_ptr;
    const struct dl_exchange *exchange;
};

enum { TYPE_PLACES = 64, TORCH_DTYPES = 16 };

/* Attributes of a torch without the exchange table. All owned; NULL until one of its tensors is
 * seen.
 */
struct torch_access {
    PyObject *tensor, *data_ptr, *get_device, *dtype, *shape, *stride;
    PyObject *current_raw_stream;
    struct {
        PyObject *object;
        uint32_t dtype;
    } dtypes[TORCH_DTYPES];
    uint32_t dtype_count;
};

struct native_names {
    PyObject *cuda_array_interface, *dlpack, *dlpack_device, *exchange, *data_ptr, *dtype;
    PyObject *data, *typestr, *shape, *strides, *stream, *max_version;
    PyObject *cuda_stream, *ptr, *cuda_stream_protocol;
    PyObject *grid, *config;
};

struct native_state {
    PyTypeObject *archive_type;
    PyTypeObject *kernel_type;
    PyTypeObject *launcher_type, *grid_launch_type, *chain_type, *chain_launch_type;
    PyTypeObject *subscript_type, *jitted_type, *chained_type;
    PyObject *spare_grid_launch, *spare_chain_launch; /* reused next: native_make_spare */
    PyObject *make_error; /* aotc.runtime.errors.make */
    PyObject *describe;   /* aotc.runtime.info, imported on demand */
    PyObject *dlpack_keywords, *dlpack_versioned_keywords; /* ("stream",) and with "max_version" */
    PyObject *dlpack_version;                              /* (1, 3) */
    struct native_names names;
    struct torch_access torch;
    struct tensor_type types[TYPE_PLACES];
};

extern struct PyModuleDef native_module;

/* The state of this module, found from one of its types or a derived class; NULL with an exception
 * if the module is gone. */
struct native_state *native_state_of(const PyTypeObject *type);

/* Take the current exception, complete with its traceback, or NULL. */
PyObject *native_take_exception(void);

/* Raise the exception for an error; a current exception becomes its cause. Returns -1. */
int native_raise(struct native_state *state, const aotc_error *error);

/* Raise an exception for an error found in this module. Returns -1. */
int native_fail(struct native_state *state, aotc_status status, const struct aotci_detail *detail);

#define NATIVE_FAIL(state, status, ...)                                                            \
    native_fail((state), (status), &(struct aotci_detail){__VA_ARGS__})

/* ---- archives and kernels ------------------------------------------------------------------- */

/* An open archive, shared by its Archive and Kernels and counted under Python's lock. */
struct native_handle {
    Py_ssize_t references;
    aotc_archive *archive; /* NULL once closed */
    PyObject *decompress;  /* callable: (frame, size_bytes) -> bytes */
    char *path;            /* for messages */
};

void native_handle_release(struct native_handle *handle);

/* Hold the archive, unless it is closed (NULL), while Python objects are made of its data: that may
 * start a collection, whose finalizers may close the library. Then release it. */
aotc_archive *native_hold(const struct native_handle *handle);
void native_let_go(aotc_archive *archive);

struct kernel_param {
    PyObject *name; /* interned */
    uint8_t kind;   /* aotc_param_kind */
    uint8_t dtype;  /* AOTC_DTYPE_NONE if the type variable determines it */
    uint8_t rank;
    uint8_t access;
    int8_t type_variable; /* -1 if the dtype is fixed */
    bool is_nullable;     /* None is a null pointer */
};

struct kernel_variable {
    uint8_t dtype_count;
    uint8_t dtypes[16];
};

struct native_kernel {
    PyObject_HEAD vectorcallfunc vectorcall;
    struct native_state *state;
    struct native_handle *handle;
    const aotc_kernel *kernel; /* valid while handle->archive is */
    PyObject *name;
    uint32_t param_count;
    uint32_t choice_count;
    uint32_t type_variable_count;
    struct kernel_param *params;
    PyObject **choice_names; /* interned */
    struct kernel_variable variables[LIMIT_TYPE_VARIABLES];
};

/* Load a kernel, or all, of an open archive; without Python's lock. 0 or -1. */
int native_load(struct native_state *state, struct native_handle *handle,
                aotc_load_options *options);

extern PyType_Spec native_archive_spec;
extern PyType_Spec native_kernel_spec;

/* Make the Python object of a kernel. */
PyObject *native_kernel_new(struct native_state *state, struct native_handle *handle,
                            const aotc_kernel *kernel);

/* A description of a kernel, as nested tuples (_native_describe.c). */
PyObject *native_describe(const struct native_kernel *self);

/* The 128 bytes of the tensor map of a tensor, for tiles of these extents (_native_map.c). */
PyObject *native_tensor_map(struct native_state *state, struct native_handle *handle,
                            PyObject *tensor, PyObject *block);

/* ---- launches of functions ------------------------------------------------------------------ */

struct known_tensor;

extern PyType_Spec native_launcher_spec;
extern PyType_Spec native_grid_launch_spec;
extern PyType_Spec native_subscript_spec;
extern PyType_Spec native_jitted_spec;
extern PyType_Spec native_chained_spec;
extern PyType_Spec native_chain_spec;
extern PyType_Spec native_chain_launch_spec;

/* Make a specialization of (candidates, telling). A candidate is (kernel, params, config, choices);
 * `params` maps each of the kernel's parameters to one of the `name_count` names. `telling` are the
 * parameters of the first candidate that distinguish the candidates. */
PyObject *native_specialization_new(struct native_state *state, uint32_t name_count,
                                    PyObject *answer);

/* Launch the objects bound to the names by the first candidate that does not refuse, with one of
 * the exceptions `refusals`. 0 or -1. */
int native_launch_specialized(PyObject *specialization, PyObject *const *objects,
                              const struct known_tensor *known, PyObject *grid, PyObject *refusals);

/* ---- plans ---------------------------------------------------------------------------------- */

/* A launch recorded by the driver of plans. Its address is the launch's stream, so the driver finds
 * it without globals. */
struct recorder {
    struct recorder *outer; /* of the enclosing plan, whose arguments are being read */
    const aotc_kernel *kernel;
    CUcontext context;
    bool is_launched;
    uint32_t variant; /* among all variants of the kernel */
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared_bytes;
    bool is_pdl, is_cooperative;
    uint64_t scratch, scratch_bytes; /* taken from the pool by the launch, and returned */
    bool is_scratch_returned;
    unsigned char params[LIMIT_PARAM_BYTES];
};

/* Prepare a kernel for plans on a GPU of a compute capability, with `at_once` resident program
 * instances of a persistent kernel, and record this thread's launches on `recorder` until the end.
 * 0 or -1. */
int native_plan_begin(const struct native_kernel *kernel, int major, int minor, int at_once,
                      struct recorder *recorder);
void native_plan_end(const struct recorder *recorder);

/* The recorded launch, as aotc.runtime.info.Plan; None if nothing was launched. */
PyObject *native_plan_object(const struct native_kernel *kernel, const struct recorder *recorder);

/* ---- a launch ------------------------------------------------------------------------------- */

/* A tensor as read before the launch, and its type's table; a tensor without lanes was not read. */
struct known_tensor {
    struct dl_tensor tensor;
    const struct dl_exchange *exchange;
};

/* An argument of kind TENSOR for the C library, with its shape. */
struct tensor_storage {
    aotc_tensor tensor;
    int64_t shape[LIMIT_RANK];
    int64_t strides[LIMIT_RANK];
};

/* A launch under construction. It is large and lives on the stack, so `native_begin` clears only
 * the necessary fields. */
struct launch {
    struct native_kernel *kernel;
    struct native_state *state;
    bool is_deferred; /* some arguments wait for the stream or for others' dtypes */
    bool reads_base;  /* read only a tensor's memory: its shape is given separately */
    bool has_stream;  /* the caller names the stream */
    bool has_vote;    /* an argument names the stream */
    uint32_t voter;
    const void *asked; /* the table with a known current stream */
    uintptr_t stream;
    int32_t device; /* of the tensors; -1: unknown */
    uint32_t device_param;
    uint32_t choice_count;
    uint32_t choices_given; /* a bit for each */
    uint32_t options_given; /* of stream, grid, config */
    uint32_t config_count;
    uint32_t held_count;
    uint32_t tensor_count;
    uint32_t flags;
    uint32_t grid_rank;
    int64_t grid[3];
    void *scratch;
    uint64_t scratch_bytes;
    uint8_t bound[LIMIT_TYPE_VARIABLES];
    const struct known_tensor *known; /* tensors already read, indexed by `places`; NULL once other
                                       * code may run */
    const uint16_t *places;
    PyObject *objects[LIMIT_PARAMS]; /* borrowed; NULL: not given */
    aotc_arg args[LIMIT_PARAMS];
    aotc_value choices[LIMIT_CHOICES];
    aotc_value config[LIMIT_CONFIG_ENTRIES];
    PyObject *held[LIMIT_PARAMS + 3]; /* capsules, args, config, choices: owned until the launch is
                                       * over */
    struct tensor_storage tensors[LIMIT_PARAMS];
};

/* Prepare a launch; release its references. */
void native_begin(struct launch *launch, struct native_kernel *kernel);
void native_end(struct launch *launch);

/* Bind a call's arguments: by position, by keyword, or all of `launch(args)`. 0 or -1. */
int native_bind_positional(struct launch *launch, PyObject *const *args, Py_ssize_t count);
int native_bind_keyword(struct launch *launch, PyObject *name, PyObject *object);
int native_bind_collection(struct launch *launch, PyObject *args);

/* Convert the bound arguments; then launch, or only select if there is a selection to fill. 0 or
 * -1. */
int native_convert(struct launch *launch);
int native_run(struct launch *launch, aotc_selection *selection);

/* Read the options of a launch; None means absent. 0 or -1. */
int native_read_grid(struct launch *launch, PyObject *object);

/* Read a tuple of integers, without running foreign code; false if it is not a valid one. */
bool native_read_plain_grid(struct launch *launch, PyObject *object);
int native_read_config(struct launch *launch, PyObject *object);
int native_read_choices(struct launch *launch, PyObject *object);
int native_read_scratch(struct launch *launch, PyObject *object);

/* Report a wrong number of arguments. Returns -1. */
int native_wrong_count(const struct launch *launch, Py_ssize_t count);

/* Report a wrong argument. Returns -1. */
int native_bad_argument(const struct launch *launch, uint32_t index, const char *expected,
                        const char *got, const char *remedy);

/* Report an exception raised by an argument; the exception becomes the cause. Exceptions other than
 * errors, such as KeyboardInterrupt, propagate. Returns -1. */
int native_bad_protocol(const struct launch *launch, uint32_t index, const char *expected);

/* "int", "torch.Tensor": the type of an object, for messages. */
struct aotci_text native_type_text(PyObject *object);

/* The characters of a string, borrowed from it. NULL with an exception if it has a NUL, which C
 * would take for its end, or is not a string, or cannot be encoded. */
const char *native_chars(PyObject *string);

/* ---- tensors -------------------------------------------------------------------------------- */

/* The properties of a tensor. */
struct tensor_view {
    uint64_t address;
    uint32_t dtype; /* AOTC_DTYPE_NONE: no kernel has it; `dtype_text` names it */
    struct aotci_text dtype_text;
    int32_t device; /* -1: unknown */
    bool is_read_only;
};

/* Classify a type. Never NULL; valid until the next call. */
const struct tensor_type *native_tensor_type(struct native_state *state, PyTypeObject *type);

/* Return whether an object is memory, by its type or its own __cuda_array_interface__. */
bool native_is_memory(struct native_state *state, PyObject *object);

/* Return whether shape and strides are read from an argument's object. */
static inline bool native_has_shape(const struct launch *launch, uint32_t index) {
    return launch->kernel->params[index].kind == AOTC_TENSOR && !launch->reads_base;
}

/* Read an argument of kind POINTER or TENSOR, or defer it if it needs the stream. 0 or -1. */
int native_read_tensor(struct launch *launch, uint32_t index, PyObject *object);

/* Return whether a type is torch.Tensor or derived from it, in an imported torch. */
bool native_is_torch(struct native_state *state, PyTypeObject *type);

/* Read an argument that is a tensor of torch. 0 or -1. */
/* Whether the GPU can access a tensor in host memory: torch's `is_pinned()`. */
bool native_is_pinned(PyObject *object);

int native_read_torch(struct launch *launch, uint32_t index, PyObject *object);

/* Read an argument by data_ptr() if its dtype has a known name. 1, 0 if not, or -1. */
int native_prefer_pointer(struct launch *launch, uint32_t index, PyObject *object);

/* Read an argument with data_ptr() and the name of its dtype. 0 or -1. */
int native_read_pointer(struct launch *launch, uint32_t index, PyObject *object);

/* Read an argument through __cuda_array_interface__; defer it if that lacks its dtype and there is
 * DLPack. 0 or -1. */
int native_read_cuda_array(struct launch *launch, uint32_t index, PyObject *object,
                           bool has_dlpack);

/* Read an argument through __dlpack__, in `launch->stream`. 0 or -1. */
int native_read_dlpack(struct launch *launch, uint32_t index, PyObject *object);

/* Read an argument through its type's exchange table; take one already read. 0 or -1. */
int native_read_exchange(struct launch *launch, uint32_t index, PyObject *object,
                         const struct dl_exchange *exchange);
int native_take_known(struct launch *launch, uint32_t index, const struct known_tensor *known);

/* The exchange table of a type, or NULL; sets no exception. */
const struct dl_exchange *native_find_exchange(struct native_state *state, PyTypeObject *type);

/* Store a tensor's address, dtype and device. 0 or -1. */
int native_take_view(struct launch *launch, uint32_t index, const struct tensor_view *view);

/* Make room for an argument of kind TENSOR, whose shape and strides the caller then fills; NULL if
 * `rank` is not the param's. */
struct tensor_storage *native_take_shape(struct launch *launch, uint32_t index, uint32_t rank);

/* Read a tuple of `count` integers; a Python exception on failure. 0 or -1. */
int native_read_integers(PyObject *tuple, uint32_t count, int64_t *values);

/* The required kind of an argument, for messages: "a pointer to fp16 or bf16". */
struct aotci_text native_expected_tensor(const struct launch *launch, uint32_t index);

/* Fill in the strides of a tensor without gaps, in elements. */
void native_contiguous_strides(struct tensor_storage *storage);

/* ---- scalars, values, dtypes ---------------------------------------------------------------- */

/* Read a number as a scalar of a dtype. 0 or -1. */
int native_read_scalar(struct launch *launch, uint32_t index, PyObject *object, uint32_t dtype);

/* Split (value, "dtype"). 1 if it is such a pair, 0 if not, -1 for an invalid dtype.
 */
int native_split_pair(const struct launch *launch, uint32_t index, PyObject *object,
                      PyObject **value, uint32_t *dtype);

/* Read a choice's value or a config entry; `name` and strings are borrowed. 0 or -1. */
int native_read_value(const struct launch *launch, const char *what, PyObject *name,
                      PyObject *object, aotc_value *value);

/* ---- streams and contexts ------------------------------------------------------------------- */

/* Read the caller's stream: a number or an object. 0 or -1. */
int native_read_stream(struct launch *launch, PyObject *object);

/* Record an argument's stream; an error if it conflicts with another argument's. 0 or -1. */
int native_vote_stream(struct launch *launch, uint32_t index, uintptr_t stream);

/* Record an argument's device; an error if it conflicts with another argument's. 0 or -1. */
int native_note_device(struct launch *launch, uint32_t index, int32_t device);

/* Make the context of the launch's device current; `entered` tells whether to call `native_leave`.
 * Calls no Python code except on failure. 0 or -1. */
int native_enter(const struct launch *launch, bool *entered);
void native_leave(const struct launch *launch);

#endif
