// A communicator and what is under way in it.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../driver/stand_in.h"
#include "reduce.h"
#include "shared.h"

namespace nccl {

// As in nccl.h.
enum Result : int {
  SUCCESS = 0,
  UNHANDLED_CUDA_ERROR = 1,
  SYSTEM_ERROR = 2,
  INVALID_ARGUMENT = 4,
  INVALID_USAGE = 5,
  IN_PROGRESS = 7
};

struct Operation;

struct Communicator {
  int rank, num_ranks, device;
  std::string name;
  Shared* shared = nullptr;
  std::atomic<bool> is_aborted{false};
  std::atomic<int> num_pending{0}, error{SUCCESS};
  // The operation that has begun: they follow each other, whatever stream they are on.
  std::atomic<Operation*> running{nullptr};
  std::mutex lock;
  std::string last_error;

  Communicator(int rank, int num_ranks, int device, std::string name);
  ~Communicator();
  // Whether all ranks are there.
  bool is_complete();
  void fail(Result result, const std::string& cause);
  Channel& channel(int from, int to) { return shared->channels[from * num_ranks + to]; }
};

// Bytes to or from one rank, with a header that says what they belong to.
struct Header {
  uint64_t num_bytes, kind;
};
struct Transfer {
  bool is_sent;
  int peer;
  char* data;
  size_t num_bytes;
  size_t done = 0, header_done = 0;
  Header header{};
};

// What a rank does in one operation: transfers, all at once, and then a reduction of what was received.
struct Operation {
  const std::shared_ptr<Communicator> of;
  const int kind;
  std::vector<Transfer> transfers;
  // Copies within the rank, made first.
  struct Copy {
    char* to;
    const char* from;
    size_t num_bytes;
  };
  std::vector<Copy> copies;
  // The contribution of each rank in its order, and where their reduction goes; none where nothing is reduced.
  std::vector<const char*> contributions;
  char* reduced = nullptr;
  std::vector<std::vector<char>> received;
  Type type = FP32;
  Reduction reduction = SUM;
  size_t count = 0;
  bool has_begun = false;

  Operation(std::shared_ptr<Communicator> communicator, int own_kind)
      : of(std::move(communicator)), kind(own_kind) {
    ++of->num_pending;
  }
  ~Operation() {
    if (has_begun) of->running = nullptr;
    --of->num_pending;
  }
  // Does what can be done now; whether all of it is.
  bool advance();

 private:
  bool move(Transfer& transfer);
  void end();
};

// Puts an operation into a stream.
Result start(std::unique_ptr<Operation> operation, CUstream stream);

}  // namespace nccl
