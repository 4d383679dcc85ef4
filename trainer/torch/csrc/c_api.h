// The C API. Every function returns null, or an error text that the caller frees with rlt_free_text; no
// exception crosses the API. Tensor arguments are borrowed pointers (torch-sys' C_tensor); tensor results are
// owned pointers.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <exception>

#include "kernels.h"

namespace rlt {

template <class Body>
char* guarded(Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& e) {
    return strdup(e.what_without_backtrace());
  } catch (const std::exception& e) { return strdup(e.what()); } catch (...) {
    return strdup("an exception of unknown type");
  }
}

inline at::Tensor* owned(at::Tensor t) { return new at::Tensor(std::move(t)); }

// Whether our CPU kernels support this tensor. ATen's operations compute all other tensors.
inline bool kernel_ready(const at::Tensor& t) {
  return t.device().is_cpu() && t.layout() == at::kStrided &&
         (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16);
}
inline Dtype dtype_of(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 ? Dtype::BF16 : Dtype::F32;
}

// Returns the tensor with a contiguous last dimension and leading dimensions that fit `Rows`. Copies only if
// necessary.
inline at::Tensor as_rows(const at::Tensor& t) {
  const bool dense_last = t.dim() >= 1 && (t.stride(-1) == 1 || t.size(-1) == 1);
  return dense_last && t.dim() <= 3 ? t : t.contiguous();
}

inline Rows rows_of(const at::Tensor& t) {
  if (t.dim() == 3) return {t.data_ptr(), t.size(1), t.stride(0), t.stride(1)};
  if (t.dim() == 2) return {t.data_ptr(), 1, t.stride(0), 0};
  return {t.data_ptr(), 1, t.size(-1), 0};
}
inline int64_t num_rows(const at::Tensor& t) { return t.size(-1) == 0 ? 0 : t.numel() / t.size(-1); }

// Smallest number of rows per thread for which a parallel region saves more time than it costs.
inline int64_t grain(int64_t width) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width)); }

// Launches a row kernel on a CUDA device (`launch` in device_rows.rs). Returns false on failure, with a
// NUL-terminated message.
using LaunchRows = bool (*)(int32_t kernel, at::Tensor* const* tensors, size_t num_tensors, const double* numbers,
                            size_t num_numbers, char* message, size_t message_bytes);
constexpr size_t MESSAGE_BYTES = 512;

// Row operations of fused.cpp on a CUDA device, defined in fused_cuda.cpp.
bool device_takes(const at::Tensor& t);
bool device_takes_norm(const at::Tensor& x, const at::Tensor& weight);
at::Tensor device_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset,
                           LaunchRows launcher);
at::Tensor device_gated(const at::Tensor& gate, const at::Tensor& up, int64_t activation, LaunchRows launcher);
at::Tensor device_gated_packed(const at::Tensor& packed, int64_t activation, LaunchRows launcher);
at::Tensor device_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, LaunchRows launcher);

}  // namespace rlt
