// Our CUDA kernels as one source of this machine, and their table.
#include "fibers.h"
#include "table.h"

namespace {

std::vector<RltKernelEntry>& entries() {
  static std::vector<RltKernelEntry> all;
  return all;
}

// A kernel's own `invoke`: `kernel` is known when this is compiled.
template <class Kernel, Kernel kernel>
struct Registered {
  static void call(void* params) { RltParams<Kernel>::call(kernel, static_cast<void**>(params)); }
  static void invoke(const unsigned grid[3], const unsigned block[3], size_t shared_bytes, void** params) {
    fibers::run(grid, block, shared_bytes, call, params);
  }
  explicit Registered(const char* name) {
    using Params = RltParams<Kernel>;
    entries().push_back({name, invoke, Params::count, Params::sizes});
  }
};

}  // namespace

#define RLT_REGISTER(name) static const Registered<decltype(&name), &name> registered_##name(#name);

#include "kernels.cu"

extern "C" const RltKernelEntry* rlt_kernel_table(size_t* n) {
  *n = entries().size();
  return entries().data();
}
