// Linear layers with a float32 weight that was packed once for our own kernel.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "c_api.h"

using at::Tensor;

namespace rlt {
namespace {

// Smallest number of multiply-adds per thread for which waking the thread saves time.
constexpr int64_t PARALLEL_COST = 1 << 17;

Tensor linear_of_panels(const Tensor& x_any, const Tensor& panels, int64_t out, const Tensor* bias) {
  TORCH_CHECK(x_any.dim() >= 1 && x_any.size(-1) == panels.size(1) && x_any.scalar_type() == at::kFloat &&
                  x_any.device().is_cpu(),
              "a packed linear layer of ", panels.size(1),
              " inputs expected a float32 CPU tensor [.., inputs], got ", x_any.sizes(), " of ",
              x_any.scalar_type());
  const Tensor x = x_any.contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = out;
  Tensor y = at::empty(sizes, x.options());
  LinearPanels a{};
  a.in = panels.size(1), a.out = out, a.num_rows = num_rows(x), a.x_row = a.in;
  a.x = x.data_ptr<float>(), a.panels = panels.data_ptr<float>(), a.y = y.data_ptr<float>();
  a.bias = bias ? bias->data_ptr<float>() : nullptr;
  const int64_t item_cost =
      std::max<int64_t>(1, LinearPanels::PANEL * a.in * std::min<int64_t>(a.num_rows, 64));
  const Kernels& table = kernels();
  at::parallel_for(0, table.linear_items(a), std::max<int64_t>(1, PARALLEL_COST / item_cost),
                   [&](int64_t b, int64_t e) { table.linear_panels(a, b, e); });
  return y;
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_linear_of_panels(Tensor* x, Tensor* panels, int64_t num_outputs, Tensor* bias, Tensor** out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    *out = rlt::owned(rlt::linear_of_panels(x->detach(), *panels, num_outputs, bias));
  });
}
}
