// Calls of operators that `tch` does not offer, for tests of their references. Tensors are borrowed, results owned by
// the caller; an error is a text that it frees.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <cstring>

#include "torch_cuda.h"

using at::Tensor;

namespace {

struct Arguments {
  const Tensor *q, *k, *v, *cu_q, *cu_k;
  int64_t max_q, max_k, window, mask;
};

template <class Call>
char* guarded(Call call) {
  try {
    call();
    return nullptr;
  } catch (const c10::Error& error) { return strdup(error.what_without_backtrace()); }
}

std::optional<int64_t> only_positive(int64_t n) { return n > 0 ? std::optional<int64_t>(n) : std::nullopt; }

}  // namespace

extern "C" {
char* rlt_stand_in_flash_attention(const Arguments* a, Tensor** out, Tensor** lse) {
  return guarded([&] {
    const std::optional<int64_t> left = a->window > 0 ? std::optional<int64_t>(a->window - 1) : std::nullopt;
    auto result = at::_flash_attention_forward(*a->q, *a->k, *a->v, *a->cu_q, *a->cu_k, a->max_q, a->max_k, 0.0, true,
                                               false, std::nullopt, left);
    *out = new Tensor(std::get<0>(result)), *lse = new Tensor(std::get<1>(result));
  });
}

char* rlt_stand_in_efficient_attention(const Arguments* a, Tensor** out, Tensor** lse) {
  return guarded([&] {
    auto result = at::_efficient_attention_forward(*a->q, *a->k, *a->v, {}, *a->cu_q, *a->cu_k, a->max_q, a->max_k, 0.0,
                                                   a->mask, true, std::nullopt, {}, only_positive(a->window));
    *out = new Tensor(std::get<0>(result)), *lse = new Tensor(std::get<1>(result));
  });
}
}
