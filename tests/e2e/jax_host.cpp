// The handlers of examples/jax for JAX on a CPU, where XLA gives no stream: launches go to one of a fake driver.
#include "rms_norm.hpp"

namespace {
void *stream_of_test = nullptr;

xla::ffi::Error on_host(xla::ffi::AnyBuffer x, xla::ffi::AnyBuffer weight,
                        xla::ffi::Result<xla::ffi::AnyBuffer> out, float eps) {
    return norms::rms_norm(stream_of_test, x, weight, out, eps);
}
} // namespace

extern "C" void norms_use_stream(void *stream) { stream_of_test = stream; }
// XLA has no such stage on a CPU.
extern "C" int norms_load_now(std::int32_t device) { return norms::load(device).success() ? 0 : 1; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(norms_load, norms::load,
                              xla::ffi::Ffi::Bind<xla::ffi::ExecutionStage::kInitialize>()
                                  .Ctx<xla::ffi::DeviceOrdinal>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(norms_rms_norm_call, on_host,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<float>("eps"));
