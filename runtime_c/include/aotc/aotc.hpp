// aotc.hpp: the C++17 face of aotc.h: handles that release themselves, statuses as exceptions.
//
//     aotc::archive archive = aotc::archive::open("dist/llm.aotc");
//     archive.load();                                   // all kernels, current context
//     aotc::kernel add = archive.kernel("add");
//     add.launch(stream, x, y, out, std::int32_t{n});   // typed pointers and scalars, in order
//
//     add.on(stream).choice("CAUSAL", true).config("num_warps", 8).grid(n).launch(x, y, out, n);
//
// Header-only; a call costs what the C call costs. A kernel is valid as long as an archive (or a
// copy made with `share`) is. Pointers carry their dtype: float* is fp32 and so on; for 16-bit and
// 8-bit floats specialise `aotc::dtype_of` (once, for the type of your choice), or pass
// `aotc_pointer(p, AOTC_BF16)`. A `void*` has no dtype: enough if another argument has
// the type.
#ifndef AOTC_AOTC_HPP
#define AOTC_AOTC_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "aotc/aotc.h"

namespace aotc {

/// The error of a call, as an exception. `what()` is the message in one line.
class error : public std::exception {
public:
    error(aotc_status status, const aotc_error &detail) : status_(status), detail_(detail) {
        if (detail_.message[0] == '\0') {
            std::string(aotc_status_name(status)).copy(detail_.message, sizeof detail_.message - 1);
        }
    }

    const char *what() const noexcept override { return detail_.message; }
    aotc_status status() const noexcept { return status_; }
    /// CUresult, or 0.
    int cuda() const noexcept { return detail_.cuda; }
    /// File, kernel, field, expected, got, remedy.
    const aotc_error &detail() const noexcept { return detail_; }

private:
    aotc_status status_;
    aotc_error detail_;
};

namespace detail {

inline aotc_error empty_error() noexcept {
    aotc_error error{};
    error.struct_size = static_cast<std::uint32_t>(sizeof error);
    return error;
}

template <class Call>
void check(Call &&call) {
    // Only the fields read are cleared: a launch must not pay for an error it does not have.
    aotc_error error;
    error.struct_size = static_cast<std::uint32_t>(sizeof error);
    error.message[0] = '\0';
    const aotc_status status = call(&error);
    if (status != AOTC_OK) {
        throw aotc::error(status, error.message[0] == '\0' ? empty_error() : error);
    }
}

template <class T>
T sized() noexcept {
    T value{};
    value.struct_size = static_cast<std::uint32_t>(sizeof value);
    return value;
}

} // namespace detail

/// The dtype of a C++ type. Specialise `value` for types such as __half and __nv_bfloat16.
template <class T>
struct dtype_of;
// clang-format off
template <> struct dtype_of<bool> { static constexpr aotc_dtype value = AOTC_I1; };
template <> struct dtype_of<std::int8_t> { static constexpr aotc_dtype value = AOTC_I8; };
template <> struct dtype_of<std::int16_t> { static constexpr aotc_dtype value = AOTC_I16; };
template <> struct dtype_of<std::int32_t> { static constexpr aotc_dtype value = AOTC_I32; };
template <> struct dtype_of<std::int64_t> { static constexpr aotc_dtype value = AOTC_I64; };
template <> struct dtype_of<std::uint8_t> { static constexpr aotc_dtype value = AOTC_U8; };
template <> struct dtype_of<std::uint16_t> { static constexpr aotc_dtype value = AOTC_U16; };
template <> struct dtype_of<std::uint32_t> { static constexpr aotc_dtype value = AOTC_U32; };
template <> struct dtype_of<std::uint64_t> { static constexpr aotc_dtype value = AOTC_U64; };
template <> struct dtype_of<float> { static constexpr aotc_dtype value = AOTC_FP32; };
template <> struct dtype_of<double> { static constexpr aotc_dtype value = AOTC_FP64; };
template <> struct dtype_of<void> { static constexpr aotc_dtype value = AOTC_DTYPE_NONE; };
// clang-format on

/// Make a launch argument. Integers are passed as their own type, never converted: an i32 argument
/// given a 64-bit value is an error of the launch.
inline aotc_arg arg(const aotc_arg &value) noexcept { return value; }

template <class T>
aotc_arg arg(T *pointer) noexcept {
    return aotc_pointer(pointer, dtype_of<std::remove_cv_t<T>>::value);
}

inline aotc_arg arg(std::nullptr_t) noexcept { return aotc_pointer(nullptr, AOTC_DTYPE_NONE); }
inline aotc_arg arg(float value) noexcept { return aotc_fp32(value); }
inline aotc_arg arg(double value) noexcept { return aotc_fp64(value); }

template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
aotc_arg arg(T value) noexcept {
    // `long` and `long long` are both i64; std::int64_t is one of them.
    using fixed = std::conditional_t<
        std::is_same_v<T, bool>, bool,
        std::conditional_t<
            std::is_signed_v<T>,
            std::conditional_t<
                sizeof(T) == 8, std::int64_t,
                std::conditional_t<sizeof(T) == 4, std::int32_t,
                                   std::conditional_t<sizeof(T) == 2, std::int16_t, std::int8_t>>>,
            std::conditional_t<sizeof(T) == 8, std::uint64_t,
                               std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                                  std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                                                     std::uint8_t>>>>>;
    return aotc_arg_bits(AOTC_SCALAR, dtype_of<fixed>::value, static_cast<std::uint64_t>(value));
}

/// Make a named value of a choice or a config entry.
inline aotc_value value(const char *name, std::nullptr_t) noexcept { return aotc_null_value(name); }
inline aotc_value value(const char *name, bool value) noexcept {
    return aotc_bool_value(name, value ? 1 : 0);
}
inline aotc_value value(const char *name, double value) noexcept {
    return aotc_float_value(name, value);
}
inline aotc_value value(const char *name, const char *value) noexcept {
    return aotc_string_value(name, value);
}

template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
aotc_value value(const char *name, T value) noexcept {
    return aotc_int_value(name, static_cast<std::int64_t>(value));
}

/// A launch being put together: stream, choices, config, grid; then `launch` with the arguments.
/// Names must live until then.
class launcher {
public:
    static constexpr std::size_t max_values = 32;

    launcher(const aotc_kernel *kernel, CUstream_st *stream) noexcept : kernel_(kernel) {
        desc_.stream = stream;
    }

    template <class T>
    launcher &choice(const char *name, T chosen) {
        add(choices_, desc_.choice_count, value(name, chosen));
        return *this;
    }

    template <class T>
    launcher &config(const char *name, T wanted) {
        add(config_, desc_.config_count, value(name, wanted));
        return *this;
    }

    /// The grid in programs, instead of the kernel's own.
    launcher &grid(std::int64_t x) noexcept { return set_grid(1, x, 1, 1); }
    launcher &grid(std::int64_t x, std::int64_t y) noexcept { return set_grid(2, x, y, 1); }
    launcher &grid(std::int64_t x, std::int64_t y, std::int64_t z) noexcept {
        return set_grid(3, x, y, z);
    }

    /// Device memory for a variant; `select` gives the required size.
    launcher &scratch(void *memory, std::size_t size_bytes) noexcept {
        desc_.scratch = memory;
        desc_.scratch_bytes = size_bytes;
        return *this;
    }

    /// Programmatic dependent launch.
    launcher &programmatic(bool on = true) noexcept {
        desc_.flags = on ? desc_.flags | AOTC_LAUNCH_PDL
                         : desc_.flags & ~static_cast<std::uint32_t>(AOTC_LAUNCH_PDL);
        return *this;
    }

    template <class... Args>
    void launch(const Args &...args) {
        with(args...);
        detail::check([&](aotc_error *error) { return aotc_launch(kernel_, &desc_, error); });
    }

    /// The effect of `launch` with these arguments.
    template <class... Args>
    aotc_selection select(const Args &...args) {
        aotc_selection selection = detail::sized<aotc_selection>();
        with(args...);
        detail::check(
            [&](aotc_error *error) { return aotc_select(kernel_, &desc_, &selection, error); });
        return selection;
    }

private:
    static constexpr std::size_t max_args = 256;

    template <class... Args>
    void with(const Args &...args) noexcept {
        static_assert(sizeof...(Args) <= max_args, "a kernel has at most 256 arguments");
        std::size_t count = 0;
        ((args_[count++] = arg(args)), ...);
        desc_.args = args_.data();
        desc_.arg_count = static_cast<std::uint32_t>(count);
        desc_.choices = choices_.data();
        desc_.config = config_.data();
    }

    static void add(std::array<aotc_value, max_values> &values, std::uint32_t &count,
                    const aotc_value &added) {
        if (count == max_values) {
            throw error(AOTC_ERROR_LIMIT, detail::empty_error());
        }
        values[count++] = added;
    }

    launcher &set_grid(std::uint32_t rank, std::int64_t x, std::int64_t y,
                       std::int64_t z) noexcept {
        desc_.grid_rank = rank;
        desc_.grid[0] = x;
        desc_.grid[1] = y;
        desc_.grid[2] = z;
        return *this;
    }

    const aotc_kernel *kernel_;
    aotc_launch_desc desc_ = AOTC_LAUNCH_DESC_INIT;
    std::array<aotc_arg, max_args> args_;
    std::array<aotc_value, max_values> choices_;
    std::array<aotc_value, max_values> config_;
};

/// A kernel of an archive, borrowed: copy it freely, as long as the archive is open.
class kernel {
public:
    explicit kernel(const aotc_kernel *handle) noexcept : handle_(handle) {}

    launcher on(CUstream_st *stream) const noexcept { return launcher(handle_, stream); }

    /// Launch with the kernel's own grid and best config.
    template <class... Args>
    void launch(CUstream_st *stream, const Args &...args) const {
        const std::array<aotc_arg, sizeof...(Args)> list{{arg(args)...}};
        aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
        desc.args = list.data();
        desc.arg_count = static_cast<std::uint32_t>(list.size());
        desc.stream = stream;
        detail::check([&](aotc_error *error) { return aotc_launch(handle_, &desc, error); });
    }

    aotc_kernel_info info() const {
        aotc_kernel_info info = detail::sized<aotc_kernel_info>();
        detail::check([&](aotc_error *) { return aotc_kernel_get_info(handle_, &info); });
        return info;
    }

    const aotc_kernel *get() const noexcept { return handle_; }

private:
    const aotc_kernel *handle_;
};

/// An open archive. It moves and does not copy; `share` makes another owner of the same one.
class archive {
public:
    static archive open(const char *path, const aotc_open_options *options = nullptr) {
        aotc_archive *handle = nullptr;
        detail::check(
            [&](aotc_error *error) { return aotc_open_file(path, options, &handle, error); });
        return archive(handle);
    }

    static archive open(const std::string &path, const aotc_open_options *options = nullptr) {
        return open(path.c_str(), options);
    }

    /// The bytes must not change until the archive is closed (unless AOTC_OPEN_COPY).
    static archive open(const void *data, std::size_t size_bytes,
                        const aotc_open_options *options = nullptr) {
        aotc_archive *handle = nullptr;
        detail::check([&](aotc_error *error) {
            return aotc_open_memory(data, size_bytes, options, &handle, error);
        });
        return archive(handle);
    }

    /// Take over a reference.
    explicit archive(aotc_archive *handle) noexcept : handle_(handle) {}
    archive(archive &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    archive &operator=(archive &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    archive(const archive &) = delete;
    archive &operator=(const archive &) = delete;
    ~archive() { aotc_release(handle_); }

    archive share() const noexcept {
        aotc_retain(handle_);
        return archive(handle_);
    }

    /// Prepare all kernels, or one, in the current context, or in a device's primary one.
    void load(const char *kernel = nullptr, std::int32_t device = AOTC_CURRENT_CONTEXT,
              std::uint32_t flags = 0) {
        aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
        options.flags = flags;
        options.kernel = kernel;
        options.device = device;
        detail::check([&](aotc_error *error) { return aotc_load(handle_, &options, error); });
    }

    /// Unload everything from the current context, or from a device's primary one.
    void unload(std::int32_t device = AOTC_CURRENT_CONTEXT) {
        detail::check([&](aotc_error *error) { return aotc_unload(handle_, device, error); });
    }

    aotc::kernel kernel(const char *name) const {
        const aotc_kernel *found = nullptr;
        detail::check(
            [&](aotc_error *error) { return aotc_kernel_get(handle_, name, &found, error); });
        return aotc::kernel(found);
    }

    aotc::kernel kernel(const std::string &name) const { return kernel(name.c_str()); }

    /// Encode the map of a tensor in device memory, for kernels that take maps from memory. Sizes
    /// and strides are in elements, outermost first, and so are the extents of a block.
    template <class T, std::size_t Rank>
    aotc_tensor_map tensor_map(T *address, const std::int64_t (&shape)[Rank],
                               const std::int64_t (&strides)[Rank],
                               const std::uint32_t (&block)[Rank]) const {
        const aotc_dtype dtype = dtype_of<std::remove_cv_t<T>>::value;
        aotc_tensor tensor{};
        tensor.address = const_cast<std::remove_cv_t<T> *>(address);
        tensor.rank = static_cast<std::uint32_t>(Rank);
        tensor.shape = shape;
        tensor.strides = strides;
        aotc_tensor_map map;
        detail::check([&](aotc_error *error) {
            return aotc_tensor_map_encode(handle_, &tensor, dtype, block, &map, error);
        });
        return map;
    }

    aotc_archive_info info() const {
        aotc_archive_info info = detail::sized<aotc_archive_info>();
        detail::check([&](aotc_error *) { return aotc_archive_get_info(handle_, &info); });
        return info;
    }

    aotc_archive *get() const noexcept { return handle_; }

private:
    aotc_archive *handle_;
};

} // namespace aotc

#endif
