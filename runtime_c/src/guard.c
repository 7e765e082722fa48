/* guard.c: decide conditions on the arguments of a launch.
 *
 * Nearly all of them are comparisons with constants, joined by `and`. These are extracted from the
 * bytecode when an archive is opened, and a launch decides one after another; any other condition
 * is evaluated. A condition without a value does not hold.
 */
#include "guard.h"

#include "expression.h"

static bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

/* A position in a program. */
struct cursor {
    const unsigned char *code;
    const unsigned char *end;
};

static bool take_opcode(struct cursor *cursor, unsigned opcode) {
    const bool found = cursor->code != cursor->end && *cursor->code == opcode;
    cursor->code += found;
    return found;
}

static bool take_constant(struct cursor *cursor, int64_t *value) {
    const unsigned opcode = cursor->code == cursor->end ? 0 : *cursor->code;
    if (opcode < OP_CONST8 || opcode > OP_CONST64) {
        return false;
    }
    const unsigned bytes = opcode == OP_CONST8 ? 1 : opcode == OP_CONST32 ? 4 : 8;
    *value = aotci_load_constant(cursor->code + 1, bytes);
    cursor->code += 1 + bytes;
    return true;
}

/* Read `load relation constant` or `load % 2^n == 0`. A checked program has all operands. */
static bool take_test(struct cursor *cursor, struct aotci_test *test) {
    const unsigned load = cursor->code == cursor->end ? 0 : *cursor->code;
    int64_t zero = 0;
    if (load < OP_ARG || load > OP_STRIDE) {
        return false;
    }
    const unsigned char *operand = cursor->code + 1;
    *test = (struct aotci_test){
        .param = (uint16_t)aotci_load_param(operand),
        .load = (uint8_t)load,
        .dim = load == OP_ARG ? 0 : operand[2],
    };
    cursor->code = operand + (load == OP_ARG ? 2 : 3);
    if (!take_constant(cursor, &test->constant) || cursor->code == cursor->end) {
        return false;
    }
    if (*cursor->code >= OP_EQ && *cursor->code <= OP_GE) {
        test->relation = *cursor->code++;
        return true;
    }
    test->relation = OP_MOD;
    if (!take_opcode(cursor, OP_MOD) || !is_power_of_two(test->constant)) {
        return false;
    }
    test->constant -= 1;
    return take_constant(cursor, &zero) && zero == 0 && take_opcode(cursor, OP_EQ);
}

uint32_t aotci_guard_compile(const struct aotc_kernel *kernel,
                             const struct expression_record *expression, struct aotci_test *tests) {
    const unsigned char *code = aotci_record(&kernel->tables, SECTION_CODE, expression->code_offset);
    struct cursor cursor = {code, code + expression->code_bytes};
    struct aotci_test test;
    uint32_t count = 0;
    /* A bit for each value on the stack, the topmost bit 0: set if the value is a single test. The
     * values below were joined by `and`, in any order. */
    uint64_t single = 0;
    while (cursor.code != cursor.end) {
        if (take_opcode(&cursor, OP_AND)) {
            single = single >> 2 << 1;
        } else if (take_opcode(&cursor, OP_OR)) {
            if ((single & 3) != 3) {
                return 0;
            }
            single = single >> 2 << 1;
            if (tests != NULL) {
                tests[count - 2].is_enough = true;
            }
        } else if (take_test(&cursor, &test)) {
            single = single << 1 | 1;
            if (tests != NULL) {
                tests[count] = test;
            }
            count += 1;
        } else {
            return 0;
        }
    }
    return count;
}

struct aotci_guard aotci_guard_of(const struct aotc_kernel *kernel, uint32_t index) {
    const uint32_t first = kernel->first_tests[index];
    return (struct aotci_guard){
        .expression = aotci_expression(&kernel->tables, index),
        .tests = kernel->tests + first,
        .test_count = kernel->first_tests[index + 1] - first,
    };
}

bool aotci_guard_is_null_test(const struct aotci_guard *guard, uint32_t param) {
    const struct aotci_test *test = guard->tests;
    return guard->test_count == 1 && test->param == param && test->load == OP_ARG &&
           test->relation == OP_EQ && test->constant == 0;
}

/* Whether a test holds; `valid` becomes false if there is nothing to compare. */
static inline bool holds(const struct aotci_test *test, const aotc_arg *args, bool *valid) {
    const aotc_arg *arg = &args[test->param];
    int64_t value = 0;
    if (test->load == OP_ARG) {
        *valid = aotci_argument_value(arg, &value) && *valid;
    } else {
        const aotc_tensor *tensor = arg->as.tensor;
        value = (test->load == OP_SHAPE ? tensor->shape : tensor->strides)[test->dim];
    }
    switch (test->relation) {
    case OP_MOD:
        return (value & test->constant) == 0;
    case OP_EQ:
        return value == test->constant;
    case OP_NE:
        return value != test->constant;
    case OP_LT:
        return value < test->constant;
    case OP_LE:
        return value <= test->constant;
    case OP_GT:
        return value > test->constant;
    default: /* OP_GE */
        return value >= test->constant;
    }
}

bool aotci_guard_holds(const struct aotc_kernel *kernel, const struct aotci_guard *guard,
                       const aotc_arg *args) {
    int64_t value = 0;
    bool valid = true;
    if (guard->test_count == 0) {
        return aotci_evaluate(kernel, guard->expression, args, &value) == NULL && value != 0;
    }
    for (uint32_t i = 0; i < guard->test_count; ++i) {
        bool found = holds(&guard->tests[i], args, &valid);
        if (guard->tests[i].is_enough) {
            const bool other = holds(&guard->tests[++i], args, &valid);
            found = found || other;
        }
        if (!found || !valid) {
            return false;
        }
    }
    return true;
}
