// Attention over segments by its formula, plain loops in double: what the operators of attention.cpp stand for.
#pragma once
#include <cstdint>
#include <vector>

namespace torch_cuda {

// Rows [begin, end) of queries that see rows of keys.
struct Segment {
  int64_t q_begin, q_end, k_begin, k_end;
};

// Queries are [tokens, heads, dim] without gaps, keys and values [tokens, kv_heads, dim]; several heads of queries
// share one of keys.
struct Attention {
  std::vector<Segment> segments;
  int64_t heads, kv_heads, dim;
  double scale;
  // How many keys before and after a query's own place it sees; all of them where negative. Its place among the keys
  // is counted from the end of both, or from their beginning.
  int64_t left, right;
  bool is_from_end;
};

// `lse`, the logarithm of each row's sum, is [heads, tokens]; infinity where a query sees nothing, whose output is
// zero.
void attend(const Attention& a, const float* q, const float* k, const float* v, float* out, float* lse);
void attend_backward(const Attention& a, const float* q, const float* k, const float* v, const float* out,
                     const float* grad_out, float* grad_q, float* grad_k, float* grad_v);

}  // namespace torch_cuda
