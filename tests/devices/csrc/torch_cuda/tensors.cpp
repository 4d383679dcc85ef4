// Tensors of the device: how they are made, viewed, resized, copied and read.
#include <ATen/EmptyTensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "torch_cuda.h"

namespace at::native {
at::Tensor as_strided_tensorimpl(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, std::optional<int64_t>);
}

namespace torch_cuda {
namespace {

using at::Tensor;
const c10::DispatchKeySet KEYS(c10::DispatchKey::CUDA);

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator(), KEYS,
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &device_allocator(), KEYS, c10::dtype_or_default(dtype));
}

bool has_layout_of(const Tensor& one, const Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.is_non_overlapping_and_dense() &&
         one.strides() == other.strides();
}

// Between memory of the host and the device's, both without gaps.
void copy_across(const Tensor& to, const Tensor& from, bool non_blocking) {
  const Tensor &on_device = to.is_cuda() ? to : from, &on_host = to.is_cuda() ? from : to;
  const CUstream stream = current_handle(on_device.get_device());
  const bool is_pinned = rlt_stand_in_is_pinned(on_host.const_data_ptr());
  check(cuMemcpyAsync(CUdeviceptr(to.mutable_data_ptr()), CUdeviceptr(from.const_data_ptr()), to.nbytes(), stream),
        "copying between device and host");
  if (is_pinned) record_pinned(on_host.const_data_ptr(), stream);
  // The driver has waited already for what it writes to memory that is not pinned.
  if (!non_blocking && (to.is_cuda() || is_pinned)) check(cuStreamSynchronize(stream), "waiting for a copy");
}

void copy_between_devices(const Tensor& to, const Tensor& from) {
  check(rlt_stand_in_drain(current_handle(from.get_device())), "copying between devices");
  check(rlt_stand_in_drain(current_handle(to.get_device())), "copying between devices");
  const bool is_plain = has_layout_of(to, from);
  rlt_stand_in_count(is_plain ? RLT_DEVICE_TO_DEVICE : RLT_LAUNCH, is_plain ? to.nbytes() : 0);
  host_view(to).copy_(host_view(from));
}

// What a graph does at each launch.
struct RecordedCopy {
  Tensor to, from;

  static bool run(void* context) {
    auto& copy = *static_cast<RecordedCopy*>(context);
    host_view(copy.to).copy_(host_view(copy.from));
    return true;
  }
  static void free(void* context) { delete static_cast<RecordedCopy*>(context); }
};

void copy_on_device(const Tensor& to, const Tensor& from) {
  const CUstream stream = current_handle(to.get_device());
  if (!rlt_stand_in_is_capturing(stream)) return copy_between_devices(to, from);
  check_capture("aten::copy_", stream);
  auto* copy = new RecordedCopy{to, from};
  check(rlt_stand_in_enqueue(stream, &RecordedCopy::run, &RecordedCopy::free, copy, false), "recording a copy");
}

Tensor& copy_(Tensor& to, const Tensor& source, bool non_blocking) {
  check_devices();
  const Tensor from = source.expand_as(to);
  if (to.numel() == 0 || to.is_same(source)) return to;
  const c10::DeviceGuard guard(to.is_cuda() ? to.device() : from.device());
  if (to.is_cuda() && from.is_cuda()) {
    copy_on_device(to, from);
  } else if (has_layout_of(to, from)) {
    copy_across(to, from, non_blocking);
  } else {
    // Numbers are converted where they are, and laid out where they go.
    const Tensor converted = from.to(to.scalar_type()).contiguous();
    const Tensor target = to.is_contiguous() ? to : at::empty_like(to, at::MemoryFormat::Contiguous);
    copy_across(target, converted, non_blocking);
    if (!target.is_same(to)) to.copy_(target, non_blocking);
  }
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy_(target, from, non_blocking);
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& tensor) {
  check(rlt_stand_in_drain(current_handle(tensor.get_device())), "reading a number");
  rlt_stand_in_count(RLT_DEVICE_TO_HOST, tensor.element_size());
  rlt_stand_in_count(RLT_WAIT, 0);
  return host_view(tensor).item();
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef symbolic, std::optional<at::MemoryFormat>) {
  const at::IntArrayRef size = C10_AS_INTARRAYREF_SLOW(symbolic);
  const size_t needed = (size_t(self.storage_offset()) + size_t(c10::multiply_integers(size))) * self.element_size();
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < needed) {
    const c10::DeviceGuard guard(self.device());
    check(rlt_stand_in_drain(current_handle(self.get_device())), "resizing a tensor");
    c10::DataPtr grown = device_allocator().allocate(needed);
    if (storage->nbytes() > 0)
      std::memcpy(rlt_stand_in_alias(grown.get()), rlt_stand_in_alias(storage->data()), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(grown));
    storage->set_nbytes(needed);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

Tensor& set_source(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                   c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset.expect_int());
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}

void record_stream(Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

// Scaled dot product attention by the formula: the CPU's fused kernels are not the device's.
int64_t plain_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                        std::optional<double>, bool) {
  return 0;
}

}  // namespace
}  // namespace torch_cuda

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &torch_cuda::plain_attention)
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", torch_cuda::empty);
  m.impl("empty_strided", torch_cuda::empty_strided);
  m.impl("copy_", torch_cuda::copy_);
  m.impl("_copy_from", torch_cuda::copy_from);
  m.impl("_copy_from_and_resize", torch_cuda::copy_from_and_resize);
  m.impl("_local_scalar_dense", torch_cuda::item);
  m.impl("resize_", torch_cuda::resize_);
  m.impl("set_.source_Storage_storage_offset", torch_cuda::set_source);
  m.impl("record_stream", torch_cuda::record_stream);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
}
