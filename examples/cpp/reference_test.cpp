// reference_test.cpp: the references against results worked out by hand. Needs no GPU.
//
// A check that accepts anything is worse than none, so what must be refused is tried too.
#include "element.hpp"
#include "reference.hpp"

#include <cmath>
#include <cstdio>
#include <limits>

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double fp32 = unit_roundoff<float>;
constexpr double bf16 = unit_roundoff<bfloat16>;

/// The values, to double's precision, with bounds that are some roundings and no more.
bool is(const expected &computed, const doubles &by_hand, double largest_bound = 1e-4) {
    if (computed.value.size() != by_hand.size() || computed.bound.size() != by_hand.size()) {
        return false;
    }
    for (std::size_t i = 0; i < by_hand.size(); ++i) {
        const bool is_near = std::abs(computed.value[i] - by_hand[i]) <= 1e-12;
        if (!is_near || computed.bound[i] < 0.0 || computed.bound[i] > largest_bound) {
            return false;
        }
    }
    return true;
}

bool rounds_to(float value, std::uint16_t bits) { return to_bfloat16(value).bits == bits; }

bool bfloat16_is_right() {
    return rounds_to(1.0F, 0x3F80) && rounds_to(-0.0F, 0x8000) &&
           rounds_to(0x1.01p0F, 0x3F80) &&     // a tie, to even: down
           rounds_to(0x1.03p0F, 0x3F82) &&     // a tie, to even: up
           rounds_to(0x1.010002p0F, 0x3F81) && // just above the tie
           rounds_to(0x1.FFp127F, 0x7F80) &&   // overflow
           std::isnan(to_float(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))) &&
           to_float({0x4049}) == 3.140625F && widen(narrow<bfloat16>(-0.375)) == -0.375;
}

bool wrong_results_are_refused() {
    const expected right = {{1.0, 0.0}, {0.25, 0.0}};
    return worst_error(right, {1.0, 0.0}) == 0.0 && worst_error(right, {1.25, 0.0}) == 1.0 &&
           worst_error(right, {0.5, 0.0}) == 2.0 && worst_error(right, {nan, 0.0}) == infinity &&
           worst_error(right, {1.0, nan}) == infinity && worst_error(right, {1.0}) == infinity &&
           worst_error(right, {1.0, 1e-300}) == infinity &&
           worst_error(right, {infinity, 0.0}) == infinity;
}

bool roundings_are_within_bounds() {
    const double sum = 1.0 / 3.0 + 1.0 / 7.0;
    const expected in_bf16 = reference::vector_add({1.0 / 3.0}, {1.0 / 7.0}, bf16);
    const expected in_fp32 = reference::vector_add({1.0 / 3.0}, {1.0 / 7.0}, fp32);
    return worst_error(in_bf16, {widen(narrow<bfloat16>(sum))}) <= 1.0 &&
           worst_error(in_fp32, {widen(narrow<float>(sum))}) <= 1.0 &&
           worst_error(in_fp32, {widen(narrow<bfloat16>(sum))}) > 1.0 &&
           worst_error(in_bf16, {sum * 1.01}) > 1.0;
}

bool elementwise_kernels_are_right() {
    const double silu = 2.0 / (1.0 + std::exp(-2.0));
    return is(reference::vector_add({1.0, 2.0}, {0.5, -2.0}, fp32), {1.5, 0.0}) &&
           is(reference::silu_mul({2.0, 0.0, 3.0, 7.0}, {1, 2}, fp32), {3.0 * silu, 0.0}) &&
           // One head of 5 features, 4 of them rotated: feature 0 with 2 by 0, and 1 with 3 by 90
           // degrees. Position 1 has the angles, position 0 is not read.
           is(reference::rotary({0.0, 1.0, 3.0, 2.0, 9.0}, {nan, nan, 1.0, 0.0},
                                {nan, nan, 0.0, 1.0}, {1.0}, {1, 5, 2}, fp32),
              {0.0, -2.0, 3.0, 1.0, 9.0}) &&
           is(reference::transpose2d({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, {2, 3}),
              {1.0, 4.0, 2.0, 5.0, 3.0, 6.0}, 0.0);
}

bool softmax_and_cross_entropy_are_right() {
    const double log3 = std::log(3.0);
    const reference::losses losses =
        reference::cross_entropy({0.0, log3, 1000.0, 1000.0}, {1.0, -100.0}, {2, 2}, -100.0);
    return is(reference::softmax({0.0, log3, 1000.0, 1000.0}, {2, 2}, fp32), {0.25, 0.75, 0.5, 0.5},
              1e-3) &&
           is(losses.loss, {std::log(4.0) - log3, 0.0}) &&
           is(losses.log_sum_exp, {std::log(4.0), 1000.0 + std::log(2.0)}, 1e-3);
}

bool norms_are_right() {
    const reference::normalised norm =
        reference::layernorm({1.0, 3.0}, {2.0, 0.5}, {0.0, 1.0}, {1, 2}, 3.0, fp32);
    return is(reference::rmsnorm({1.0, 7.0}, {1.0, -2.0}, {1, 2}, 0.0, fp32), {0.2, -2.8}) &&
           is(norm.out, {-1.0, 1.25}) && is(norm.mean, {2.0}) && is(norm.rstd, {0.5});
}

bool row_kernels_are_right() {
    const reference::quantised quantised =
        reference::quantize_int8_rows({-127.0, 2.5, 0.0, 0.0}, {2, 2});
    return is(reference::argmax_rows({1.0, 5.0, 5.0, -1.0, -2.0, -3.0}, {2, 3}), {1.0, 0.0}, 0.0) &&
           is(reference::cumsum_rows({1.0, 2.0, 3.0, 4.0}, {2, 2}, fp32), {1.0, 3.0, 3.0, 7.0}) &&
           is(quantised.steps, {-127.0, 2.5, 0.0, 0.0}, 0.51) &&
           is(quantised.scale, {1.0, 1e-10 / 127.0}) &&
           worst_error(quantised.steps, {-127.0, 2.0, 0.0, 0.0}) <= 1.0 && // of a tie, both
           worst_error(quantised.steps, {-127.0, 3.0, 0.0, 0.0}) <= 1.0 &&
           worst_error(quantised.steps, {-127.0, 4.0, 0.0, 0.0}) > 1.0;
}

} // namespace

int main() {
    const struct {
        const char *name;
        bool (*holds)();
    } checks[] = {
        {"bfloat16", bfloat16_is_right},
        {"wrong results are refused", wrong_results_are_refused},
        {"roundings are within bounds", roundings_are_within_bounds},
        {"elementwise kernels", elementwise_kernels_are_right},
        {"softmax and cross-entropy", softmax_and_cross_entropy_are_right},
        {"norms", norms_are_right},
        {"row kernels", row_kernels_are_right},
    };
    bool all_hold = true;
    for (const auto &check : checks) {
        const bool holds = check.holds();
        std::printf("%-28s %s\n", check.name, holds ? "right" : "WRONG");
        all_hold = all_hold && holds;
    }
    return all_hold ? 0 : 1;
}
