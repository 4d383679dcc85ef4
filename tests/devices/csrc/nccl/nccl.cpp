// A stand-in for NCCL between processes of one machine: the functions that our C API calls, with the behaviour of a
// communicator that keeps no caller waiting.
#include <sys/random.h>

#include <set>

#include "communicator.h"

using namespace nccl;

namespace {

struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};
constexpr unsigned MAGIC = 0xcafebeef;

using Handle = std::shared_ptr<Communicator>*;

// Communicators that are neither destroyed nor aborted: using another one would use freed memory.
std::mutex living_lock;
std::set<Handle> living;

bool is_living(Handle comm) {
  std::lock_guard<std::mutex> guard(living_lock);
  return living.count(comm) > 0;
}
bool bury(Handle comm) {
  std::lock_guard<std::mutex> guard(living_lock);
  return living.erase(comm) > 0;
}

enum Kind : int { ALL_REDUCE = 1, REDUCE_SCATTER, ALL_GATHER, BROADCAST, MESSAGES };

// What an open group has been asked for.
struct Group {
  int depth = 0;
  std::vector<std::pair<CUstream, std::unique_ptr<Operation>>> operations;
};
thread_local Group group;

std::unique_ptr<Operation> operation(Handle comm, Kind kind) {
  return std::make_unique<Operation>(*comm, kind);
}

Result put(std::unique_ptr<Operation> made, CUstream stream) {
  if (group.depth == 0) return start(std::move(made), stream);
  group.operations.emplace_back(stream, std::move(made));
  return SUCCESS;
}

bool is_on_device(const void* address) { return rlt_stand_in_device_of(address) >= 0; }
char* bytes_of(const void* address) { return static_cast<char*>(rlt_stand_in_alias(address)); }

Result admit(Handle comm, const void* one, const void* other, size_t count, int type) {
  if (!is_living(comm) || type < 0 || type >= NUM_TYPES) return INVALID_ARGUMENT;
  if (count > 0 && (!is_on_device(one) || !is_on_device(other))) {
    (*comm)->fail(INVALID_ARGUMENT, "expected memory of a device");
    return INVALID_ARGUMENT;
  }
  return SUCCESS;
}

// Takes in what every rank contributes to the caller, of which its own is `own`.
void contribute(Operation& made, char* own, size_t num_bytes) {
  made.received.resize(size_t(made.of->num_ranks));
  for (int peer = 0; peer < made.of->num_ranks; ++peer) {
    if (peer == made.of->rank) {
      made.contributions.push_back(own);
      continue;
    }
    auto& into = made.received[size_t(peer)];
    into.resize(num_bytes);
    made.contributions.push_back(into.data());
    made.transfers.push_back({false, peer, into.data(), num_bytes});
  }
}

void send_to_others(Operation& made, char* data, size_t num_bytes) {
  for (int peer = 0; peer < made.of->num_ranks; ++peer)
    if (peer != made.of->rank) made.transfers.push_back({true, peer, data, num_bytes});
}

// The group's messages on this communicator and stream so far.
Operation& messages(Handle comm, CUstream stream) {
  for (auto& [on, made] : group.operations)
    if (on == stream && made->of == *comm && made->kind == MESSAGES) return *made;
  group.operations.emplace_back(stream, operation(comm, MESSAGES));
  return *group.operations.back().second;
}

// Messages of a rank to itself meet here, in their order.
void pair_own(Operation& made) {
  std::vector<Transfer> sent, received, others;
  for (Transfer& t : made.transfers)
    (t.peer != made.of->rank ? others : t.is_sent ? sent : received).push_back(t);
  for (size_t i = 0; i < std::min(sent.size(), received.size()); ++i)
    made.copies.push_back({received[i].data, sent[i].data, std::min(sent[i].num_bytes, received[i].num_bytes)});
  made.transfers = std::move(others);
}

Result close_group() {
  Result first = SUCCESS;
  auto operations = std::move(group.operations);
  group.operations.clear();
  for (auto& [stream, made] : operations) {
    if (made->kind == MESSAGES) pair_own(*made);
    const Result result = start(std::move(made), stream);
    if (first == SUCCESS) first = result;
  }
  return first;
}

Result message(Handle comm, void* data, size_t count, int type, int peer, CUstream stream, bool is_sent) {
  if (Result refused = admit(comm, data, data, count, type)) return refused;
  if (peer < 0 || peer >= (*comm)->num_ranks) return INVALID_ARGUMENT;
  ++group.depth;
  messages(comm, stream).transfers.push_back({is_sent, peer, bytes_of(data), count * size_of(Type(type))});
  return --group.depth == 0 ? close_group() : SUCCESS;
}

}  // namespace

extern "C" {
int ncclGetVersion(int* out) { return *out = 22809, SUCCESS; }

const char* ncclGetErrorString(int result) {
  switch (result) {
    case SUCCESS: return "no error";
    case UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(Handle comm) {
  static thread_local std::string text;
  if (!is_living(comm)) return "";
  std::lock_guard<std::mutex> guard((*comm)->lock);
  text = (*comm)->last_error;
  return text.c_str();
}

int ncclGetUniqueId(UniqueId* out) {
  return getrandom(out->bytes, sizeof out->bytes, 0) == ssize_t(sizeof out->bytes) ? SUCCESS : SYSTEM_ERROR;
}

int ncclCommInitRankConfig(Handle* out, int num_ranks, UniqueId id, int rank, Config* config) {
  const bool has_config = config != nullptr && config->magic == MAGIC && config->size >= sizeof(Config);
  if (!has_config || num_ranks < 1 || num_ranks > MOST_RANKS || rank < 0 || rank >= num_ranks) return INVALID_ARGUMENT;
  CUdevice device = 0;
  if (cuCtxGetDevice(&device) != CUDA_SUCCESS) return UNHANDLED_CUDA_ERROR;
  std::string name = "/rlt-stand-in-nccl-";
  for (int i = 0; i < 16; ++i) name += "0123456789abcdef"[id.bytes[i] & 15];
  *out = new std::shared_ptr<Communicator>(std::make_shared<Communicator>(rank, num_ranks, device, name));
  {
    std::lock_guard<std::mutex> guard(living_lock);
    living.insert(*out);
  }
  return (**out)->error != SUCCESS ? (**out)->error.load() : IN_PROGRESS;
}

int ncclCommGetAsyncError(Handle comm, int* out) {
  if (!is_living(comm)) return INVALID_ARGUMENT;
  Communicator& of = **comm;
  const bool is_complete = of.is_complete();
  *out = of.error != SUCCESS ? of.error.load() : is_complete ? SUCCESS : IN_PROGRESS;
  return SUCCESS;
}

int ncclCommFinalize(Handle comm) {
  if (!is_living(comm)) return INVALID_ARGUMENT;
  return (*comm)->num_pending > 0 ? IN_PROGRESS : SUCCESS;
}
int ncclCommDestroy(Handle comm) {
  if (!bury(comm)) return INVALID_ARGUMENT;
  delete comm;
  return SUCCESS;
}
// What is under way ends here, whatever the others do; operations that are left keep the communicator.
int ncclCommAbort(Handle comm) {
  if (!bury(comm)) return INVALID_ARGUMENT;
  (*comm)->is_aborted = true;
  delete comm;
  return SUCCESS;
}

int ncclAllReduce(const void* from, void* into, size_t count, int type, int reduction, Handle comm, CUstream stream) {
  if (Result refused = admit(comm, from, into, count, type)) return refused;
  auto made = operation(comm, ALL_REDUCE);
  made->type = Type(type), made->reduction = Reduction(reduction), made->count = count;
  made->reduced = bytes_of(into);
  const size_t num_bytes = count * size_of(made->type);
  send_to_others(*made, bytes_of(from), num_bytes);
  contribute(*made, bytes_of(from), num_bytes);
  return put(std::move(made), stream);
}

int ncclReduceScatter(const void* from, void* into, size_t count, int type, int reduction, Handle comm,
                      CUstream stream) {
  if (Result refused = admit(comm, from, into, count, type)) return refused;
  auto made = operation(comm, REDUCE_SCATTER);
  made->type = Type(type), made->reduction = Reduction(reduction), made->count = count;
  made->reduced = bytes_of(into);
  const size_t num_bytes = count * size_of(made->type);
  for (int peer = 0; peer < made->of->num_ranks; ++peer)
    if (peer != made->of->rank)
      made->transfers.push_back({true, peer, bytes_of(from) + size_t(peer) * num_bytes, num_bytes});
  contribute(*made, bytes_of(from) + size_t(made->of->rank) * num_bytes, num_bytes);
  return put(std::move(made), stream);
}

int ncclAllGather(const void* from, void* into, size_t count, int type, Handle comm, CUstream stream) {
  if (Result refused = admit(comm, from, into, count, type)) return refused;
  auto made = operation(comm, ALL_GATHER);
  const size_t num_bytes = count * size_of(Type(type));
  send_to_others(*made, bytes_of(from), num_bytes);
  for (int peer = 0; peer < made->of->num_ranks; ++peer) {
    char* place = bytes_of(into) + size_t(peer) * num_bytes;
    if (peer != made->of->rank) made->transfers.push_back({false, peer, place, num_bytes});
    else if (num_bytes > 0) made->copies.push_back({place, bytes_of(from), num_bytes});
  }
  return put(std::move(made), stream);
}

int ncclBroadcast(const void* from, void* into, size_t count, int type, int root, Handle comm, CUstream stream) {
  if (Result refused = admit(comm, from, into, count, type)) return refused;
  auto made = operation(comm, BROADCAST);
  const size_t num_bytes = count * size_of(Type(type));
  if (root < 0 || root >= made->of->num_ranks) return INVALID_ARGUMENT;
  if (made->of->rank == root) {
    send_to_others(*made, bytes_of(from), num_bytes);
    made->copies.push_back({bytes_of(into), bytes_of(from), num_bytes});
  } else {
    made->transfers.push_back({false, root, bytes_of(into), num_bytes});
  }
  return put(std::move(made), stream);
}

int ncclSend(const void* from, size_t count, int type, int peer, Handle comm, CUstream stream) {
  return message(comm, const_cast<void*>(from), count, type, peer, stream, true);
}
int ncclRecv(void* into, size_t count, int type, int peer, Handle comm, CUstream stream) {
  return message(comm, into, count, type, peer, stream, false);
}
int ncclGroupStart() { return ++group.depth, SUCCESS; }
int ncclGroupEnd() {
  if (group.depth == 0) return INVALID_USAGE;
  return --group.depth == 0 ? close_group() : SUCCESS;
}
}
