// elementwise_tests.hpp: the kernels whose elements do not depend on each other.
#ifndef EXAMPLE_ELEMENTWISE_TESTS_HPP
#define EXAMPLE_ELEMENTWISE_TESTS_HPP

#include "kernel_test.hpp"

#include <cmath>

template <class T>
class vector_add_test final : public kernel_test {
public:
    explicit vector_add_test(std::size_t count)
        : kernel_test("vector_add", aotc::dtype_of<T>::value), x_(1, count), y_(1, count),
          out_(1, count) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        x_.upload_normal(stream, random);
        y_.upload_normal(stream, random);
        out_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_vector_add(&kernels, stream.get(), dtype(), x_.device(), y_.device(),
                                      out_.device(), x_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        return out_.worst_error(stream,
                                reference::vector_add(x_.values(), y_.values(), unit_roundoff<T>));
    }

private:
    matrix<T> x_, y_, out_;
};

template <class T>
class silu_mul_test final : public kernel_test {
public:
    silu_mul_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : kernel_test("silu_mul", aotc::dtype_of<T>::value), x_(rows, 2 * cols, stride),
          out_(rows, cols) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        x_.upload_normal(stream, random);
        out_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_silu_mul(&kernels, stream.get(), dtype(), x_.device(), out_.device(),
                                    x_.stride(), out_.rows(), out_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        return out_.worst_error(stream,
                                reference::silu_mul(x_.values(), out_.shape(), unit_roundoff<T>));
    }

private:
    matrix<T> x_, out_;
};

/// In place: x is input and output.
template <class T>
class rotary_test final : public kernel_test {
public:
    rotary_test(std::size_t tokens, reference::heads heads)
        : kernel_test("rotary", aotc::dtype_of<T>::value), heads_(heads),
          x_(tokens, heads.count * heads.dim), cos_(positions, heads.half),
          sin_(positions, heads.half), positions_(1, tokens) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        x_.upload_normal(stream, random);
        std::uniform_real_distribution<double> angle(0.0, 6.283);
        cos_.upload(stream, [&] { return std::cos(angle(random)); });
        sin_.upload(stream, [&] { return std::sin(angle(random)); });
        std::uniform_int_distribution<std::size_t> position(0, positions - 1);
        positions_.upload(stream, [&] { return static_cast<double>(position(random)); });
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_rotary(&kernels, stream.get(), dtype(), x_.device(), cos_.device(),
                                  sin_.device(), positions_.device(), x_.stride(),
                                  static_cast<std::int32_t>(heads_.dim), x_.rows(),
                                  static_cast<std::int32_t>(heads_.count), cos_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        return x_.worst_error(stream,
                              reference::rotary(x_.values(), cos_.values(), sin_.values(),
                                                positions_.values(), heads_, unit_roundoff<T>));
    }

private:
    static constexpr std::size_t positions = 100;

    reference::heads heads_;
    matrix<T> x_;
    matrix<float> cos_, sin_;
    matrix<std::int64_t> positions_;
};

template <class T>
class transpose2d_test final : public kernel_test {
public:
    transpose2d_test(std::size_t rows, std::size_t cols, std::size_t x_stride,
                     std::size_t out_stride)
        : kernel_test("transpose2d", aotc::dtype_of<T>::value), x_(rows, cols, x_stride),
          out_(cols, rows, out_stride) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        x_.upload_normal(stream, random);
        out_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_transpose2d(&kernels, stream.get(), dtype(), x_.device(), out_.device(),
                                       x_.stride(), out_.stride(), x_.rows(), x_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        return out_.worst_error(stream, reference::transpose2d(x_.values(), x_.shape()));
    }

private:
    matrix<T> x_, out_;
};

#endif
