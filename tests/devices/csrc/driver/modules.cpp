// Modules of kernels and their launches. Images are not code here: the kernels are those that were compiled into this
// library, whatever the image, but a text may say for which architectures it stands.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../on_cpu/table.h"
#include "core.h"

using namespace stand_in;

namespace {

// `rlt-stand-in kernels sm_80 sm_90`: an image for these architectures alone.
// Shared memory of a block, in bytes: what every kernel may have, and what one may ask for.
constexpr size_t SHARED = 48 << 10, MOST_SHARED = 227 << 10;

size_t allowed_shared_bytes(CUfunction function) {
  std::lock_guard<std::mutex> guard(core().lock);
  const auto found = core().shared_bytes.find(function);
  return found == core().shared_bytes.end() ? SHARED : std::max(SHARED, found->second);
}

constexpr char TEXT[] = "rlt-stand-in kernels";

CUresult admit(const char* image) {
  if (image == nullptr || *image == 0) return CUDA_ERROR_INVALID_IMAGE;
  if (std::strncmp(image, TEXT, sizeof TEXT - 1) != 0) return CUDA_SUCCESS;
  const std::string own = "sm_" + std::to_string(core().settings.compute_capability);
  return std::strstr(image, own.c_str()) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

const RltKernelEntry* entry_of(CUfunction function) { return reinterpret_cast<const RltKernelEntry*>(function); }

// The arguments of a launch, copied.
struct Arguments {
  std::vector<std::vector<char>> values;
  std::vector<void*> pointers;

  Arguments(const RltKernelEntry& entry, void** params) {
    for (unsigned i = 0; i < entry.num_params; ++i) {
      const auto* from = static_cast<const char*>(params[i]);
      values.emplace_back(from, from + entry.param_sizes[i]);
    }
    for (auto& value : values) pointers.push_back(value.data());
  }
};

}  // namespace

// Where no kernel was compiled in, the table is empty.
extern "C" __attribute__((weak)) const RltKernelEntry* rlt_kernel_table(size_t* n) { return *n = 0, nullptr; }

extern "C" {
CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  if (CUresult refused = ready()) return refused;
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult refused = admit(static_cast<const char*>(image))) return refused;
  *out = reinterpret_cast<CUmodule>(current_device);
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(out, image);
}
CUresult cuModuleUnload(CUmodule) { return ready(); }

CUresult cuModuleGetFunction(CUfunction* out, CUmodule, const char* name) {
  if (CUresult refused = ready()) return refused;
  size_t n = 0;
  const RltKernelEntry* table = rlt_kernel_table(&n);
  for (size_t i = 0; i < n; ++i) {
    if (std::strcmp(table[i].name, name) != 0) continue;
    *out = reinterpret_cast<CUfunction>(const_cast<RltKernelEntry*>(&table[i]));
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (CUresult refused = ready()) return refused;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value < 0 || size_t(value) > MOST_SHARED) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> guard(core().lock);
  core().shared_bytes[function] = size_t(value);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* out, CUfunction_attribute attribute, CUfunction) {
  if (CUresult refused = ready()) return refused;
  *out = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, CUfunction, int block, size_t) {
  if (CUresult refused = ready()) return refused;
  return *out = block > 0 ? 2048 / block : 0, CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream handle, void** params,
                        void** extra) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const size_t threads = size_t(block_x) * block_y * block_z, blocks = size_t(grid_x) * grid_y * grid_z;
  const bool is_too_wide = threads > 1024 || block_z > 64 || grid_y > 65535 || grid_z > 65535;
  if (threads == 0 || blocks == 0 || is_too_wide || extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (shared_bytes > allowed_shared_bytes(function)) return CUDA_ERROR_INVALID_VALUE;
  const RltKernelEntry* entry = entry_of(function);
  auto arguments = std::make_shared<Arguments>(*entry, params);
  if (!rlt_stand_in_is_capturing(handle)) rlt_stand_in_count(RLT_LAUNCH, 0);
  return enqueue(*stream, [=] {
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    const Opened opened;
    entry->invoke(grid, block, shared_bytes, arguments->pointers.data());
    return true;
  });
}
}
