// Chooses the kernels by what the CPU says it has, never by what the compiler was told.
#include "kernels.h"

#include <atomic>
#include <cstring>

namespace rlt {

namespace baseline {
extern const Kernels TABLE;
}
#if defined(RLT_X86)
namespace avx2 {
extern const Kernels TABLE;
}
namespace avx512 {
extern const Kernels TABLE;
}
#endif

namespace {
struct Candidate {
  const Kernels* table;
  bool supported;
};

const Kernels* find(const char* isa) {
  const Candidate candidates[] = {
#if defined(RLT_X86)
      {&avx512::TABLE, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("fma")},
      {&avx2::TABLE, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
      {&baseline::TABLE, true},
  };
  for (const Candidate& c : candidates)
    if (c.supported && (isa == nullptr || std::strcmp(isa, c.table->isa) == 0)) return c.table;
  return nullptr;
}

std::atomic<const Kernels*> selected{nullptr};
}  // namespace

const Kernels& kernels() {
  const Kernels* table = selected.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = find(nullptr);
    selected.store(table, std::memory_order_release);
  }
  return *table;
}

bool select_kernels(const char* isa) {
  const Kernels* table = find(isa);
  if (table == nullptr) return false;
  selected.store(table, std::memory_order_release);
  return true;
}

}  // namespace rlt
