// C API of c10d's Gloo process group, which is part of libtorch_cpu.so, and of the store through which its
// ranks find each other; Rust implements the store. Rust also decides which collectives a training step
// needs, and what the failure of one means.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <c10/util/env.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "c_api.h"

using at::Tensor;
using Milliseconds = std::chrono::milliseconds;

namespace rlt {
// C++ side of `Asked` and `StoreHandle` in store/handle.rs.
struct Asked {
  uint8_t operation;
  uint64_t wait_ms;
  const uint8_t* name;
  size_t name_len;
  const uint8_t* value;
  size_t value_len;
};
using Take = void (*)(void* into, const uint8_t* data, size_t len);
struct StoreHandle {
  const void* connection;
  int (*ask)(const void* connection, const Asked* asked, void* into, Take take);
  void (*release)(const void* connection);
};

namespace {

using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

enum Operation : uint8_t { SET = 1, SET_FIRST = 2, ADD = 3, GET = 4 };
enum Outcome { ANSWERED = 0, NOTHING = 1, FAILED = 2 };

using Bytes = std::vector<uint8_t>;

// A c10d store that forwards requests to a connection in Rust. It implements the operations that Gloo's
// groups use.
class Store final : public c10d::Store {
 public:
  Store(StoreHandle handle, Milliseconds timeout) : c10d::Store(timeout), handle_(handle) {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() override { handle_.release(handle_.connection); }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
  void set(const std::string& key, const Bytes& value) override { ask(SET, key, value, Milliseconds(0)); }
  Bytes get(const std::string& key) override { return wait_for(key, timeout_); }
  int64_t add(const std::string& key, int64_t amount) override {
    const std::string digits = std::to_string(amount);
    const Bytes sum = ask(ADD, key, {digits.begin(), digits.end()}, Milliseconds(0)).value();
    return std::stoll(std::string(sum.begin(), sum.end()));
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(),
                       [&](const auto& key) { return ask(GET, key, {}, Milliseconds(0)).has_value(); });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (const auto& key : keys) {
      const auto left = deadline - std::chrono::steady_clock::now();
      wait_for(key, std::max(Milliseconds(0), std::chrono::duration_cast<Milliseconds>(left)));
    }
  }
  bool deleteKey(const std::string& key) override { unserved("deleting " + key); }
  int64_t getNumKeys() override { unserved("counting names"); }

 private:
  std::optional<Bytes> ask(Operation operation, const std::string& key, const Bytes& value, Milliseconds wait) {
    const Asked asked{operation, static_cast<uint64_t>(wait.count()),
                      reinterpret_cast<const uint8_t*>(key.data()), key.size(), value.data(), value.size()};
    Bytes answer;
    const auto take = [](void* into, const uint8_t* data, size_t len) {
      static_cast<Bytes*>(into)->assign(data, data + len);
    };
    const int outcome = handle_.ask(handle_.connection, &asked, &answer, take);
    TORCH_CHECK(outcome != FAILED, std::string(answer.begin(), answer.end()));
    return outcome == ANSWERED ? std::optional<Bytes>(std::move(answer)) : std::nullopt;
  }
  Bytes wait_for(const std::string& key, Milliseconds wait) {
    auto answer = ask(GET, key, {}, wait);
    TORCH_CHECK(answer.has_value(), "no rank put ", key, " into the store within ", wait.count(), " ms");
    return *std::move(answer);
  }
  [[noreturn]] static void unserved(const std::string& what) {
    C10_THROW_ERROR(NotImplementedError, "the ranks' store serves no " + what);
  }

  StoreHandle handle_;
};

// Disables c10d's flight recorder. It records the operations of all groups of a process in one map without a
// lock, so threads that use different groups would corrupt the map. Nothing reads the map, and a buffer size
// of 0 records nothing. c10d reads the variable once, before the first operation.
void note_no_operations() {
  static std::once_flag once;
  std::call_once(once, [] { c10::utils::set_env("TORCH_FR_BUFFER_SIZE", "0", true); });
}

GroupPointer join(StoreHandle handle, const char* name, int rank, int size, const char* address,
                  int64_t timeout_ms) {
  // Created first, so that the handle is released even if a later statement throws.
  auto store = c10::make_intrusive<Store>(handle, Milliseconds(timeout_ms));
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
using rlt::WorkPointer;

extern "C" {
char* rlt_group_join(rlt::StoreHandle store, const char* name, int rank, int size, const char* address,
                     int64_t timeout_ms, GroupPointer** out) {
  return rlt::guarded(
      [&] { *out = new GroupPointer(rlt::join(store, name, rank, size, address, timeout_ms)); });
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
