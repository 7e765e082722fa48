// reference.hpp: what the kernels must compute, in plain C++ and in double.
//
// Matrices are dense, row after row. A reference returns for every element the exact result and a
// bound on the error: the rounding to the output's type, `roundoff` (see unit_roundoff), and a
// small multiple of fp32's own, for the kernels compute in fp32 whatever they read and write. The
// multiples allow for the GPU's approximate exp2, rsqrt and division, and for any order of
// summation; they are far below what a wrong kernel does.
#ifndef EXAMPLE_REFERENCE_HPP
#define EXAMPLE_REFERENCE_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

using doubles = std::vector<double>;

struct expected {
    doubles value;
    doubles bound;
};

/// The largest error as a fraction of its bound: at most 1 if `actual` is right, infinite for NaN
/// and where no error is allowed.
double worst_error(const expected &expected, const doubles &actual);

namespace reference {

struct shape {
    std::size_t rows, cols;
};

expected vector_add(const doubles &x, const doubles &y, double roundoff);

/// `x` is (rows, 2 * cols): gate and up.
expected silu_mul(const doubles &x, shape shape, double roundoff);

struct heads {
    std::size_t count, dim, half; // of dim features, the first 2 * half are rotated
};

/// `x` is (tokens, heads.count * heads.dim); `cos` and `sin` are (positions, heads.half).
expected rotary(const doubles &x, const doubles &cos, const doubles &sin, const doubles &positions,
                heads heads, double roundoff);

expected softmax(const doubles &x, shape shape, double roundoff);

struct losses {
    expected loss, log_sum_exp;
};

losses cross_entropy(const doubles &logits, const doubles &targets, shape shape,
                     double ignore_index);

expected rmsnorm(const doubles &x, const doubles &weight, shape shape, double eps, double roundoff);

struct normalised {
    expected out, mean, rstd;
};

normalised layernorm(const doubles &x, const doubles &weight, const doubles &bias, shape shape,
                     double eps, double roundoff);

expected transpose2d(const doubles &x, shape shape);

/// Of equal elements, the first.
expected argmax_rows(const doubles &x, shape shape);

expected cumsum_rows(const doubles &x, shape shape, double roundoff);

struct quantised {
    expected steps, scale;
};

/// x is near steps * scale. Where fp32 decides a tie, both neighbours are right.
quantised quantize_int8_rows(const doubles &x, shape shape);

} // namespace reference

#endif
