// Settings and services of libtorch that tch lacks: autograd with explicit gradients, matmul precision,
// packed linear layers, host and device memory, the optimizer step on flat tensors, detection of CUDA, and
// signal masks of threads.
#include <torch/csrc/autograd/autograd.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "c_api.h"

using at::Tensor;

// Writes the profile of a build with coverage instrumentation; other builds do not have this function.
extern "C" __attribute__((weak)) int __llvm_profile_write_file(void);

namespace rlt {
namespace {

std::vector<Tensor> copies(Tensor* const* tensors, size_t n) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < n; ++i) out.push_back(*tensors[i]);
  return out;
}

Tensor pack_linear_weight(const Tensor& weight, int64_t rows_hint) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_reorder_linear_weight", "");
  torch::jit::Stack stack{weight.contiguous(), rows_hint};
  op.callBoxed(stack);
  return stack[0].toTensor();
}

Tensor packed_linear(const Tensor& x, const Tensor& packed, const Tensor* bias) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "");
  static const c10::List<std::optional<at::Scalar>> no_scalars;
  torch::jit::Stack stack{x.contiguous(),      packed,     bias ? c10::IValue(*bias) : c10::IValue(),
                          std::string("none"), no_scalars, c10::IValue(std::string(""))};
  op.callBoxed(stack);
  return stack[0].toTensor();
}

// Sum of squares in double over chunks of fixed size, added in order: the result is the same with any number
// of threads.
double sum_of_squares(const Tensor& any) {
  if (!kernel_ready(any)) return any.to(at::kDouble).pow(2).sum().item<double>();
  const Tensor t = any.contiguous();
  constexpr int64_t STRETCH = 1 << 16;
  const int64_t n = t.numel(), num = (n + STRETCH - 1) / STRETCH;
  std::vector<double> sums(size_t(num), 0.0);
  at::parallel_for(0, num, 1, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i)
      sums[size_t(i)] =
          kernels().sum_of_squares(t.data_ptr(), dtype_of(t), i * STRETCH, std::min(n, (i + 1) * STRETCH));
  });
  double total = 0.0;
  for (double s : sums) total += s;
  return total;
}

bool flat_float(const Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous();
}

void adamw_composed(const Tensor& p, const Tensor& grad, const Tensor& m, const Tensor& v, const AdamW& a) {
  Tensor g = grad.to(p.scalar_type()) * a.grad_scale;
  p.mul_(1.0 - a.lr * a.weight_decay);
  m.lerp_(g, 1.0 - a.beta1);
  v.mul_(a.beta2).addcmul_(g, g, 1.0 - a.beta2);
  p.addcdiv_(m, (v.sqrt() / a.bias2_sqrt).add_(a.eps), -a.lr / a.bias1);
}

struct AdamWSettings {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t step;
};

void adamw_step(const Tensor& p, const Tensor& grad, const Tensor& m, const Tensor& v,
                const AdamWSettings& s) {
  TORCH_CHECK(p.numel() == grad.numel() && p.numel() == m.numel() && p.numel() == v.numel() && s.step >= 1,
              "an AdamW step from 1 on expected parameter, gradient and moments alike, got ", p.sizes(), ", ",
              grad.sizes(), ", ", m.sizes(), ", ", v.sizes(), " at step ", s.step);
  AdamW a{nullptr, nullptr, nullptr,        nullptr,      s.lr, s.beta1,
          s.beta2, s.eps,   s.weight_decay, s.grad_scale, 0,    0};
  a.bias1 = 1.0 - std::pow(s.beta1, double(s.step));
  a.bias2_sqrt = std::sqrt(1.0 - std::pow(s.beta2, double(s.step)));
  if (!(flat_float(p) && flat_float(grad) && flat_float(m) && flat_float(v)))
    return adamw_composed(p, grad.view_as(p), m, v, a);
  a.param = p.data_ptr<float>(), a.grad = grad.data_ptr<float>();
  a.m = m.data_ptr<float>(), a.v = v.data_ptr<float>();
  // Chunks of full vectors, so that the arithmetic of an element does not depend on the number of threads.
  constexpr int64_t STRETCH = 1 << 14;
  const int64_t n = p.numel(), num = (n + STRETCH - 1) / STRETCH;
  at::parallel_for(0, num, 1,
                   [&](int64_t b, int64_t e) { kernels().adamw(a, b * STRETCH, std::min(n, e * STRETCH)); });
}

// An allocator that rounds sizes up to eighths of a power of two. Activations of batches of different lengths
// rarely have the same size, and glibc's aligned allocation needs a hole larger than the freed block. So
// memory freed by one step would not fit the next, and the heap would grow to several times the memory in
// use. The alignment padding is part of the rounded block.
struct RecurringSizes final : c10::Allocator {
  static constexpr size_t ALIGNMENT = 64, SMALL = 1 << 16;

  static size_t rounded(size_t n) {
    if (n < SMALL) return n;
    const size_t eighth = (size_t(1) << (63 - __builtin_clzll(n))) / 8;
    return (n + eighth - 1) / eighth * eighth;
  }

  c10::DataPtr allocate(size_t n) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (n == 0) return {nullptr, nullptr, &release, cpu};
    void* piece = std::malloc(rounded(n) + ALIGNMENT);
    TORCH_CHECK(piece != nullptr, "not enough memory for a tensor of ", n, " bytes");
    // malloc aligns to 16 bytes, so a pointer fits before the data.
    void* data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(piece) + ALIGNMENT) & ~(ALIGNMENT - 1));
    static_cast<void**>(data)[-1] = piece;
    return {data, data, &release, cpu};
  }

  static void release(void* data) {
    if (data != nullptr) std::free(static_cast<void**>(data)[-1]);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

// Whether CUDA was loaded. Check this before any call of `at::hasCUDA()`, which caches its first result.
std::atomic<bool> has_cuda{false};

// Loads the driver and libtorch_cuda.so, which registers its devices when it is loaded. Without a driver
// nothing else is loaded, so a CPU machine needs none of CUDA's libraries. libtorch caches the first result
// of `at::hasCUDA()`, so it is called only after both are loaded. Returns an empty text if CUDA can be used,
// else what is missing.
std::string load_cuda() {
  const auto missing = [](const char* library) {
    const char* cause = dlerror();
    return std::string(library) + " cannot be loaded: " + (cause != nullptr ? cause : "no cause is known");
  };
  for (const char* library : {"libcuda.so.1", "libtorch_cuda.so"})
    if (dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) return missing(library);
  if (!at::hasCUDA()) return "libtorch_cuda.so is loaded, but libtorch finds no CUDA in it";
  has_cuda = true;
  return {};
}

// Returns cached blocks to the devices. The next operator on the device reports an error that is ignored
// here.
void empty_device_caches() {
  if (!has_cuda) return;
  try {
    c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  } catch (const std::exception&) {}
}

// Ends the process with its exit code. Exit handlers run in reverse order of registration, and libtorch
// registers its destructors when it is loaded, so they would run after this one.
void end_at_once(int code, void*) {
  if (__llvm_profile_write_file != nullptr) __llvm_profile_write_file();
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace
}  // namespace rlt

extern "C" {
void rlt_free_text(char* text) { std::free(text); }

char* rlt_backward(Tensor* const* outputs, Tensor* const* grads, size_t n) {
  return rlt::guarded([&] { torch::autograd::backward(rlt::copies(outputs, n), rlt::copies(grads, n)); });
}

char* rlt_set_grad(Tensor* leaf, Tensor* grad) {
  return rlt::guarded([&] { leaf->mutable_grad() = grad == nullptr ? Tensor() : *grad; });
}

char* rlt_set_float32_matmul_precision(const char* name) {
  return rlt::guarded([&] { at::globalContext().setFloat32MatmulPrecision(name); });
}

// Multiplies by oneDNN on CPUs, as the precision "medium" allows, but keeps "highest" on GPUs, where "medium"
// would mean TF32.
char* rlt_multiply_by_onednn() {
  return rlt::guarded([&] {
    at::globalContext().setFloat32MatmulPrecision("highest");
    at::globalContext().setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL,
                                            at::Float32Precision::BF16);
  });
}

char* rlt_cuda_multiplies_in_tf32(bool* out) {
  return rlt::guarded([&] { *out = at::globalContext().allowTF32CuBLAS(); });
}

// cuBLAS reads the size of its workspace from the environment when its first handle is created. With another
// size streams may share workspaces, and the order of sums would vary.
char* rlt_set_deterministic(bool wanted) {
  return rlt::guarded([&] {
    if (wanted) TORCH_CHECK(setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0) == 0, "setenv failed");
    at::globalContext().setDeterministicAlgorithms(wanted, false);
    // Deterministic mode would fill uninitialised memory, which helps to find bugs but changes no result.
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    at::globalContext().setDeterministicCuDNN(wanted);
  });
}
bool rlt_is_deterministic() { return at::globalContext().deterministicAlgorithms(); }

const char* rlt_kernels_isa() { return rlt::kernels().isa; }
bool rlt_select_kernels(const char* isa) { return rlt::select_kernels(isa); }

char* rlt_pack_linear(Tensor* weight, int64_t rows_hint, Tensor** out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    *out = rlt::owned(rlt::pack_linear_weight(weight->detach(), rows_hint));
  });
}
char* rlt_packed_linear(Tensor* x, Tensor* packed, Tensor* bias, Tensor** out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    *out = rlt::owned(rlt::packed_linear(*x, *packed, bias));
  });
}

char* rlt_sum_of_squares(Tensor* tensor, double* out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    *out = rlt::sum_of_squares(tensor->detach());
  });
}
char* rlt_adamw(Tensor* param, Tensor* grad, Tensor* m, Tensor* v, const rlt::AdamWSettings* settings) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    rlt::adamw_step(param->detach(), grad->detach(), *m, *v, *settings);
  });
}

char* rlt_tensor_from_owner(void* data, const int64_t* sizes, size_t num_dims, int8_t scalar_type,
                            void* owner, void (*release)(void*), Tensor** out) {
  return rlt::guarded([&] {
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type));
    *out = rlt::owned(
        at::from_blob(data, {sizes, num_dims}, [owner, release](void*) { release(owner); }, options));
  });
}

char* rlt_resize_storage(Tensor* tensor, size_t num_bytes) {
  return rlt::guarded([&] {
    c10::StorageImpl* storage = tensor->storage().unsafeGetStorageImpl();
    TORCH_CHECK(storage->resizable() && storage->allocator() != nullptr,
                "expected memory that libtorch allocated, got someone else's");
    c10::DataPtr data(nullptr, storage->device());
    // Frees the old memory before allocating the new.
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(0);
    if (num_bytes == 0) return;
    // An allocator uses the current device of the thread, which may not be that of the tensor.
    const c10::DeviceGuard guard(storage->device());
    storage->set_data_ptr_noswap(storage->allocator()->allocate(num_bytes));
    storage->set_nbytes(num_bytes);
  });
}

// Loads CUDA. `missing` becomes null if CUDA can be used, else a text that the caller frees.
char* rlt_load_cuda(char** missing) {
  return rlt::guarded([&] {
    static const std::string found = rlt::load_cuda();
    *missing = found.empty() ? nullptr : strdup(found.c_str());
  });
}

// glibc maps blocks above a threshold and unmaps them when they are freed; 32 MiB is the largest threshold
// that it accepts. Only the main arena grows without bound, so there must be no other: the buffers of a
// second thread would be mapped again.
void rlt_reuse_large_buffers() {
  static rlt::RecurringSizes allocator;
  c10::SetCPUAllocator(&allocator);
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT32_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}
void rlt_release_free_memory() {
  malloc_trim(0);
  rlt::empty_device_caches();
}

// Values of torch.cuda.max_memory_allocated and max_memory_reserved, through the device-independent interface
// of allocators, because this library is not linked with CUDA.
char* rlt_peak_cuda_bytes(int64_t index, int64_t* allocated, int64_t* reserved) {
  return rlt::guarded([&] {
    const auto device = static_cast<c10::DeviceIndex>(index);
    const auto stats = c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(device);
    constexpr auto ALL = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *allocated = stats.allocated_bytes[ALL].peak, *reserved = stats.reserved_bytes[ALL].peak;
  });
}

// Resets the peak to the memory allocated now.
char* rlt_reset_peak_cuda_bytes(int64_t index) {
  return rlt::guarded([&] { c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(static_cast<c10::DeviceIndex>(index)); });
}

// Makes the process skip, at its exit, all handlers that were registered before. `on_exit` fails only for
// lack of memory; the process then exits as usual.
void rlt_skip_destructors() { on_exit(rlt::end_at_once, nullptr); }

// Unblocks or blocks signals on the calling thread. Returns 0 or an error number.
int rlt_take_signals(const int* signals, size_t n, bool takes) {
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < n; ++i) sigaddset(&set, signals[i]);
  return pthread_sigmask(takes ? SIG_UNBLOCK : SIG_BLOCK, &set, nullptr);
}
}
