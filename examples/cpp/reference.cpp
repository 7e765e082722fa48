#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace {

constexpr double fp32_eps = 0x1p-24;
// Below it fp32 and bf16 are no longer relative, and a GPU may flush to zero.
constexpr double smallest_normal = 0x1p-126;

expected outputs(std::size_t count) { return {doubles(count), doubles(count)}; }

/// Set element i: computed within `error`, then rounded.
void set(expected &out, std::size_t i, double value, double error, double roundoff) {
    out.value[i] = value;
    out.bound[i] = error + roundoff * (std::abs(value) + error) + smallest_normal;
}

double largest_of(const double *row, std::size_t cols) {
    return *std::max_element(row, row + cols);
}

/// Sum of exp(x - shift).
double sum_of_exp(const double *row, std::size_t cols, double shift) {
    return std::accumulate(row, row + cols, 0.0,
                           [shift](double sum, double x) { return sum + std::exp(x - shift); });
}

} // namespace

double worst_error(const expected &expected, const doubles &actual) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (actual.size() != expected.value.size()) {
        return infinity;
    }
    double worst = 0.0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
        const double error = std::abs(actual[i] - expected.value[i]);
        if (error == 0.0) {
            continue;
        }
        const double ratio = error / expected.bound[i];
        worst = std::isnan(ratio) ? infinity : std::max(worst, ratio);
    }
    return worst;
}

namespace reference {

expected vector_add(const doubles &x, const doubles &y, double roundoff) {
    expected out = outputs(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        set(out, i, x[i] + y[i], 0.0, roundoff);
    }
    return out;
}

expected silu_mul(const doubles &x, shape shape, double roundoff) {
    expected out = outputs(shape.rows * shape.cols);
    for (std::size_t row = 0; row < shape.rows; ++row) {
        for (std::size_t col = 0; col < shape.cols; ++col) {
            const double gate = x[row * 2 * shape.cols + col];
            const double up = x[row * 2 * shape.cols + shape.cols + col];
            const double value = gate / (1.0 + std::exp(-gate)) * up;
            // The error of the exponential grows with its argument.
            const double error = fp32_eps * (16.0 + 2.0 * std::abs(gate)) * std::abs(value);
            set(out, row * shape.cols + col, value, error, roundoff);
        }
    }
    return out;
}

expected rotary(const doubles &x, const doubles &cos, const doubles &sin, const doubles &positions,
                heads heads, double roundoff) {
    expected out = {x, doubles(x.size())}; // what is not rotated stays to the bit
    for (std::size_t token = 0; token < positions.size(); ++token) {
        const std::size_t angles = static_cast<std::size_t>(positions[token]) * heads.half;
        for (std::size_t head = 0; head < heads.count; ++head) {
            const std::size_t start = (token * heads.count + head) * heads.dim;
            for (std::size_t i = 0; i < heads.half; ++i) {
                const double c = cos[angles + i];
                const double s = sin[angles + i];
                const double first = x[start + i];
                const double second = x[start + heads.half + i];
                const double first_size = std::abs(first * c) + std::abs(second * s);
                const double second_size = std::abs(second * c) + std::abs(first * s);
                set(out, start + i, first * c - second * s, 4.0 * fp32_eps * first_size, roundoff);
                set(out, start + heads.half + i, second * c + first * s,
                    4.0 * fp32_eps * second_size, roundoff);
            }
        }
    }
    return out;
}

expected softmax(const doubles &x, shape shape, double roundoff) {
    expected out = outputs(x.size());
    for (std::size_t row = 0; row < shape.rows; ++row) {
        const double *in = &x[row * shape.cols];
        const double largest = largest_of(in, shape.cols);
        const double sum = sum_of_exp(in, shape.cols, largest);
        for (std::size_t col = 0; col < shape.cols; ++col) {
            const double value = std::exp(in[col] - largest) / sum;
            // Rounding x * log2(e) moves the exponent, so the error is relative.
            const double size = std::abs(in[col]) + std::abs(largest);
            set(out, row * shape.cols + col, value, fp32_eps * (32.0 + 4.0 * size) * value,
                roundoff);
        }
    }
    return out;
}

losses cross_entropy(const doubles &logits, const doubles &targets, shape shape,
                     double ignore_index) {
    losses out = {outputs(shape.rows), outputs(shape.rows)};
    for (std::size_t row = 0; row < shape.rows; ++row) {
        const double *in = &logits[row * shape.cols];
        const double largest = largest_of(in, shape.cols);
        const double lse = largest + std::log(sum_of_exp(in, shape.cols, largest));
        const double error = fp32_eps * (32.0 + 8.0 * std::abs(largest) + 2.0 * std::abs(lse));
        set(out.log_sum_exp, row, lse, error, fp32_eps);
        if (targets[row] == ignore_index) {
            set(out.loss, row, 0.0, 0.0, fp32_eps);
        } else {
            const double at_target = in[static_cast<std::size_t>(targets[row])];
            set(out.loss, row, lse - at_target, error + fp32_eps * std::abs(at_target), fp32_eps);
        }
    }
    return out;
}

expected rmsnorm(const doubles &x, const doubles &weight, shape shape, double eps,
                 double roundoff) {
    expected out = outputs(x.size());
    for (std::size_t row = 0; row < shape.rows; ++row) {
        const double *in = &x[row * shape.cols];
        const double squares = std::inner_product(in, in + shape.cols, in, 0.0);
        const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(shape.cols) + eps);
        for (std::size_t col = 0; col < shape.cols; ++col) {
            const double value = in[col] * rstd * weight[col];
            set(out, row * shape.cols + col, value, 32.0 * fp32_eps * std::abs(value), roundoff);
        }
    }
    return out;
}

normalised layernorm(const doubles &x, const doubles &weight, const doubles &bias, shape shape,
                     double eps, double roundoff) {
    normalised out = {outputs(x.size()), outputs(shape.rows), outputs(shape.rows)};
    const double n = static_cast<double>(shape.cols);
    for (std::size_t row = 0; row < shape.rows; ++row) {
        const double *in = &x[row * shape.cols];
        const double mean = std::accumulate(in, in + shape.cols, 0.0) / n;
        double variance = 0.0;
        double size = 0.0; // mean |x|: an error of the mean moves every element of its row
        for (std::size_t col = 0; col < shape.cols; ++col) {
            variance += (in[col] - mean) * (in[col] - mean) / n;
            size += std::abs(in[col]) / n;
        }
        const double rstd = 1.0 / std::sqrt(variance + eps);
        const double spread = 1.0 + size * size / (variance + eps) * fp32_eps;
        set(out.mean, row, mean, 16.0 * fp32_eps * size, fp32_eps);
        set(out.rstd, row, rstd, 32.0 * fp32_eps * rstd * spread, fp32_eps);
        for (std::size_t col = 0; col < shape.cols; ++col) {
            const double value = (in[col] - mean) * rstd * weight[col] + bias[col];
            const double error =
                (std::abs(in[col]) + size) * rstd * std::abs(weight[col]) + std::abs(bias[col]);
            set(out.out, row * shape.cols + col, value, 32.0 * fp32_eps * error, roundoff);
        }
    }
    return out;
}

expected transpose2d(const doubles &x, shape shape) {
    expected out = outputs(x.size());
    for (std::size_t row = 0; row < shape.rows; ++row) {
        for (std::size_t col = 0; col < shape.cols; ++col) {
            out.value[col * shape.rows + row] = x[row * shape.cols + col];
        }
    }
    return out;
}

expected argmax_rows(const doubles &x, shape shape) {
    expected out = outputs(shape.rows);
    for (std::size_t row = 0; row < shape.rows; ++row) {
        const double *in = &x[row * shape.cols];
        out.value[row] = static_cast<double>(std::max_element(in, in + shape.cols) - in);
    }
    return out;
}

expected cumsum_rows(const doubles &x, shape shape, double roundoff) {
    expected out = outputs(x.size());
    for (std::size_t row = 0; row < shape.rows; ++row) {
        double sum = 0.0;
        double size = 0.0; // the error of a sum grows with what was added
        for (std::size_t i = row * shape.cols; i < (row + 1) * shape.cols; ++i) {
            sum += x[i];
            size += std::abs(x[i]);
            set(out, i, sum, 32.0 * fp32_eps * size, roundoff);
        }
    }
    return out;
}

quantised quantize_int8_rows(const doubles &x, shape shape) {
    quantised out = {outputs(x.size()), outputs(shape.rows)};
    for (std::size_t row = 0; row < shape.rows; ++row) {
        const auto first = x.begin() + static_cast<std::ptrdiff_t>(row * shape.cols);
        const double largest = std::accumulate(
            first, first + static_cast<std::ptrdiff_t>(shape.cols), 1e-10,
            [](double most, double value) { return std::max(most, std::abs(value)); });
        const double scale = largest / 127.0;
        set(out.scale, row, scale, 3.0 * fp32_eps * scale, fp32_eps);
        for (std::size_t i = row * shape.cols; i < (row + 1) * shape.cols; ++i) {
            // Half a step, and what fp32 loses of a number up to 127.
            out.steps.value[i] = x[i] / scale;
            out.steps.bound[i] = 0.5 + 127.0 * 8.0 * fp32_eps;
        }
    }
    return out;
}

} // namespace reference
