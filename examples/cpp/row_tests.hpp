// row_tests.hpp: the kernels that reduce or scan along rows.
#ifndef EXAMPLE_ROW_TESTS_HPP
#define EXAMPLE_ROW_TESTS_HPP

#include "kernel_test.hpp"

#include <algorithm>

/// Rows of random numbers, `stride` elements apart: what all tests here start from.
template <class T>
class row_test : public kernel_test {
public:
    row_test(std::string kernel, std::size_t rows, std::size_t cols, std::size_t stride)
        : kernel_test(std::move(kernel), aotc::dtype_of<T>::value), x_(rows, cols, stride) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        x_.upload_normal(stream, random);
    }

protected:
    matrix<T> x_;
};

template <class T>
class softmax_test final : public row_test<T> {
public:
    softmax_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : row_test<T>("softmax", rows, cols, stride), out_(rows, cols, stride) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        row_test<T>::refill(stream, random);
        out_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_softmax(&kernels, stream.get(), this->dtype(), x_.device(),
                                   out_.device(), x_.stride(), x_.rows(), x_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        return out_.worst_error(stream,
                                reference::softmax(x_.values(), x_.shape(), unit_roundoff<T>));
    }

private:
    using row_test<T>::x_;
    matrix<T> out_;
};

template <class T>
class cross_entropy_test final : public row_test<T> {
public:
    cross_entropy_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : row_test<T>("cross_entropy", rows, cols, stride), targets_(1, rows), loss_(1, rows),
          log_sum_exp_(1, rows) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        row_test<T>::refill(stream, random);
        // Every fourth row is ignored.
        std::uniform_int_distribution<int> target(0, x_.cols() - 1);
        int row = 0;
        targets_.upload(stream,
                        [&]() -> double { return ++row % 4 == 0 ? ignore_index : target(random); });
        loss_.poison(stream);
        log_sum_exp_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_cross_entropy(&kernels, stream.get(), this->dtype(), x_.device(),
                                         targets_.device(), loss_.device(), log_sum_exp_.device(),
                                         x_.stride(), x_.rows(), x_.cols(), ignore_index, error);
        });
    }

    double worst_error(const stream &stream) const override {
        const reference::losses right =
            reference::cross_entropy(x_.values(), targets_.values(), x_.shape(), ignore_index);
        return std::max(loss_.worst_error(stream, right.loss),
                        log_sum_exp_.worst_error(stream, right.log_sum_exp));
    }

private:
    static constexpr std::int32_t ignore_index = -100;

    using row_test<T>::x_;
    matrix<std::int64_t> targets_;
    matrix<float> loss_, log_sum_exp_;
};

template <class T>
class rmsnorm_test final : public row_test<T> {
public:
    rmsnorm_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : row_test<T>("rmsnorm", rows, cols, stride), weight_(1, cols), out_(rows, cols, stride) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        row_test<T>::refill(stream, random);
        weight_.upload_normal(stream, random);
        out_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_rmsnorm(&kernels, stream.get(), this->dtype(), x_.device(),
                                   weight_.device(), out_.device(), x_.stride(), x_.rows(),
                                   x_.cols(), eps, error);
        });
    }

    double worst_error(const stream &stream) const override {
        return out_.worst_error(stream, reference::rmsnorm(x_.values(), weight_.values(),
                                                           x_.shape(), eps, unit_roundoff<T>));
    }

private:
    static constexpr float eps = 1e-6F;

    using row_test<T>::x_;
    matrix<T> weight_, out_;
};

template <class T>
class layernorm_test final : public row_test<T> {
public:
    layernorm_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : row_test<T>("layernorm", rows, cols, stride), weight_(1, cols), bias_(1, cols),
          out_(rows, cols, stride), mean_(1, rows), rstd_(1, rows) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        row_test<T>::refill(stream, random);
        weight_.upload_normal(stream, random);
        bias_.upload_normal(stream, random);
        out_.poison(stream);
        mean_.poison(stream);
        rstd_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_layernorm(&kernels, stream.get(), this->dtype(), x_.device(),
                                     weight_.device(), bias_.device(), out_.device(),
                                     mean_.device(), rstd_.device(), x_.stride(), x_.rows(),
                                     x_.cols(), eps, error);
        });
    }

    double worst_error(const stream &stream) const override {
        const reference::normalised right = reference::layernorm(
            x_.values(), weight_.values(), bias_.values(), x_.shape(), eps, unit_roundoff<T>);
        return std::max({out_.worst_error(stream, right.out), mean_.worst_error(stream, right.mean),
                         rstd_.worst_error(stream, right.rstd)});
    }

private:
    static constexpr float eps = 1e-5F;

    using row_test<T>::x_;
    matrix<T> weight_, bias_, out_;
    matrix<float> mean_, rstd_;
};

template <class T>
class argmax_rows_test final : public row_test<T> {
public:
    argmax_rows_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : row_test<T>("argmax_rows", rows, cols, stride), out_(1, rows) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        row_test<T>::refill(stream, random);
        out_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_argmax_rows(&kernels, stream.get(), this->dtype(), x_.device(),
                                       out_.device(), x_.stride(), x_.rows(), x_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        return out_.worst_error(stream, reference::argmax_rows(x_.values(), x_.shape()));
    }

private:
    using row_test<T>::x_;
    matrix<std::int64_t> out_;
};

template <class T>
class cumsum_rows_test final : public row_test<T> {
public:
    cumsum_rows_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : row_test<T>("cumsum_rows", rows, cols, stride), out_(rows, cols, stride) {}

    void refill(const stream &stream, std::mt19937_64 &random) override {
        row_test<T>::refill(stream, random);
        out_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_cumsum_rows(&kernels, stream.get(), this->dtype(), x_.device(),
                                       out_.device(), x_.stride(), x_.rows(), x_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        return out_.worst_error(stream,
                                reference::cumsum_rows(x_.values(), x_.shape(), unit_roundoff<T>));
    }

private:
    using row_test<T>::x_;
    matrix<T> out_;
};

template <class T>
class quantize_int8_rows_test final : public row_test<T> {
public:
    quantize_int8_rows_test(std::size_t rows, std::size_t cols, std::size_t stride)
        : row_test<T>("quantize_int8_rows", rows, cols, stride), out_(rows, cols), scale_(1, rows) {
    }

    void refill(const stream &stream, std::mt19937_64 &random) override {
        row_test<T>::refill(stream, random);
        out_.poison(stream);
        scale_.poison(stream);
    }

    void launch(const kernels_kernels &kernels, const stream &stream) override {
        check([&](aotc_error *error) {
            return kernels_quantize_int8_rows(&kernels, stream.get(), this->dtype(), x_.device(),
                                              out_.device(), scale_.device(), x_.stride(),
                                              x_.rows(), x_.cols(), error);
        });
    }

    double worst_error(const stream &stream) const override {
        const reference::quantised right = reference::quantize_int8_rows(x_.values(), x_.shape());
        return std::max(out_.worst_error(stream, right.steps),
                        scale_.worst_error(stream, right.scale));
    }

private:
    using row_test<T>::x_;
    matrix<std::int8_t> out_;
    matrix<float> scale_;
};

#endif
