/* expression.c: check and run the bytecode of integer expressions.
 *
 * The table of opcodes is docs/reference/archive-format.md, section 6. Arithmetic is on 64-bit
 * integers, and an overflow or a division by zero ends the evaluation: no value ever wraps.
 */
#include "expression.h"

#include <string.h>

/* `pops` is one more than the number of popped values, so zero marks an invalid opcode. */
static const struct {
    uint8_t pops;
    uint8_t operand_bytes;
} opcodes[OPCODE_COUNT] = {
    [OP_CONST8] = {1, 1}, [OP_CONST32] = {1, 4},  [OP_CONST64] = {1, 8}, [OP_ARG] = {1, 2},
    [OP_SHAPE] = {1, 3},  [OP_STRIDE] = {1, 3},   [OP_ADD] = {3, 0},     [OP_SUB] = {3, 0},
    [OP_MUL] = {3, 0},    [OP_FLOORDIV] = {3, 0}, [OP_MOD] = {3, 0},     [OP_MIN] = {3, 0},
    [OP_MAX] = {3, 0},    [OP_CDIV] = {3, 0},     [OP_NEG] = {2, 0},     [OP_EQ] = {3, 0},
    [OP_NE] = {3, 0},     [OP_LT] = {3, 0},       [OP_LE] = {3, 0},      [OP_GT] = {3, 0},
    [OP_GE] = {3, 0},     [OP_AND] = {3, 0},      [OP_OR] = {3, 0},      [OP_NOT] = {2, 0},
};

int64_t aotci_load_constant(const unsigned char *operand, unsigned operand_bytes) {
    int8_t narrow = 0;
    int32_t medium = 0;
    int64_t wide = 0;
    switch (operand_bytes) {
    case 1:
        memcpy(&narrow, operand, sizeof narrow);
        return narrow;
    case 4:
        memcpy(&medium, operand, sizeof medium);
        return medium;
    default:
        memcpy(&wide, operand, sizeof wide);
        return wide;
    }
}

static bool is_shortest(int64_t constant, unsigned operand_bytes) {
    const bool fits_narrow = constant >= INT8_MIN && constant <= INT8_MAX;
    const bool fits_medium = constant >= INT32_MIN && constant <= INT32_MAX;
    return operand_bytes == (fits_narrow ? 1u : fits_medium ? 4u : 8u);
}

const char *aotci_expression_check(const unsigned char *code, uint32_t code_bytes,
                                   uint32_t stack_depth) {
    uint32_t depth = 0;
    uint32_t deepest = 0;
    for (uint32_t at = 0; at < code_bytes;) {
        const unsigned opcode = code[at++];
        if (opcode >= OPCODE_COUNT || opcodes[opcode].pops == 0) {
            return aotci_refused("an unknown opcode");
        }
        const unsigned operand_bytes = opcodes[opcode].operand_bytes;
        if (operand_bytes > code_bytes - at) {
            return aotci_refused("an operand that is cut short");
        }
        if (opcode <= OP_CONST64 &&
            !is_shortest(aotci_load_constant(code + at, operand_bytes), operand_bytes)) {
            return aotci_refused("a constant that has a shorter form");
        }
        at += operand_bytes;
        const uint32_t pops = opcodes[opcode].pops - 1u;
        if (depth < pops) {
            return aotci_refused("an operator without its operands");
        }
        depth = depth - pops + 1;
        if (depth > LIMIT_STACK) {
            return aotci_refused("a stack above 32");
        }
        deepest = depth > deepest ? depth : deepest;
    }
    if (depth != 1) {
        return aotci_refused("a program that does not end with one value");
    }
    if (deepest != stack_depth) {
        return aotci_refused("another stack depth than it says");
    }
    return NULL;
}

static bool is_floating(unsigned dtype) { return dtype >= AOTC_FP16; }

static bool may_be_floating(const struct aotci_tables *tables, const struct kernel_record *kernel,
                            const struct param_record *param) {
    if (param->type_variable == 0) {
        return is_floating(param->dtype);
    }
    const struct type_variable_record *variable =
        aotci_type_variable(tables, kernel->first_type_variable + param->type_variable - 1u);
    for (unsigned i = 0; i < variable->dtype_count; ++i) {
        if (is_floating(variable->dtypes[i])) {
            return true;
        }
    }
    return false;
}

const char *aotci_expression_check_params(const struct aotci_tables *tables,
                                          const struct kernel_record *kernel,
                                          const struct expression_record *expression) {
    const unsigned char *code = aotci_record(tables, SECTION_CODE, expression->code_offset);
    for (uint32_t at = 0; at < expression->code_bytes;) {
        const unsigned opcode = code[at++];
        const unsigned char *operand = code + at;
        at += opcodes[opcode].operand_bytes;
        if (opcode < OP_ARG || opcode > OP_STRIDE) {
            continue;
        }
        const unsigned index = aotci_load_param(operand);
        if (index >= kernel->param_count) {
            return aotci_refused("an expression over a param that the kernel does not have");
        }
        const struct param_record *param = aotci_param(tables, kernel->first_param + index);
        if (opcode == OP_ARG) {
            if (param->kind == AOTC_SCALAR && may_be_floating(tables, kernel, param)) {
                return aotci_refused("an expression over a floating scalar");
            }
        } else if (param->kind != AOTC_TENSOR || operand[2] >= param->rank) {
            return aotci_refused("an expression over a dimension that the param does not have");
        }
    }
    return NULL;
}

static const char *const overflow = "an overflow";
static const char *const division_by_zero = "a division by zero";

/* Quotient rounded down and remainder with the divisor's sign. Most divisors are powers of two and
 * use a shift, which keeps the sign with every known compiler. */
static const char *divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder) {
    if (b > 0 && (b & (b - 1)) == 0) {
        *quotient = a >> __builtin_ctzll((unsigned long long)b);
        *remainder = a & (b - 1);
        return NULL;
    }
    if (b == 0) {
        return division_by_zero;
    }
    if (b == -1) {
        *remainder = 0;
        return __builtin_sub_overflow(INT64_C(0), a, quotient) ? overflow : NULL;
    }
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
    return NULL;
}

static const char *apply(unsigned opcode, int64_t a, int64_t b, int64_t *value) {
    int64_t other = 0;
    const char *failure = NULL;
    switch (opcode) {
    case OP_ADD:
        return __builtin_add_overflow(a, b, value) ? overflow : NULL;
    case OP_SUB:
        return __builtin_sub_overflow(a, b, value) ? overflow : NULL;
    case OP_MUL:
        return __builtin_mul_overflow(a, b, value) ? overflow : NULL;
    case OP_FLOORDIV:
        return divide(a, b, value, &other);
    case OP_MOD:
        failure = divide(a, b, &other, value);
        return failure == overflow ? NULL : failure; /* modulo -1 is 0, whatever the quotient */
    case OP_CDIV:
        failure = divide(a, b, value, &other);
        *value +=
            failure == NULL && other != 0; /* rounded, so not the greatest quotient */
        return failure;
    case OP_MIN:
        *value = a < b ? a : b;
        return NULL;
    case OP_MAX:
        *value = a > b ? a : b;
        return NULL;
    case OP_EQ:
        *value = a == b;
        return NULL;
    case OP_NE:
        *value = a != b;
        return NULL;
    case OP_LT:
        *value = a < b;
        return NULL;
    case OP_LE:
        *value = a <= b;
        return NULL;
    case OP_GT:
        *value = a > b;
        return NULL;
    case OP_GE:
        *value = a >= b;
        return NULL;
    case OP_AND:
        *value = a != 0 && b != 0;
        return NULL;
    default: /* OP_OR: the program was checked */
        *value = a != 0 || b != 0;
        return NULL;
    }
}

/* The value of an opcode that loads from an argument. */
static inline const char *load(unsigned opcode, const unsigned char *operand, const aotc_arg *args,
                               int64_t *value) {
    const aotc_arg *arg = &args[aotci_load_param(operand)];
    if (opcode == OP_ARG) {
        return aotci_argument_value(arg, value) ? NULL : "a value above 2^63 - 1";
    }
    const aotc_tensor *tensor = arg->as.tensor;
    *value = (opcode == OP_SHAPE ? tensor->shape : tensor->strides)[operand[2]];
    return NULL;
}

/* Run the rest of a program, with one value on the stack or, before the first opcode, any. The
 * topmost value is in a variable of its own, and so in a register; the values below are in memory,
 * above one unused word. */
static const char *run(const unsigned char *code, const unsigned char *end, int64_t top,
                       const aotc_arg *args, int64_t *value) {
    int64_t stack[LIMIT_STACK];
    int64_t *below = stack;
    while (code != end) {
        const unsigned opcode = *code++;
        const unsigned char *operand = code;
        const char *failure = NULL;
        code += opcodes[opcode].operand_bytes;
        if (opcode <= OP_STRIDE) {
            *below++ = top;
            if (opcode <= OP_CONST64) {
                top = aotci_load_constant(operand, opcodes[opcode].operand_bytes);
            } else {
                failure = load(opcode, operand, args, &top);
            }
        } else if (opcode == OP_NEG) {
            failure = __builtin_sub_overflow(INT64_C(0), top, &top) ? overflow : NULL;
        } else if (opcode == OP_NOT) {
            top = top == 0;
        } else {
            failure = apply(opcode, *--below, top, &top);
        }
        if (failure != NULL) {
            return failure;
        }
    }
    *value = top;
    return NULL;
}

const char *aotci_evaluate(const struct aotc_kernel *kernel,
                           const struct expression_record *expression, const aotc_arg *args,
                           int64_t *value) {
    const unsigned char *code = aotci_record(&kernel->tables, SECTION_CODE, expression->code_offset);
    const unsigned char *end = code + expression->code_bytes;
    if (code[0] < OP_ARG || code[0] > OP_STRIDE) {
        return run(code, end, 0, args, value);
    }
    /* Fast path for most map operands: an argument or a size alone, or times a small number. */
    int64_t first = 0;
    const char *failure = load(code[0], code + 1, args, &first);
    code += code[0] == OP_ARG ? 3 : 4;
    if (failure != NULL) {
        return failure;
    }
    if (code == end) {
        *value = first;
        return NULL;
    }
    if (end - code == 3 && code[0] == OP_CONST8 && code[2] == OP_MUL) {
        return __builtin_mul_overflow(first, (int64_t)(int8_t)code[1], value) ? overflow : NULL;
    }
    return run(code, end, first, args, value);
}
