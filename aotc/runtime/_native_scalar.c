/* _native_scalar.c: Python's numbers as scalars of the kernel, and as values of choices and
 * configs.
 *
 * Nothing is wrapped or truncated: a number that the dtype cannot hold is an error. Floating values
 * are rounded to nearest, ties to even, once, from Python's float64; rounding a finite value to
 * infinity is an error, infinity itself is not (unless the dtype has none).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "_native.h"

/* ---- integers ------------------------------------------------------------------------------- */

static const struct {
    int64_t min;
    uint64_t max;
} ranges[] = {
    [AOTC_I1] = {0, 1},
    [AOTC_I8] = {INT8_MIN, INT8_MAX},
    [AOTC_I16] = {INT16_MIN, INT16_MAX},
    [AOTC_I32] = {INT32_MIN, INT32_MAX},
    [AOTC_I64] = {INT64_MIN, INT64_MAX},
    [AOTC_U8] = {0, UINT8_MAX},
    [AOTC_U16] = {0, UINT16_MAX},
    [AOTC_U32] = {0, UINT32_MAX},
    [AOTC_U64] = {0, UINT64_MAX},
};

static struct aotci_text object_text(PyObject *object) {
    PyObject *type = PyErr_Occurred() ? NULL : PyObject_Repr(object);
    const char *text = type == NULL ? NULL : PyUnicode_AsUTF8(type);
    const struct aotci_text result =
        text == NULL ? native_type_text(object) : aotci_text("%.100s", text);
    Py_XDECREF(type);
    PyErr_Clear();
    return result;
}

static int out_of_range(const struct launch *launch, uint32_t index, uint32_t dtype,
                        PyObject *object) {
    PyErr_Clear();
    return native_bad_argument(launch, index,
                               aotci_text("an %s, %" PRId64 " to %" PRIu64,
                                          aotc_dtype_name((aotc_dtype)dtype), ranges[dtype].min,
                                          ranges[dtype].max)
                                   .chars,
                               object_text(object).chars, NULL);
}

static int not_a_number(const struct launch *launch, uint32_t index, uint32_t dtype,
                        PyObject *object) {
    const bool is_tensor =
        native_tensor_type(launch->state, Py_TYPE(object))->protocol != PROTOCOL_NONE;
    PyErr_Clear();
    return native_bad_argument(
        launch, index, aotci_text("a number for %s", aotc_dtype_name((aotc_dtype)dtype)).chars,
        native_type_text(object).chars,
        is_tensor ? "a tensor's value is on the GPU: pass a number, such as x.item()" : NULL);
}

/* numpy.bool has no __index__, on purpose; with its two names it is the only other boolean. */
static bool is_numpy_bool(PyObject *object) {
    const char *name = Py_TYPE(object)->tp_name;
    return strcmp(name, "numpy.bool") == 0 || strcmp(name, "numpy.bool_") == 0;
}

static int read_integer(struct launch *launch, uint32_t index, PyObject *object, uint32_t dtype,
                        uint64_t *bits) {
    int overflow; /* set only by the call: see _native_kernel.c */
    PyObject *number = NULL;
    if (PyLong_Check(object)) {
        number = Py_NewRef(object);
    } else if (dtype == AOTC_I1 && is_numpy_bool(object)) {
        number = PyBool_FromLong(PyObject_IsTrue(object) == 1);
    } else if (native_tensor_type(launch->state, Py_TYPE(object))->protocol == PROTOCOL_NONE) {
        /* __index__ of a tensor would wait for the GPU. */
        launch->known = NULL;
        number = PyNumber_Index(object);
    }
    if (number == NULL) {
        return not_a_number(launch, index, dtype, object);
    }
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    uint64_t wide = (uint64_t)value;
    bool fits =
        overflow == 0 && value >= ranges[dtype].min && (value < 0 || wide <= ranges[dtype].max);
    if (overflow > 0 && dtype == AOTC_U64) {
        wide = PyLong_AsUnsignedLongLong(number);
        fits = !PyErr_Occurred();
    }
    Py_DECREF(number);
    *bits = wide;
    return fits ? 0 : out_of_range(launch, index, dtype, object);
}

/* ---- floating ------------------------------------------------------------------------------- */

struct float_format {
    int mantissa_bits;
    int bias;
    uint64_t max_bits; /* greatest finite value */
    uint64_t inf_bits; /* 0: there is no infinity */
    uint64_t nan_bits;
    uint64_t sign_bit;
};

static const struct float_format formats[] = {
    [AOTC_FP16] = {10, 15, 0x7BFF, 0x7C00, 0x7E00, 0x8000},
    [AOTC_BF16] = {7, 127, 0x7F7F, 0x7F80, 0x7FC0, 0x8000},
    [AOTC_FP8E4NV] = {3, 7, 0x7E, 0, 0x7F, 0x80},
    [AOTC_FP8E5] = {2, 15, 0x7B, 0x7C, 0x7E, 0x80},
};

/* Round to a format; false if a finite value overflows, or infinity does not exist. */
static bool round_to_format(double value, const struct float_format *format, uint64_t *bits) {
    const uint64_t sign = signbit(value) ? format->sign_bit : 0;
    const double magnitude = fabs(value);
    uint64_t result = 0;
    if (isnan(value)) {
        result = format->nan_bits;
    } else if (isinf(value)) {
        result = format->inf_bits;
        if (result == 0) {
            return false;
        }
    } else if (magnitude != 0) {
        int exponent = 0;
        (void)frexp(magnitude, &exponent);
        /* The exponent of the leading bit; below the least normal one the spacing is constant.
         */
        const int least = 1 - format->bias;
        const int scale = exponent - 1 < least ? least : exponent - 1;
        const double steps = rint(ldexp(magnitude, format->mantissa_bits - scale));
        /* A normal number has its leading bit in `steps`, so the exponent counts one less; a carry
         * out of the mantissa raises the exponent on its own. */
        result = ((uint64_t)(scale + format->bias - 1) << format->mantissa_bits) + (uint64_t)steps;
        if (scale + format->bias - 1 > 0xFFF || result > format->max_bits) {
            return false;
        }
    }
    *bits = sign | result;
    return true;
}

static int read_float(struct launch *launch, uint32_t index, PyObject *object, uint32_t dtype,
                      uint64_t *bits) {
    double value = 0;
    bool fits = true;
    if (PyFloat_CheckExact(object)) {
        value = PyFloat_AS_DOUBLE(object);
    } else if (!PyLong_Check(object) &&
               native_tensor_type(launch->state, Py_TYPE(object))->protocol != PROTOCOL_NONE) {
        return not_a_number(launch, index, dtype,
                            object); /* __float__ of a tensor would wait for the GPU */
    } else {
        launch->known = PyLong_CheckExact(object) ? launch->known : NULL;
        value = PyFloat_AsDouble(object);
        if (value == -1.0 && PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
                return not_a_number(launch, index, dtype, object);
            }
            fits = false;
        }
    }
    *bits = 0;
    if (dtype == AOTC_FP64) {
        memcpy(bits, &value, sizeof value);
    } else if (dtype == AOTC_FP32) {
        const float narrow = (float)value;
        fits = fits && (!isinf(narrow) || isinf(value));
        memcpy(bits, &narrow, sizeof narrow);
    } else {
        fits = fits && round_to_format(value, &formats[dtype], bits);
    }
    if (!fits) {
        PyErr_Clear();
        return native_bad_argument(
            launch, index,
            aotci_text("a number in the range of %s", aotc_dtype_name((aotc_dtype)dtype)).chars,
            object_text(object).chars, NULL);
    }
    return 0;
}

int native_read_scalar(struct launch *launch, uint32_t index, PyObject *object, uint32_t dtype) {
    aotc_arg *arg = &launch->args[index];
    arg->kind = AOTC_SCALAR;
    arg->dtype = dtype;
    if (PyTuple_Check(object)) {
        PyObject *number = NULL;
        uint32_t given = AOTC_DTYPE_NONE;
        const int is_pair = native_split_pair(launch, index, object, &number, &given);
        if (is_pair < 0) {
            return -1;
        }
        if (is_pair) {
            arg->dtype = given; /* the C library compares it with the param's */
            dtype = given;
            object = number;
        }
    }
    return dtype >= AOTC_FP16 ? read_float(launch, index, object, dtype, &arg->as.bits)
                              : read_integer(launch, index, object, dtype, &arg->as.bits);
}

/* ---- pairs of a value and a dtype ----------------------------------------------------------- */

static int unknown_dtype(const struct launch *launch, uint32_t index, const char *given) {
    struct aotci_text names = {""};
    for (uint32_t i = AOTC_I1; i <= AOTC_FP8E5; ++i) {
        aotci_text_add(&names, "%s%s", i == AOTC_I1 ? "" : ", ", aotc_dtype_name((aotc_dtype)i));
    }
    PyErr_Clear();
    return native_bad_argument(launch, index, aotci_text("a dtype, one of %s", names.chars).chars,
                               given, NULL);
}

int native_split_pair(const struct launch *launch, uint32_t index, PyObject *object,
                      PyObject **value, uint32_t *dtype) {
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2 ||
        !PyUnicode_Check(PyTuple_GET_ITEM(object, 1))) {
        return 0;
    }
    const char *given = native_chars(PyTuple_GET_ITEM(object, 1));
    for (uint32_t i = AOTC_I1; given != NULL && i <= AOTC_FP8E5; ++i) {
        if (strcmp(aotc_dtype_name((aotc_dtype)i), given) == 0) {
            *value = PyTuple_GET_ITEM(object, 0);
            *dtype = i;
            return 1;
        }
    }
    PyErr_Clear();
    return unknown_dtype(launch, index, object_text(PyTuple_GET_ITEM(object, 1)).chars);
}

/* ---- values of choices and configs
 * --------------------------------------------------------------- */

int native_read_value(const struct launch *launch, const char *what, PyObject *name,
                      PyObject *object, aotc_value *value) {
    const char *text = PyUnicode_Check(name) ? native_chars(name) : NULL;
    if (object == Py_None) {
        *value = aotc_null_value(text);
    } else if (PyBool_Check(object)) {
        *value = aotc_bool_value(text, object == Py_True);
    } else if (PyUnicode_Check(object)) {
        *value = aotc_string_value(text, native_chars(object));
    } else if (PyFloat_Check(object)) {
        *value = aotc_float_value(text, PyFloat_AS_DOUBLE(object));
    } else {
        PyObject *number = PyNumber_Index(object);
        *value = aotc_int_value(text, number == NULL ? 0 : PyLong_AsLongLong(number));
        Py_XDECREF(number);
    }
    if (text != NULL && !PyErr_Occurred()) {
        return 0;
    }
    PyErr_Clear();
    return NATIVE_FAIL(launch->state, AOTC_ERROR_ARG, .file = launch->kernel->handle->path,
                       .kernel = PyUnicode_AsUTF8(launch->kernel->name),
                       .field = aotci_text("%s '%s'", what, text == NULL ? "?" : text).chars,
                       .expected = "a bool, an integer of 64 bits, a float, a string without NUL or None",
                       .got = PyUnicode_Check(object) ? object_text(object).chars
                                                      : native_type_text(object).chars);
}
