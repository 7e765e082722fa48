// element.hpp: the element types of the example, bfloat16 among them, and how exact they are.
//
// A server has its own 16-bit types, such as __nv_bfloat16 of cuda_bf16.h or those of its tensor
// library. All that aotc.hpp wants to know of one is its dtype, said once, as below.
#ifndef EXAMPLE_ELEMENT_HPP
#define EXAMPLE_ELEMENT_HPP

#include <aotc/aotc.hpp>

#include <cstdint>
#include <cstring>

/// The upper half of a float: 8 bits of exponent, 8 bits of precision.
struct bfloat16 {
    std::uint16_t bits;
};

template <>
struct aotc::dtype_of<bfloat16> {
    static constexpr aotc_dtype value = AOTC_BF16;
};

/// Round to nearest, ties to even; NaN stays NaN.
inline bfloat16 to_bfloat16(float value) noexcept {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) {
        return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
    }
    return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

inline float to_float(bfloat16 value) noexcept {
    const std::uint32_t bits = std::uint32_t{value.bits} << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/// The nearest T, and the exact value of one: references compute in double.
template <class T>
T narrow(double value) noexcept {
    return static_cast<T>(value);
}

template <>
inline bfloat16 narrow<bfloat16>(double value) noexcept {
    return to_bfloat16(static_cast<float>(value));
}

template <class T>
double widen(T value) noexcept {
    return static_cast<double>(value);
}

inline double widen(bfloat16 value) noexcept { return to_float(value); }

/// The largest relative error of rounding to T.
template <class T>
inline constexpr double unit_roundoff = 0.0;
template <>
inline constexpr double unit_roundoff<float> = 0x1p-24;
template <>
inline constexpr double unit_roundoff<bfloat16> = 0x1p-8;

#endif
