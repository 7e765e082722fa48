// What JAX registers: one handler for each stage of the call. XLA gives the stream.
#include "rms_norm.hpp"

XLA_FFI_DEFINE_HANDLER_SYMBOL(norms_load, norms::load,
                              xla::ffi::Ffi::Bind<xla::ffi::ExecutionStage::kInitialize>()
                                  .Ctx<xla::ffi::DeviceOrdinal>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(norms_rms_norm_call, norms::rms_norm,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<void *>>()
                                  .Arg<xla::ffi::AnyBuffer>() // x
                                  .Arg<xla::ffi::AnyBuffer>() // weight
                                  .Ret<xla::ffi::AnyBuffer>() // out
                                  .Attr<float>("eps"),
                              {xla::ffi::Traits::kCmdBufferCompatible}); // a CUDA graph may hold it
