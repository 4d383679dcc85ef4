// Errors of libtorch on a GPU that the CPU's operators do not have: operators without a deterministic implementation
// while deterministic algorithms are on, and operators that allocate or wait internally while a graph is captured.
#include <ATen/Context.h>

#include <cstdlib>
#include <set>

#include "torch_cuda.h"

namespace torch_cuda {
namespace {

using Names = std::set<std::string>;

// Operators that call `alertNotDeterministic` on CUDA for all arguments.
const Names& without_determinism() {
  static const Names names{
      "aten::kthvalue",
      "aten::histc",
      "aten::put_",
      "aten::_embedding_bag_dense_backward",
      "aten::grid_sampler_2d_backward",
      "aten::grid_sampler_3d_backward",
      "aten::upsample_linear1d_backward",
      "aten::upsample_bilinear2d_backward",
      "aten::_upsample_bilinear2d_aa_backward",
      "aten::upsample_bicubic2d_backward",
      "aten::_upsample_bicubic2d_aa_backward",
      "aten::upsample_trilinear3d_backward",
      "aten::_adaptive_avg_pool2d_backward",
      "aten::_adaptive_avg_pool3d_backward",
      "aten::adaptive_max_pool2d_backward",
      "aten::adaptive_max_pool3d_backward",
      "aten::avg_pool3d_backward",
      "aten::max_pool3d_with_indices_backward",
      "aten::fractional_max_pool2d_backward",
      "aten::fractional_max_pool3d_backward",
      "aten::reflection_pad1d_backward",
      "aten::reflection_pad2d_backward",
      "aten::reflection_pad3d_backward",
      "aten::replication_pad1d_backward",
      "aten::replication_pad2d_backward",
      "aten::replication_pad3d_backward",
      "aten::nll_loss2d_forward",
      "aten::nll_loss2d_backward",
      "aten::_ctc_loss_backward",
      "aten::max_unpool2d",
      "aten::max_unpool3d",
  };
  return names;
}

bool is_floating(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && at::isFloatingType(value.toTensor().scalar_type());
}

// Whether an operator lacks a deterministic implementation for these arguments only.
bool lacks_determinism_for(const std::string& name, const std::vector<c10::IValue>& arguments) {
  if (name == "aten::cumsum" || name == "aten::cumsum_") return is_floating(arguments.at(0));
  if (name == "aten::bincount") return is_floating(arguments.at(1));
  if (name == "aten::median" || name == "aten::nanmedian") return arguments.size() > 1;
  if (name == "aten::scatter_reduce" || name == "aten::scatter_reduce_") {
    const std::string reduction = arguments.at(4).toStringRef();
    return reduction == "sum" || reduction == "mean" || reduction == "prod";
  }
  return false;
}

// Matrix products by cuBLAS. The first one of a thread on a stream allocates a workspace.
const Names& products() {
  static const Names names{"aten::mm",      "aten::addmm", "aten::_addmm_activation", "aten::bmm",
                           "aten::baddbmm", "aten::mv",    "aten::addmv",             "aten::dot"};
  return names;
}

// Whether cuBLAS is configured for deterministic products. libtorch reads the environment at the first product of a
// process, whether determinism is on or not, and keeps the answer.
bool multiplies_deterministically() {
  static const bool answer = [] {
    const char* workspace = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    const std::string config = workspace == nullptr ? "" : workspace;
    return config == ":4096:8" || config == ":16:8";
  }();
  return answer;
}

// Operators whose out variants allocate scratch memory or query events, too.
const Names& allocating() {
  static const Names names{
      "aten::sort",      "aten::argsort",          "aten::topk",     "aten::cumsum",        "aten::cumprod",
      "aten::cumsum_",   "aten::multinomial",      "aten::randperm", "aten::index_put_",    "aten::_index_put_impl_",
      "aten::sum",       "aten::mean",             "aten::amax",     "aten::max",           "aten::norm",
      "aten::logsumexp", "aten::linalg_vector_norm", "aten::argmax", "aten::masked_scatter_", "aten::index_add_",
      "aten::prod",      "aten::var",              "aten::std",      "aten::any",           "aten::all",
      "aten::searchsorted", "aten::embedding_dense_backward"};
  return names;
}

// Streams on which the thread has computed a product.
std::set<CUstream>& multiplied() {
  static thread_local std::set<CUstream> streams;
  return streams;
}

}  // namespace

void check_determinism(const std::string& name, const std::vector<c10::IValue>& arguments) {
  const bool is_configured = products().count(name) == 0 || multiplies_deterministically();
  if (!at::globalContext().deterministicAlgorithms()) return;
  if (without_determinism().count(name) > 0 || lacks_determinism_for(name, arguments))
    at::Context::alertNotDeterministic(name);
  TORCH_CHECK(is_configured, "Deterministic behavior was enabled with `torch.use_deterministic_algorithms(True)`, but "
              "this operation is not deterministic because it uses CuBLAS; set CUBLAS_WORKSPACE_CONFIG=:4096:8 or "
              ":16:8 before the first one");
}

void check_capture(const std::string& name, CUstream stream) {
  static const char* const refused = std::getenv("RLT_STAND_IN_CAPTURE_REFUSES");
  if (refused != nullptr && name.rfind(refused, 0) == 0) forbid_in_capture(name + " is refused by the environment");
  if (allocating().count(name) > 0) forbid_in_capture(name + " allocates scratch memory");
  if (products().count(name) > 0 && multiplied().count(stream) == 0)
    forbid_in_capture(name + " is the thread's first product on this stream, which allocates cuBLAS' workspace");
}

void count_product(const std::string& name, CUstream stream) {
  if (products().count(name) > 0) multiplied().insert(stream);
}

}  // namespace torch_cuda
