/* _native_describe.c: the C library's information on a kernel, as nested tuples.
 *
 * Plain data in a fixed order; aotc/runtime/info.py gives it names. Nothing here is fast.
 */
#include "_native.h"

static PyObject *value_object(const aotc_value *value) {
    switch (value->kind) {
    case AOTC_VALUE_BOOL:
        return PyBool_FromLong(value->as.integer != 0);
    case AOTC_VALUE_INT:
        return PyLong_FromLongLong(value->as.integer);
    case AOTC_VALUE_STRING:
        return PyUnicode_FromString(value->as.string);
    case AOTC_VALUE_FLOAT:
        return PyFloat_FromDouble(value->as.real);
    default:
        Py_RETURN_NONE;
    }
}

/* A tuple of `count` objects, each made by `make(kernel, owner, index)`. */
typedef PyObject *(*make_fn)(const aotc_kernel *kernel, uint32_t owner, uint32_t index);

static PyObject *make_tuple(const aotc_kernel *kernel, uint32_t owner, uint32_t count,
                            make_fn make) {
    PyObject *tuple = PyTuple_New(count);
    for (uint32_t i = 0; tuple != NULL && i < count; ++i) {
        PyObject *item = make(kernel, owner, i);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, item);
        }
    }
    return tuple;
}

static PyObject *make_param(const aotc_kernel *kernel, uint32_t owner, uint32_t index) {
    aotc_param_info info = {.struct_size = (uint32_t)sizeof info};
    (void)owner;
    (void)aotc_kernel_get_param(kernel, index, &info);
    return Py_BuildValue("(sIsiIIOIO)", info.name, info.kind,
                         aotc_dtype_name((aotc_dtype)info.dtype), (int)info.type_variable,
                         info.rank, info.divisibility, info.optional != 0 ? Py_True : Py_False,
                         info.access, info.nullable != 0 ? Py_True : Py_False);
}

static PyObject *make_type_variable(const aotc_kernel *kernel, uint32_t owner, uint32_t index) {
    aotc_type_variable_info info = {.struct_size = (uint32_t)sizeof info};
    (void)owner;
    (void)aotc_kernel_get_type_variable(kernel, index, &info);
    PyObject *dtypes = PyTuple_New(info.dtype_count);
    for (uint32_t i = 0; dtypes != NULL && i < info.dtype_count; ++i) {
        PyObject *name = PyUnicode_FromString(aotc_dtype_name((aotc_dtype)info.dtypes[i]));
        if (name == NULL) {
            Py_CLEAR(dtypes);
        } else {
            PyTuple_SET_ITEM(dtypes, i, name);
        }
    }
    return dtypes == NULL ? NULL : Py_BuildValue("(sN)", info.name, dtypes);
}

static PyObject *make_choice_value(const aotc_kernel *kernel, uint32_t choice, uint32_t index) {
    aotc_value value;
    (void)aotc_kernel_get_choice_value(kernel, choice, index, &value);
    return value_object(&value);
}

static PyObject *make_choice(const aotc_kernel *kernel, uint32_t owner, uint32_t index) {
    aotc_choice_info info = {.struct_size = (uint32_t)sizeof info};
    (void)owner;
    (void)aotc_kernel_get_choice(kernel, index, &info);
    return Py_BuildValue("(sN)", info.name,
                         make_tuple(kernel, index, info.value_count, make_choice_value));
}

static PyObject *make_constant(const aotc_kernel *kernel, uint32_t owner, uint32_t index) {
    aotc_value value;
    (void)owner;
    (void)aotc_kernel_get_constant(kernel, index, &value);
    return Py_BuildValue("(sN)", value.name, value_object(&value));
}

static PyObject *make_guard(const aotc_kernel *kernel, uint32_t owner, uint32_t index) {
    aotc_guard_info info = {.struct_size = (uint32_t)sizeof info};
    (void)owner;
    (void)aotc_kernel_get_guard(kernel, index, &info);
    return Py_BuildValue("(ssO)", info.text, info.expression,
                         info.promised != 0 ? Py_True : Py_False);
}

static PyObject *make_config_entry(const aotc_kernel *kernel, uint32_t config, uint32_t index) {
    aotc_value value;
    (void)aotc_kernel_get_config_entry(kernel, config, index, &value);
    return Py_BuildValue("(sN)", value.name, value_object(&value));
}

static PyObject *make_config(const aotc_kernel *kernel, uint32_t owner, uint32_t index) {
    uint32_t entry_count = 0;
    (void)owner;
    (void)aotc_kernel_get_config_size(kernel, index, &entry_count);
    return make_tuple(kernel, index, entry_count, make_config_entry);
}

static PyObject *make_variant(const aotc_kernel *kernel, uint32_t owner, uint32_t index) {
    aotc_variant_info info = {.struct_size = (uint32_t)sizeof info};
    (void)owner;
    (void)aotc_kernel_get_variant(kernel, index, &info);
    return Py_BuildValue("(ssIKIIIIIIII(III)OssOO)", info.target, info.symbol, info.combination,
                         (unsigned long long)info.guards, info.config, info.num_threads,
                         info.registers, info.spill_bytes, info.stack_bytes,
                         info.static_shared_bytes, info.dynamic_shared_bytes, info.cubin_bytes,
                         info.cluster[0], info.cluster[1], info.cluster[2],
                         info.waits_pdl != 0 ? Py_True : Py_False, info.remarks,
                         info.condition == NULL ? "" : info.condition,
                         info.is_persistent != 0 ? Py_True : Py_False,
                         info.cooperative != 0 ? Py_True : Py_False);
}

PyObject *native_describe(const struct native_kernel *self) {
    const aotc_kernel *kernel = self->kernel;
    aotc_kernel_info info = {.struct_size = (uint32_t)sizeof info};
    (void)aotc_kernel_get_info(kernel, &info);
    return Py_BuildValue("(sINNNNNNNI)", info.name, info.grid_rank,
                         make_tuple(kernel, 0, info.param_count, make_param),
                         make_tuple(kernel, 0, info.type_variable_count, make_type_variable),
                         make_tuple(kernel, 0, info.choice_count, make_choice),
                         make_tuple(kernel, 0, info.constant_count, make_constant),
                         make_tuple(kernel, 0, info.guard_count, make_guard),
                         make_tuple(kernel, 0, info.config_count, make_config),
                         make_tuple(kernel, 0, info.variant_count, make_variant),
                         info.selection_count);
}
