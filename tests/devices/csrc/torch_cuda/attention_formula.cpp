// Attention over segments by its formula.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention.h"

namespace torch_cuda {
namespace {

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

struct Row {
  int64_t first, last;
};

// The keys that a query sees.
Row seen_by(const Attention& a, const Segment& s, int64_t query) {
  const int64_t q_len = s.q_end - s.q_begin, k_len = s.k_end - s.k_begin;
  const int64_t place = query - s.q_begin + (a.is_from_end ? k_len - q_len : 0);
  const int64_t first = a.left < 0 ? 0 : std::max<int64_t>(0, place - a.left);
  const int64_t last = a.right < 0 ? k_len : std::min(k_len, place + a.right + 1);
  return {s.k_begin + first, s.k_begin + std::max(first, last)};
}

// Probabilities of the keys that a query sees, and the logarithm of their sum.
double softmax(const Attention& a, const float* query, const float* k, int64_t kv_head, Row row,
               std::vector<double>& p) {
  p.resize(size_t(row.last - row.first));
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t j = row.first; j < row.last; ++j) {
    double& score = p[size_t(j - row.first)];
    score = a.scale * dot(query, k + (j * a.kv_heads + kv_head) * a.dim, a.dim);
    largest = std::max(largest, score);
  }
  for (double& score : p) sum += score = std::exp(score - largest);
  for (double& score : p) score /= sum;
  return p.empty() ? std::numeric_limits<double>::infinity() : largest + std::log(sum);
}

template <class Visit>
void each_row(const Attention& a, Visit visit) {
  for (const Segment& s : a.segments)
    for (int64_t i = s.q_begin; i < s.q_end; ++i)
      for (int64_t h = 0; h < a.heads; ++h) visit(seen_by(a, s, i), i, h, h / (a.heads / a.kv_heads));
}

}  // namespace

void attend(const Attention& a, const float* q, const float* k, const float* v, float* out, float* lse) {
  const int64_t num_queries = a.segments.empty() ? 0 : a.segments.back().q_end;
  std::vector<double> p, sum(size_t(a.dim));
  each_row(a, [&](Row row, int64_t i, int64_t h, int64_t kv_head) {
    const int64_t at = (i * a.heads + h) * a.dim;
    lse[h * num_queries + i] = float(softmax(a, q + at, k, kv_head, row, p));
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t j = row.first; j < row.last; ++j)
      for (int64_t d = 0; d < a.dim; ++d)
        sum[size_t(d)] += p[size_t(j - row.first)] * double(v[(j * a.kv_heads + kv_head) * a.dim + d]);
    for (int64_t d = 0; d < a.dim; ++d) out[at + d] = float(sum[size_t(d)]);
  });
}

void attend_backward(const Attention& a, const float* q, const float* k, const float* v, const float* out,
                     const float* grad_out, float* grad_q, float* grad_k, float* grad_v) {
  const int64_t num_keys = a.segments.empty() ? 0 : a.segments.back().k_end, width = a.kv_heads * a.dim;
  std::vector<double> p, into_q(size_t(a.dim)), into_k(size_t(num_keys * width)), into_v(size_t(num_keys * width));
  each_row(a, [&](Row row, int64_t i, int64_t h, int64_t kv_head) {
    const int64_t at = (i * a.heads + h) * a.dim;
    softmax(a, q + at, k, kv_head, row, p);
    const double mean = dot(grad_out + at, out + at, a.dim);
    std::fill(into_q.begin(), into_q.end(), 0.0);
    for (int64_t j = row.first; j < row.last; ++j) {
      const int64_t key = j * width + kv_head * a.dim;
      const double weight = p[size_t(j - row.first)];
      const double score = a.scale * weight * (dot(grad_out + at, v + key, a.dim) - mean);
      for (int64_t d = 0; d < a.dim; ++d) {
        into_v[size_t(key + d)] += weight * double(grad_out[at + d]);
        into_k[size_t(key + d)] += score * double(q[at + d]);
        into_q[size_t(d)] += score * double(k[key + d]);
      }
    }
    for (int64_t d = 0; d < a.dim; ++d) grad_q[at + d] = float(into_q[size_t(d)]);
  });
  for (int64_t i = 0; i < num_keys * width; ++i)
    grad_k[i] = float(into_k[size_t(i)]), grad_v[i] = float(into_v[size_t(i)]);
}

}  // namespace torch_cuda
