// c10d's TCP store and Gloo process group, both inside libtorch_cpu.so, behind a C border. Which collectives a
// training step needs, and what a failed one means, is decided in Rust.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <c10/util/env.h>

#include <mutex>

#include "border.h"

using at::Tensor;
using Milliseconds = std::chrono::milliseconds;

namespace rlt {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;
using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

StorePointer connect(const char* host, uint16_t* port, bool is_server, int64_t timeout_ms) {
  c10d::TCPStoreOptions options;
  options.port = *port;
  options.isServer = is_server;
  // Who has joined is counted by the caller, who can name those that have not.
  options.waitWorkers = false;
  options.timeout = Milliseconds(timeout_ms);
  auto store = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
  *port = store->getPort();
  return store;
}

std::vector<uint8_t> bytes_of(const uint8_t* data, size_t len) { return {data, data + len}; }

void hand_over(const std::vector<uint8_t>& value, uint8_t** data, size_t* len) {
  *len = value.size();
  *data = static_cast<uint8_t*>(malloc(std::max<size_t>(1, value.size())));
  if (*data == nullptr) throw std::bad_alloc();
  std::copy(value.begin(), value.end(), *data);
}

// c10d notes the operations of all groups of a process in one map, which it fills without a lock: threads that use
// groups of their own would tear it. Nobody reads it; without room it notes nothing. It is asked for once, before the
// first operation.
void note_no_operations() {
  static std::once_flag once;
  std::call_once(once, [] { c10::utils::set_env("TORCH_FR_BUFFER_SIZE", "0", true); });
}

GroupPointer join(const StorePointer& store, const char* name, int rank, int size, const char* address,
                  int64_t timeout_ms) {
  note_no_operations();
  auto options = c10d::ProcessGroupGloo::Options::create(Milliseconds(timeout_ms));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(std::string(name), store);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, size, options);
}

c10d::ReduceOp reduction(int64_t code) {
  switch (code) {
    case 0: return c10d::ReduceOp::SUM;
    case 1: return c10d::ReduceOp::MAX;
    case 2: return c10d::ReduceOp::MIN;
    default: TORCH_CHECK(false, "a reduction is 0 (sum), 1 (largest) or 2 (smallest), got ", code);
  }
}

WorkPointer* kept(WorkPointer work) { return new WorkPointer(std::move(work)); }

}  // namespace
}  // namespace rlt

using rlt::GroupPointer;
using rlt::StorePointer;
using rlt::WorkPointer;

extern "C" {
char* rlt_store_connect(const char* host, uint16_t* port, bool is_server, int64_t timeout_ms,
                        StorePointer** out) {
  return rlt::guarded(
      [&] { *out = new StorePointer(rlt::connect(host, port, is_server, timeout_ms)); });
}
char* rlt_store_clone(StorePointer* store, StorePointer** out) {
  return rlt::guarded([&] { *out = new StorePointer((*store)->clone()); });
}
char* rlt_store_set(StorePointer* store, const char* key, const uint8_t* data, size_t len) {
  return rlt::guarded([&] { (*store)->set(key, rlt::bytes_of(data, len)); });
}
char* rlt_store_compare_set(StorePointer* store, const char* key, const uint8_t* data, size_t len,
                            uint8_t** out, size_t* out_len) {
  return rlt::guarded(
      [&] { rlt::hand_over((*store)->compareSet(key, {}, rlt::bytes_of(data, len)), out, out_len); });
}
char* rlt_store_add(StorePointer* store, const char* key, int64_t amount, int64_t* out) {
  return rlt::guarded([&] { *out = (*store)->add(key, amount); });
}
char* rlt_store_has(StorePointer* store, const char* key, bool* out) {
  return rlt::guarded([&] { *out = (*store)->check({key}); });
}
char* rlt_store_get(StorePointer* store, const char* key, uint8_t** out, size_t* out_len) {
  return rlt::guarded([&] { rlt::hand_over((*store)->get(key), out, out_len); });
}
void rlt_free_bytes(uint8_t* data) { free(data); }
void rlt_store_free(StorePointer* store) { delete store; }

char* rlt_group_join(StorePointer* store, const char* name, int rank, int size, const char* address,
                     int64_t timeout_ms, GroupPointer** out) {
  return rlt::guarded(
      [&] { *out = new GroupPointer(rlt::join(*store, name, rank, size, address, timeout_ms)); });
}
void rlt_group_free(GroupPointer* group) { delete group; }

char* rlt_all_reduce(GroupPointer* group, Tensor* tensor, int64_t reduction, WorkPointer** out) {
  return rlt::guarded([&] {
    std::vector<Tensor> tensors{tensor->detach()};
    c10d::AllreduceOptions options;
    options.reduceOp = rlt::reduction(reduction);
    *out = rlt::kept((*group)->allreduce(tensors, options));
  });
}
char* rlt_all_gather(GroupPointer* group, Tensor* output, Tensor* input, WorkPointer** out) {
  return rlt::guarded([&] {
    Tensor into = output->detach(), from = input->detach();
    *out = rlt::kept((*group)->_allgather_base(into, from));
  });
}
char* rlt_all_to_all(GroupPointer* group, Tensor* output, Tensor* input, const int64_t* output_splits,
                     const int64_t* input_splits, WorkPointer** out) {
  return rlt::guarded([&] {
    const size_t size = (*group)->getSize();
    std::vector<int64_t> received(output_splits, output_splits + size),
        sent(input_splits, input_splits + size);
    Tensor into = output->detach(), from = input->detach();
    *out = rlt::kept((*group)->alltoall_base(into, from, received, sent));
  });
}
char* rlt_broadcast(GroupPointer* group, Tensor* tensor, int64_t root, WorkPointer** out) {
  return rlt::guarded([&] {
    std::vector<Tensor> tensors{tensor->detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    *out = rlt::kept((*group)->broadcast(tensors, options));
  });
}
char* rlt_barrier(GroupPointer* group, WorkPointer** out) {
  return rlt::guarded([&] { *out = rlt::kept((*group)->barrier()); });
}
char* rlt_work_wait(WorkPointer* work) {
  return rlt::guarded([&] { (*work)->wait(); });
}
void rlt_work_free(WorkPointer* work) { delete work; }
}
