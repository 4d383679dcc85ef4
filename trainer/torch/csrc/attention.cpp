// Attention over packed segments (differentiable) and over a paged cache (decoding).
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <vector>

#include "c_api.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace rlt {

// Parameters of the attention scores (`RawScores` in ffi.rs).
struct Scores {
  double scale;
  int64_t window;  // 0: no window
  double softcap;  // 0: no softcap
  Tensor* sinks;   // [H], or null

  std::optional<Tensor> sinks_if_any() const {
    return sinks == nullptr ? std::nullopt : std::optional<Tensor>(*sinks);
  }
};

namespace {

// Returns the scratch memory of this thread. Small buffers are kept between calls, since faulting in fresh
// pages costs more than the arithmetic.
float* scratch_of(int64_t floats) {
  constexpr int64_t KEPT = 4 << 20;
  struct Buffer {
    float* data = nullptr;
    int64_t len = 0;
    ~Buffer() { std::free(data); }
  };
  static thread_local Buffer buffer;
  if (buffer.len < floats || (buffer.len > KEPT && floats <= KEPT)) {
    std::free(buffer.data);
    buffer.len = 0;
    buffer.data = static_cast<float*>(std::aligned_alloc(64, size_t((floats + 15) / 16 * 64)));
    TORCH_CHECK(buffer.data != nullptr, "allocating ", floats * 4, " bytes of scratch memory failed");
    buffer.len = floats;
  }
  return buffer.data;
}

// Runs work(i) for i in [0, n). Each thread takes the next item as soon as it is free.
template <class Work>
void share_out(int64_t n, Work work) {
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(n, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < n; i = next++) work(i);
  });
}

Tensor head_rows(const Tensor& t) { return t.stride(2) == 1 || t.size(2) == 1 ? t : t.contiguous(); }

Attention attention_args(const Tensor& q, const Tensor& k, const Tensor& v, double scale, int64_t window,
                         double softcap) {
  Attention a{};
  a.dtype = dtype_of(q), a.q = q.data_ptr(), a.k = k.data_ptr(), a.v = v.data_ptr();
  a.q_t = q.stride(0), a.q_h = q.stride(1), a.k_t = k.stride(0), a.k_h = k.stride(1);
  a.v_t = v.stride(0), a.v_h = v.stride(1), a.num_tokens = q.size(0), a.heads = q.size(1);
  a.kv_heads = k.size(1), a.dim = q.size(2), a.window = window, a.scale = float(scale);
  a.softcap = float(softcap), a.aligned = has_one_order(a.dtype);
  return a;
}

// Converts the sinks to the layout that kernels read: [H] in float. The returned tensor owns the memory.
Tensor sinks_in_float(const std::optional<Tensor>& sinks, int64_t heads) {
  if (!sinks) return {};
  TORCH_CHECK(sinks->dim() == 1 && sinks->size(0) == heads, "attention of ", heads,
              " heads expected a sink for each, got ", sinks->sizes());
  return sinks->detach().to(at::kFloat).contiguous();
}

const float* data_of(const Tensor& sinks) { return sinks.defined() ? sinks.const_data_ptr<float>() : nullptr; }

// Segments of the packed tokens: their offsets and, for each segment, the index of the segment that it
// continues, or -1. Without `prefixes` no segment continues another.
struct Segments {
  at::IntArrayRef cu_seqlens, prefixes;

  size_t size() const { return cu_seqlens.size() - 1; }
  Span span(size_t s) const { return {cu_seqlens[s], cu_seqlens[s + 1]}; }
  int64_t prefix(size_t s) const { return prefixes.empty() ? -1 : prefixes[s]; }
};

// A segment (the trunk) and the segments that continue it (the branches).
struct Tree {
  Span trunk;
  std::vector<Span> branches;

  int64_t longest() const {
    int64_t most = 0;
    for (const Span& branch : branches) most = std::max(most, branch.len());
    return trunk.len() + most;
  }
  // Amount of work: about twice the number of visible (query, key) pairs.
  int64_t work() const {
    int64_t pairs = trunk.len() * trunk.len();
    for (const Span& branch : branches) pairs += branch.len() * (branch.len() + 2 * trunk.len());
    return pairs;
  }
};

// Returns the trees of all segments that are not empty, in descending order of work.
std::vector<Tree> trees_of(const Segments& segments) {
  std::vector<Tree> all(segments.size());
  for (size_t s = 0; s < segments.size(); ++s) {
    const int64_t prefix = segments.prefix(s);
    if (prefix < 0)
      all[s].trunk = segments.span(s);
    else if (segments.span(s).len() > 0)
      all[size_t(prefix)].branches.push_back(segments.span(s));
  }
  std::vector<Tree> trees;
  for (Tree& tree : all)
    if (tree.longest() > 0) trees.push_back(std::move(tree));
  std::stable_sort(trees.begin(), trees.end(),
                   [](const Tree& x, const Tree& y) { return x.work() > y.work(); });
  return trees;
}

// Makes one work item per tree and KV head. `parts` > 1 splits the query heads of a group into items of their
// own, when there are fewer items than threads can use. `pieces` > 1 splits the branches of a tree, in
// forward passes only: in a backward pass all branches add to the gradients of the same trunk.
std::vector<AttentionItem> attention_items(const Attention& a, const std::vector<Tree>& trees, int64_t parts,
                                           int64_t pieces) {
  const int64_t group = a.heads / a.kv_heads;
  std::vector<AttentionItem> items;
  for (const Tree& tree : trees) {
    const int64_t num_branches = int64_t(tree.branches.size());
    const int64_t num_pieces = std::max<int64_t>(1, std::min(pieces, num_branches));
    for (int64_t piece = 0; piece < num_pieces; ++piece) {
      const int64_t first = piece * num_branches / num_pieces, last = (piece + 1) * num_branches / num_pieces;
      for (int64_t h = 0; h < a.kv_heads; ++h)
        for (int64_t p = 0; p < parts; ++p)
          items.push_back({tree.trunk, piece == 0, tree.branches.data() + first, last - first, tree.longest(),
                           h, p * group / parts, (p + 1) * group / parts, p});
    }
  }
  return items;
}

// Number of items with which all threads finish at about the same time.
int64_t items_wanted() { return at::get_num_threads() > 1 ? 3 * at::get_num_threads() : 1; }

int64_t parts_wanted(const Attention& a, const std::vector<Tree>& trees) {
  return int64_t(trees.size()) * a.kv_heads < items_wanted() ? a.heads / a.kv_heads : 1;
}

int64_t pieces_wanted(const Attention& a, const std::vector<Tree>& trees, int64_t parts) {
  const int64_t whole = std::max<int64_t>(1, int64_t(trees.size()) * a.kv_heads * parts);
  return (items_wanted() + whole - 1) / whole;
}

struct VarlenFunction : torch::autograd::Function<VarlenFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q_any, const Tensor& k_any, const Tensor& v_any,
                        const std::optional<Tensor>& sinks_any, const Segments& segments, double scale,
                        int64_t window, double softcap) {
    Tensor q = head_rows(q_any), k = head_rows(k_any), v = head_rows(v_any);
    Tensor out = at::empty(q.sizes(), q.options());
    Tensor lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
    const Tensor sinks = sinks_in_float(sinks_any, q.size(1));
    Attention a = attention_args(q, k, v, scale, window, softcap);
    a.sinks = data_of(sinks);
    a.out = out.data_ptr(), a.lse = lse.data_ptr<float>();
    const auto trees = trees_of(segments);
    a.parts = parts_wanted(a, trees);
    const auto items = attention_items(a, trees, a.parts, pieces_wanted(a, trees, a.parts));
    const Kernels& table = kernels();
    share_out(int64_t(items.size()), [&](int64_t i) {
      table.attention_forward(a, items[i], scratch_of(table.attention_scratch(a, items[i].longest, false)));
    });
    ctx->save_for_backward({q, k, v, out, lse, sinks});
    ctx->saved_data["cu_seqlens"] = segments.cu_seqlens.vec();
    ctx->saved_data["prefixes"] = segments.prefixes.vec();
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["window"] = window;
    ctx->saved_data["softcap"] = softcap;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    Tensor grad = head_rows(grads[0]), dq = at::empty(q.sizes(), q.options());
    Attention a = attention_args(q, k, v, ctx->saved_data["scale"].toDouble(),
                                 ctx->saved_data["window"].toInt(), ctx->saved_data["softcap"].toDouble());
    const auto cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const auto prefixes = ctx->saved_data["prefixes"].toIntVector();
    const auto trees = trees_of({cu_seqlens, prefixes});
    a.parts = parts_wanted(a, trees);
    const auto items = attention_items(a, trees, a.parts, 1);
    const bool split = a.parts > 1;
    const auto options = split ? k.options().dtype(at::kFloat) : k.options();
    std::vector<int64_t> sizes = k.sizes().vec();
    if (split) sizes.insert(sizes.begin(), a.parts);
    Tensor dk = at::empty(sizes, options), dv = at::empty(sizes, options);
    a.out = saved[3].data_ptr(), a.lse = saved[4].data_ptr<float>(), a.grad_out = grad.data_ptr();
    a.g_t = grad.stride(0), a.g_h = grad.stride(1);
    a.grad_q = dq.data_ptr(), a.grad_k = dk.data_ptr(), a.grad_v = dv.data_ptr();
    const Kernels& table = kernels();
    share_out(int64_t(items.size()), [&](int64_t i) {
      table.attention_backward(a, items[i], scratch_of(table.attention_scratch(a, items[i].longest, true)));
    });
    if (split) dk = dk.sum(0).to(k.scalar_type()), dv = dv.sum(0).to(k.scalar_type());
    return {dq, dk, dv, grad_sinks(saved[5], saved[4], saved[3], grad), Tensor(), Tensor(), Tensor(), Tensor()};
  }

  // Gradient of the sinks. A sink has the weight e^(sink - lse) and no value, so dsink is minus the sum of
  // weight times (dO . O).
  static Tensor grad_sinks(const Tensor& sinks, const Tensor& lse, const Tensor& out, const Tensor& grad) {
    if (!sinks.defined()) return {};
    const Tensor delta = (grad.to(at::kFloat) * out.to(at::kFloat)).sum(-1);
    return -((sinks - lse).exp() * delta).sum(0);
  }
};

// Attention of one sequence by ATen: q [1, H, L, D], k and v [1, K, S, D]; `mask` is true for visible keys.
Tensor attend_composed(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask,
                       bool is_causal, const Scores& by) {
  if (by.softcap == 0.0 && by.sinks == nullptr)
    return at::scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, by.scale, true);
  const int64_t group = q.size(1) / k.size(1), len = q.size(2), num_keys = k.size(2);
  Tensor scores = at::matmul(q, k.repeat_interleave(group, 1).transpose(2, 3)) * by.scale;
  if (by.softcap != 0.0) scores = (scores / by.softcap).tanh() * by.softcap;
  std::optional<Tensor> seen = mask;
  if (is_causal) seen = at::ones({len, num_keys}, q.options().dtype(at::kBool)).tril();
  if (seen) scores = scores.masked_fill(seen->logical_not(), -std::numeric_limits<double>::infinity());
  if (by.sinks != nullptr) {
    const Tensor column = by.sinks->to(scores.scalar_type()).view({1, -1, 1, 1}).expand({1, -1, len, 1});
    scores = at::cat({scores, column}, 3);
  }
  const Tensor weights = at::softmax(scores, -1).narrow(3, 0, num_keys);
  return at::matmul(weights, v.repeat_interleave(group, 1));
}

// Packed attention by ATen, one segment at a time, for devices without our own kernel.
Tensor varlen_composed(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& segments,
                       const Scores& by) {
  const int64_t window = by.window;
  std::vector<Tensor> outs;
  for (size_t s = 0; s < segments.size(); ++s) {
    const Span own = segments.span(s);
    const Span trunk = segments.prefix(s) < 0 ? Span{0, 0} : segments.span(size_t(segments.prefix(s)));
    const int64_t len = own.len(), before = trunk.len();
    if (len == 0) continue;
    const auto batched = [](const Tensor& t) { return t.transpose(0, 1).unsqueeze(0); };
    const auto context = [&](const Tensor& t) {
      Tensor rows = t.narrow(0, own.begin, len);
      return batched(before == 0 ? rows : at::cat({t.narrow(0, trunk.begin, before), rows}, 0));
    };
    std::optional<Tensor> mask;
    if (before > 0 || (window > 0 && window < len)) {
      const auto positions = [&](int64_t from, int64_t to) {
        return at::arange(from, to, q.options().dtype(at::kLong));
      };
      Tensor back = positions(before, before + len).unsqueeze(1) - positions(0, before + len).unsqueeze(0);
      mask = back.ge(0);
      if (window > 0) mask = mask->logical_and(back.lt(window));
    }
    Tensor out = attend_composed(batched(q.narrow(0, own.begin, len)), context(k), context(v), mask,
                                 !mask.has_value(), by);
    outs.push_back(out.squeeze(0).transpose(0, 1));
  }
  return outs.empty() ? at::zeros_like(q) : at::cat(outs, 0);
}

void check_segments(const Segments& segments, int64_t num_tokens) {
  const at::IntArrayRef cu_seqlens = segments.cu_seqlens, prefixes = segments.prefixes;
  TORCH_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() == num_tokens &&
                  std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()),
              "varlen attention over ", num_tokens, " tokens expected cu_seqlens rising from 0 to that, got ",
              cu_seqlens);
  TORCH_CHECK(prefixes.empty() || prefixes.size() == segments.size(), "varlen attention over ",
              segments.size(), " segments expected a prefix or none for each, got ", prefixes.size());
  for (size_t s = 0; s < prefixes.size(); ++s)
    TORCH_CHECK(
        prefixes[s] < 0 || (prefixes[s] < int64_t(s) && prefixes[size_t(prefixes[s])] < 0), "segment ", s,
        " expected to continue an earlier segment that continues none itself, got segment ", prefixes[s]);
}

Tensor varlen_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& segments,
                        const Scores& by) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && v.sizes() == k.sizes() && q.size(0) == k.size(0) &&
                  q.size(2) == k.size(2) && k.size(1) > 0 && q.size(1) % k.size(1) == 0,
              "varlen attention expected q [T, H, D] and k, v [T, K, D] with K dividing H, got ", q.sizes(),
              ", ", k.sizes(), " and ", v.sizes());
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
              "varlen attention expected one dtype, got ", q.scalar_type(), ", ", k.scalar_type(), " and ",
              v.scalar_type());
  check_segments(segments, q.size(0));
  if (!kernel_ready(q)) return varlen_composed(q, k, v, segments, by);
  return VarlenFunction::apply(q, k, v, by.sinks_if_any(), segments, by.scale, by.window, by.softcap);
}

void check_caches(const Tensor& k_cache, const Tensor& v_cache) {
  TORCH_CHECK(k_cache.dim() == 4 && k_cache.sizes() == v_cache.sizes() && k_cache.is_contiguous() &&
                  v_cache.is_contiguous() && k_cache.scalar_type() == v_cache.scalar_type(),
              "the paged cache expected contiguous k and v of [num_blocks, block_size, K, D] alike, got ",
              k_cache.sizes(), " and ", v_cache.sizes());
}

// Paged attention by ATen, for devices without our own kernel: gathers the context of each query and attends
// densely.
Tensor paged_composed(const PagedAttention& a, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                      const Scores& by) {
  std::vector<Tensor> outs;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const int64_t len = a.context_lens[b], num_blocks = (len + a.block_size - 1) / a.block_size;
    std::vector<int64_t> blocks(a.block_tables[b], a.block_tables[b] + num_blocks);
    Tensor index = at::tensor(blocks, at::kLong).to(q.device());
    const int64_t first = a.window > 0 ? std::max<int64_t>(0, len - a.window) : 0;
    const auto context = [&](const Tensor& cache) {
      Tensor rows =
          cache.index_select(0, index).reshape({-1, a.kv_heads, a.dim}).narrow(0, first, len - first);
      return rows.transpose(0, 1).unsqueeze(0);
    };
    Tensor query = q[b].unsqueeze(1).unsqueeze(0);
    Tensor out = attend_composed(query, context(k_cache), context(v_cache), {}, false, by);
    outs.push_back(out.reshape({1, a.heads, a.dim}));
  }
  return outs.empty() ? at::zeros_like(q) : at::cat(outs, 0);
}

Tensor paged_attention(const Tensor& q_any, const Tensor& k_cache, const Tensor& v_cache,
                       const int32_t* const* tables, const int64_t* table_lens, const int32_t* context_lens,
                       int64_t num_queries, const Scores& by) {
  check_caches(k_cache, v_cache);
  TORCH_CHECK(q_any.dim() == 3 && q_any.size(0) == num_queries && q_any.size(2) == k_cache.size(3) &&
                  k_cache.size(2) > 0 && q_any.size(1) % k_cache.size(2) == 0 &&
                  q_any.scalar_type() == k_cache.scalar_type(),
              "paged attention over a cache of ", k_cache.sizes(), " expected ", num_queries,
              " queries [B, H, D] of its dtype, got ", q_any.sizes(), " of ", q_any.scalar_type());
  Tensor q = head_rows(q_any);
  PagedAttention a{};
  a.dtype = dtype_of(q), a.block_size = k_cache.size(1), a.heads = q.size(1), a.kv_heads = k_cache.size(2);
  a.dim = q.size(2), a.window = by.window, a.scale = float(by.scale), a.softcap = float(by.softcap);
  a.block_tables = tables, a.context_lens = context_lens, a.as_packed = has_one_order(a.dtype);
  const Tensor sinks = sinks_in_float(by.sinks_if_any(), a.heads);
  a.sinks = data_of(sinks);
  for (int64_t b = 0; b < num_queries; ++b) {
    const int64_t len = context_lens[b], needed = (len + a.block_size - 1) / a.block_size;
    TORCH_CHECK(len > 0 && needed <= table_lens[b], "query ", b, " has a context of ", len,
                " tokens, but its table ", table_lens[b], " blocks of ", a.block_size);
    for (int64_t i = 0; i < needed; ++i)
      TORCH_CHECK(tables[b][i] >= 0 && tables[b][i] < k_cache.size(0), "query ", b, " names block ",
                  tables[b][i], " of a cache of ", k_cache.size(0));
  }
  if (!kernel_ready(q)) return paged_composed(a, q, k_cache, v_cache, by);
  Tensor out = at::empty(q.sizes(), q.options());
  a.q = q.data_ptr(), a.q_b = q.stride(0), a.q_h = q.stride(1), a.out = out.data_ptr();
  a.k_cache = k_cache.data_ptr(), a.v_cache = v_cache.data_ptr();
  const Kernels& table = kernels();
  share_out(num_queries * a.kv_heads, [&](int64_t i) {
    const int64_t b = i / a.kv_heads;
    table.paged_attention(a, b, i % a.kv_heads, scratch_of(table.paged_scratch(a, context_lens[b])));
  });
  return out;
}

void write_rows(const Tensor& cache, const Tensor& rows, at::IntArrayRef slots) {
  const int64_t num_slots = cache.size(0) * cache.size(1);
  TORCH_CHECK(rows.dim() == 3 && rows.size(0) == int64_t(slots.size()) && rows.size(1) == cache.size(2) &&
                  rows.size(2) == cache.size(3) && rows.scalar_type() == cache.scalar_type(),
              "writing ", slots.size(), " slots of a cache of ", cache.sizes(),
              " expected rows [T, K, D] of its dtype, got ", rows.sizes(), " of ", rows.scalar_type());
  for (int64_t slot : slots)
    TORCH_CHECK(slot < num_slots, "slot ", slot, " lies outside a cache of ", num_slots, " slots");
  if (!cache.device().is_cpu()) {
    std::vector<int64_t> kept, targets;
    for (size_t t = 0; t < slots.size(); ++t)
      if (slots[t] >= 0) kept.push_back(int64_t(t)), targets.push_back(slots[t]);
    const auto index = [&](const std::vector<int64_t>& v) {
      return at::tensor(v, at::kLong).to(cache.device());
    };
    Tensor flat = cache.view({num_slots, cache.size(2), cache.size(3)});
    flat.index_copy_(0, index(targets), rows.index_select(0, index(kept)));
    return;
  }
  const Tensor source = rows.stride(2) == 1 && rows.stride(1) == rows.size(2) ? rows : rows.contiguous();
  const size_t bytes = size_t(rows.size(1) * rows.size(2)) * rows.element_size();
  char* to = static_cast<char*>(cache.data_ptr());
  const char* from = static_cast<const char*>(source.data_ptr());
  for (size_t t = 0; t < slots.size(); ++t)
    if (slots[t] >= 0)
      std::memcpy(to + size_t(slots[t]) * bytes, from + t * size_t(source.stride(0)) * rows.element_size(),
                  bytes);
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_varlen_attention(Tensor* q, Tensor* k, Tensor* v, const int64_t* cu_seqlens, size_t num_cu,
                           const int64_t* prefixes, size_t num_prefixes, const rlt::Scores* by, Tensor** out) {
  return rlt::guarded([&] {
    const rlt::Segments segments{{cu_seqlens, num_cu}, {prefixes, num_prefixes}};
    *out = rlt::owned(rlt::varlen_attention(*q, *k, *v, segments, *by));
  });
}
char* rlt_paged_attention(Tensor* q, Tensor* k_cache, Tensor* v_cache, const int32_t* const* tables,
                          const int64_t* table_lens, const int32_t* context_lens, int64_t num_queries,
                          const rlt::Scores* by, Tensor** out) {
  return rlt::guarded([&] {
    *out = rlt::owned(rlt::paged_attention(*q, *k_cache, *v_cache, tables, table_lens, context_lens,
                                           num_queries, *by));
  });
}
char* rlt_write_kv(Tensor* k_cache, Tensor* v_cache, Tensor* k, Tensor* v, const int64_t* slots,
                   size_t num_slots) {
  return rlt::guarded([&] {
    rlt::check_caches(*k_cache, *v_cache);
    rlt::write_rows(*k_cache, k->detach(), {slots, num_slots});
    rlt::write_rows(*v_cache, v->detach(), {slots, num_slots});
  });
}
}
