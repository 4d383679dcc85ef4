// Selects the kernels by the features that the CPU reports at run time, not by compiler flags.
#include "kernels.h"

#include <atomic>
#include <cstring>
#if defined(RLT_AMX)
#include <ATen/cpu/Utils.h>
#endif

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
#if defined(RLT_AVX512_BF16)
namespace avx512_bf16 {
extern const Bf16Kernels TABLE;
}
#endif
#if defined(RLT_AMX)
namespace amx {
extern const Bf16Kernels TABLE;
}
#endif
#endif

namespace {
struct Candidate {
  const Kernels* table;
  bool supported;
};

#if defined(RLT_AMX)
// Asks Linux for the permission to use AMX tiles, through libtorch; Linux grants it on request only.
bool tiles_granted() {
  static const bool granted = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                              __builtin_cpu_supports("avx512bf16") && at::cpu::init_amx();
  return granted;
}
#endif
#if defined(RLT_X86)
// The AVX-512 kernels, with `bf16` for products in bfloat16.
Kernels with_bf16(const char* isa, const Bf16Kernels* bf16) {
  Kernels own = avx512::TABLE;
  own.isa = isa, own.bf16 = bf16;
  return own;
}
#endif
#if defined(RLT_AVX512_BF16)
const Kernels& avx512_bf16_table() {
  static const Kernels table = with_bf16("avx512_bf16", &avx512_bf16::TABLE);
  return table;
}
#endif
#if defined(RLT_AMX)
const Kernels& amx_table() {
  static const Kernels table = with_bf16("amx", &amx::TABLE);
  return table;
}
#endif

const Kernels* find(const char* isa) {
#if defined(RLT_X86)
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("fma");
#endif
  const Candidate candidates[] = {
#if defined(RLT_X86)
#if defined(RLT_AMX)
      {&amx_table(), has_avx512 && tiles_granted()},
#endif
#if defined(RLT_AVX512_BF16)
      {&avx512_bf16_table(), has_avx512 && __builtin_cpu_supports("avx512bf16")},
#endif
      {&avx512::TABLE, has_avx512},
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

const Bf16Kernels* bf16_kernels() {
  const Bf16Kernels* of_table = kernels().bf16;
  return of_table ? of_table : find(nullptr)->bf16;
}

bool has_one_order(Dtype dtype) { return dtype == Dtype::BF16 && kernels().bf16 != nullptr; }

bool select_kernels(const char* isa) {
  const Kernels* table = find(isa);
  if (table == nullptr) return false;
  selected.store(table, std::memory_order_release);
  return true;
}

}  // namespace rlt
