// C API of NCCL, the transport between GPUs. The library comes with libtorch's CUDA build and is loaded at
// run time, so neither building nor running without a GPU needs CUDA. A communicator's operations run either
// on its own stream, ordered with the compute stream by events, or on the compute stream itself, where a CUDA
// graph can capture them. They never block a thread. Rust decides when an operation has failed and what that
// means.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <type_traits>
#include <utility>

#include "c_api.h"

using at::Tensor;

namespace rlt {
namespace {

// Declarations of nccl.h as of version 2.18. Later libraries accept its configuration by size and version.
using Communicator = void*;
enum Result : int { SUCCESS = 0, IN_PROGRESS = 7 };
enum DataType : int { INT8 = 0, UINT8 = 1, INT32 = 2, INT64 = 4, FP16 = 6, FP32 = 7, FP64 = 8, BF16 = 9 };
struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21801;
  int blocking = 0, cluster_size = INT_MIN, min_blocks = INT_MIN, max_blocks = INT_MIN;
  const char* network = nullptr;
  int shares_resources = INT_MIN, unused = INT_MIN;
};

// Functions of the library, by their names without the prefix "nccl".
struct Library {
  int (*GetVersion)(int*);
  const char* (*GetErrorString)(int);
  const char* (*GetLastError)(Communicator);
  int (*GetUniqueId)(UniqueId*);
  int (*CommInitRankConfig)(Communicator*, int, UniqueId, int, Config*);
  int (*CommGetAsyncError)(Communicator, int*);
  int (*CommFinalize)(Communicator);
  int (*CommDestroy)(Communicator);
  int (*CommAbort)(Communicator);
  int (*AllReduce)(const void*, void*, size_t, int, int, Communicator, void*);
  int (*ReduceScatter)(const void*, void*, size_t, int, int, Communicator, void*);
  int (*AllGather)(const void*, void*, size_t, int, Communicator, void*);
  int (*Broadcast)(const void*, void*, size_t, int, int, Communicator, void*);
  int (*Send)(const void*, size_t, int, int, Communicator, void*);
  int (*Recv)(void*, size_t, int, int, Communicator, void*);
  int (*GroupStart)();
  int (*GroupEnd)();
};

Library load() {
  // The same name by which libtorch_cuda.so loads NCCL, so that the process has one copy.
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  TORCH_CHECK(handle != nullptr, dlerror());
  Library library{};
  const auto find = [&](auto& function, const char* name) {
    void* found = dlsym(handle, name);
    TORCH_CHECK(found != nullptr, "it has no ", name, ": expected version 2.18 or later");
    function = reinterpret_cast<std::decay_t<decltype(function)>>(found);
  };
#define RLT_FIND(name) find(library.name, "nccl" #name)
  RLT_FIND(GetVersion), RLT_FIND(GetErrorString), RLT_FIND(GetLastError), RLT_FIND(GetUniqueId);
  RLT_FIND(CommInitRankConfig), RLT_FIND(CommGetAsyncError), RLT_FIND(CommFinalize), RLT_FIND(CommDestroy);
  RLT_FIND(CommAbort), RLT_FIND(AllReduce), RLT_FIND(ReduceScatter), RLT_FIND(AllGather), RLT_FIND(Broadcast);
  RLT_FIND(Send), RLT_FIND(Recv), RLT_FIND(GroupStart), RLT_FIND(GroupEnd);
#undef RLT_FIND
  return library;
}

const Library& nccl() {
  static const Library library = load();
  return library;
}

// Throws unless the call succeeded or is in progress; CommGetAsyncError tells when pending work is done.
void expect(int result, Communicator of) {
  if (result == SUCCESS || result == IN_PROGRESS) return;
  const char* detail = nccl().GetLastError(of);
  TORCH_CHECK(false, "NCCL: ", nccl().GetErrorString(result), detail != nullptr && *detail != 0 ? "; " : "",
              detail != nullptr ? detail : "");
}

DataType type_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case at::kBool:
    case at::kByte: return UINT8;
    case at::kChar: return INT8;
    case at::kInt: return INT32;
    case at::kLong: return INT64;
    case at::kHalf: return FP16;
    case at::kFloat: return FP32;
    case at::kDouble: return FP64;
    case at::kBFloat16: return BF16;
    default: TORCH_CHECK(false, "expected numbers that NCCL knows, got ", t.scalar_type());
  }
}

// A communicator and the stream of its operations.
struct Link {
  Communicator communicator = nullptr;
  c10::Device device;
  c10::Stream stream;
  bool is_given_up = false;

  Link(c10::Device on)
      : device(on), stream(c10::impl::VirtualGuardImpl(on.type()).getStreamFromGlobalPool(on, true)) {}

  c10::Stream computing() const { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

  // Calls `enqueue` with a stream: the communicator's own, after it waits for all work enqueued on the
  // compute stream so far, or the compute stream itself.
  template <class Enqueue>
  void start(Enqueue enqueue, bool is_in_stream = false) {
    TORCH_CHECK(!is_given_up, "the communicator was given up after an earlier failure");
    const c10::DeviceGuard guard(device);
    if (is_in_stream) return enqueue(computing().native_handle());
    c10::Event computed(device.type());
    computed.record(computing());
    computed.block(stream);
    enqueue(stream.native_handle());
  }

  void give_up() {
    if (is_given_up || communicator == nullptr) return;
    is_given_up = true;
    const c10::DeviceGuard guard(device);
    nccl().CommAbort(communicator);
  }

  ~Link() {
    if (is_given_up || communicator == nullptr) return;
    const c10::DeviceGuard guard(device);
    nccl().CommDestroy(communicator);
  }
};

// An event on a communicator's stream.
struct Mark {
  c10::Event event;
  const Link* link;
};

size_t row_len(const Tensor& t) { return t.dim() == 0 || t.size(0) == 0 ? 0 : size_t(t.numel() / t.size(0)); }

// Exchanges one message with every rank, all of them concurrently.
void exchange(const Link& link, const Tensor& output, const Tensor& input, const int64_t* output_splits,
              const int64_t* input_splits, int size, void* stream) {
  const DataType type = type_of(input);
  const size_t row = std::max(row_len(input), row_len(output)), element = input.element_size();
  auto* from = static_cast<const char*>(input.const_data_ptr());
  auto* into = static_cast<char*>(output.mutable_data_ptr());
  expect(nccl().GroupStart(), link.communicator);
  // GroupEnd is called even after a failure: otherwise later operations would belong to this group.
  int failed = SUCCESS;
  const auto note = [&](int result) { failed = failed == SUCCESS && result != IN_PROGRESS ? result : failed; };
  for (int peer = 0; peer < size; ++peer) {
    const size_t sent = size_t(input_splits[peer]) * row, received = size_t(output_splits[peer]) * row;
    if (sent > 0) note(nccl().Send(from, sent, type, peer, link.communicator, stream));
    if (received > 0) note(nccl().Recv(into, received, type, peer, link.communicator, stream));
    from += sent * element, into += received * element;
  }
  const int ended = nccl().GroupEnd();
  expect(failed, link.communicator);
  expect(ended, link.communicator);
}

}  // namespace
}  // namespace rlt

using rlt::Link;
using rlt::Mark;
using rlt::nccl;

extern "C" {
char* rlt_nccl_version(int* out) {
  return rlt::guarded([&] { rlt::expect(nccl().GetVersion(out), nullptr); });
}

// Draws the unique id, 128 bytes, by which ranks find each other.
char* rlt_nccl_name(uint8_t* out) {
  return rlt::guarded([&] {
    rlt::UniqueId id{};
    rlt::expect(nccl().GetUniqueId(&id), nullptr);
    std::memcpy(out, id.bytes, sizeof id.bytes);
  });
}

// Begins to connect. The communicator is settled when all ranks have joined.
char* rlt_nccl_join(const uint8_t* name, int place, int size, int device_idx, Link** out) {
  return rlt::guarded([&] {
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_idx));
    const c10::DeviceGuard guard(device);
    rlt::UniqueId id{};
    std::memcpy(id.bytes, name, sizeof id.bytes);
    rlt::Config config;
    auto link = std::make_unique<Link>(device);
    rlt::expect(nccl().CommInitRankConfig(&link->communicator, size, id, place, &config), nullptr);
    *out = link.release();
  });
}
// Whether all requested operations have been enqueued on the stream. An error once a peer or the network has
// failed.
char* rlt_nccl_is_settled(Link* link, bool* out) {
  return rlt::guarded([&] {
    // CommAbort has freed the communicator.
    TORCH_CHECK(!link->is_given_up, "the communicator was given up after an earlier failure");
    int state = rlt::SUCCESS;
    rlt::expect(nccl().CommGetAsyncError(link->communicator, &state), link->communicator);
    rlt::expect(state, link->communicator);
    *out = state == rlt::SUCCESS;
  });
}
// Lets pending operations send their last bytes before the communicator is freed.
char* rlt_nccl_finalize(Link* link) {
  return rlt::guarded([&] {
    if (link->is_given_up) return;
    const c10::DeviceGuard guard(link->device);
    rlt::expect(nccl().CommFinalize(link->communicator), link->communicator);
  });
}
// Aborts all pending operations on this rank, without waiting for other ranks.
void rlt_nccl_give_up(Link* link) { link->give_up(); }
void rlt_nccl_free(Link* link) { delete link; }

char* rlt_nccl_all_reduce(Link* link, Tensor* tensor, int64_t reduction, bool is_in_stream) {
  // ncclRedOp_t values of sum, maximum and minimum; 1 is the product.
  static constexpr int OPERATIONS[] = {0, 2, 3};
  return rlt::guarded([&] {
    link->start([&](void* stream) {
      void* data = tensor->mutable_data_ptr();
      rlt::expect(nccl().AllReduce(data, data, size_t(tensor->numel()), rlt::type_of(*tensor), OPERATIONS[reduction],
                                   link->communicator, stream),
                  link->communicator);
    }, is_in_stream);
  });
}
char* rlt_nccl_reduce_scatter(Link* link, Tensor* output, Tensor* input) {
  return rlt::guarded([&] {
    link->start([&](void* stream) {
      rlt::expect(nccl().ReduceScatter(input->const_data_ptr(), output->mutable_data_ptr(), size_t(output->numel()),
                                       rlt::type_of(*input), 0, link->communicator, stream),
                  link->communicator);
    });
  });
}
char* rlt_nccl_all_gather(Link* link, Tensor* output, Tensor* input, bool is_in_stream) {
  return rlt::guarded([&] {
    link->start([&](void* stream) {
      rlt::expect(nccl().AllGather(input->const_data_ptr(), output->mutable_data_ptr(), size_t(input->numel()),
                                   rlt::type_of(*input), link->communicator, stream),
                  link->communicator);
    }, is_in_stream);
  });
}
char* rlt_nccl_all_to_all(Link* link, Tensor* output, Tensor* input, const int64_t* output_splits,
                          const int64_t* input_splits, int size) {
  return rlt::guarded([&] {
    link->start([&](void* stream) {
      rlt::exchange(*link, *output, *input, output_splits, input_splits, size, stream);
    });
  });
}
char* rlt_nccl_broadcast(Link* link, Tensor* tensor, int root) {
  return rlt::guarded([&] {
    link->start([&](void* stream) {
      void* data = tensor->mutable_data_ptr();
      rlt::expect(nccl().Broadcast(data, data, size_t(tensor->numel()), rlt::type_of(*tensor), root, link->communicator,
                                   stream),
                  link->communicator);
    });
  });
}

// Records an event after all work enqueued on the communicator's stream.
char* rlt_nccl_mark(Link* link, Mark** out) {
  return rlt::guarded([&] {
    const c10::DeviceGuard guard(link->device);
    c10::Event event(link->device.type());
    event.record(link->stream);
    *out = new Mark{std::move(event), link};
  });
}
char* rlt_nccl_is_past(Mark* mark, bool* out) {
  return rlt::guarded([&] { *out = mark->event.query(); });
}
// Makes later work of the compute stream wait for the event.
char* rlt_nccl_compute_after(Mark* mark) {
  return rlt::guarded([&] { mark->event.block(mark->link->computing()); });
}
void rlt_nccl_mark_free(Mark* mark) { delete mark; }
}
