// The table of kernels of the stand-in device: what a fat binary is to a GPU. Each of our own `.cu` sources is compiled
// for the CPU and lists its kernels here by name, so that `cuModuleGetFunction` finds them.
#pragma once
#include <cstddef>
#include <type_traits>
#include <utility>

struct RltKernelEntry {
  const char* name;
  // Runs all blocks to their end. `params` are pointers to the arguments, as `cuLaunchKernel` takes them.
  void (*invoke)(const unsigned grid[3], const unsigned block[3], size_t shared_bytes, void** params);
  // A launch is carried out later than it is asked for, so the arguments are copied: their number and sizes in bytes.
  unsigned num_params;
  const unsigned* param_sizes;
};

// All kernels of the stand-in device, and how many there are in `n`.
extern "C" const RltKernelEntry* rlt_kernel_table(size_t* n);

// Sizes of a kernel's parameters, from its type: `RltParams<decltype(&kernel)>::sizes`.
template <class Kernel>
struct RltParams;
template <class... Args>
struct RltParams<void (*)(Args...)> {
  static constexpr unsigned count = sizeof...(Args);
  static constexpr unsigned sizes[sizeof...(Args) + 1] = {unsigned(sizeof(Args))..., 0};

  // Calls a kernel with the arguments that `params` point to.
  static void call(void (*kernel)(Args...), void** params) { call(kernel, params, std::index_sequence_for<Args...>()); }

 private:
  template <size_t... I>
  static void call(void (*kernel)(Args...), void** params, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<Args>*>(params[I])...);
  }
};
