// The C border: every entry returns null, or an error text that the caller frees with rlt_free_text. No
// exception crosses it. Tensors go in as borrowed pointers (what torch-sys calls C_tensor) and come out as
// owned ones.
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

// Whether our CPU kernels take this tensor; everything else goes through ATen's own operations.
inline bool kernel_ready(const at::Tensor& t) {
  return t.device().is_cpu() && t.layout() == at::kStrided &&
         (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16);
}
inline Dtype dtype_of(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 ? Dtype::BF16 : Dtype::F32;
}

// A tensor whose last dim is contiguous and whose leading dims fit `Rows`; copies only when they do not.
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

// Rows a thread should take at least, so that a parallel region costs less than it saves.
inline int64_t grain(int64_t width) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width)); }

}  // namespace rlt
