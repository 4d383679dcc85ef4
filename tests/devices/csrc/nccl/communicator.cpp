// How an operation moves its bytes: without waiting, as often as it is asked.
#include "communicator.h"

#include <algorithm>
#include <cstring>

namespace nccl {

Communicator::Communicator(int own_rank, int ranks, int on, std::string called)
    : rank(own_rank), num_ranks(ranks), device(on), name(std::move(called)) {
  std::string cause;
  shared = open_shared(name, num_ranks, cause);
  if (shared == nullptr) {
    fail(SYSTEM_ERROR, cause);
  } else {
    shared->devices[rank] = device;
    if (++shared->num_joined == num_ranks) forget_shared(name);
  }
}

Communicator::~Communicator() {
  if (shared == nullptr) return;
  if (shared->num_joined < num_ranks) forget_shared(name);
  close_shared(shared, num_ranks);
}

bool Communicator::is_complete() {
  if (error != SUCCESS || shared->num_joined < num_ranks) return false;
  for (int a = 0; a < num_ranks; ++a)
    for (int b = 0; b < a; ++b)
      if (shared->devices[a] == shared->devices[b])
        return fail(INVALID_USAGE, "Duplicate GPU detected : rank " + std::to_string(b) + " and rank " +
                                       std::to_string(a) + " both on CUDA device " +
                                       std::to_string(shared->devices[a])),
               false;
  return true;
}

void Communicator::fail(Result result, const std::string& cause) {
  std::lock_guard<std::mutex> guard(lock);
  if (error == SUCCESS) last_error = cause, error = result;
}

// One stretch of bytes through the ring; whether it is done.
static bool stretch(Channel& channel, bool is_sent, char* data, size_t num_bytes, size_t& done) {
  while (done < num_bytes) {
    const size_t moved =
        is_sent ? channel.write(data + done, num_bytes - done) : channel.take(data + done, num_bytes - done);
    if (moved == 0) return false;
    done += moved;
  }
  return true;
}

bool Operation::move(Transfer& t) {
  Channel& channel = t.is_sent ? of->channel(of->rank, t.peer) : of->channel(t.peer, of->rank);
  if (t.is_sent) t.header = {t.num_bytes, uint64_t(kind)};
  auto* header = reinterpret_cast<char*>(&t.header);
  if (!stretch(channel, t.is_sent, header, sizeof t.header, t.header_done)) return false;
  if (t.header.num_bytes != t.num_bytes || t.header.kind != uint64_t(kind)) {
    of->fail(INVALID_USAGE, "rank " + std::to_string(t.peer) + " sends " + std::to_string(t.header.num_bytes) +
                                " bytes of operation " + std::to_string(t.header.kind) + ", expected " +
                                std::to_string(t.num_bytes) + " of " + std::to_string(kind));
    return false;
  }
  return stretch(channel, t.is_sent, t.data, t.num_bytes, t.done);
}

void Operation::end() {
  if (reduced != nullptr) {
    std::vector<char> sum(contributions[0], contributions[0] + count * size_of(type));
    for (size_t rank = 1; rank < contributions.size(); ++rank)
      reduce(type, reduction, sum.data(), contributions[rank], count);
    if (reduction == AVERAGE) divide(type, sum.data(), count, of->num_ranks);
    std::memcpy(reduced, sum.data(), sum.size());
  }
  // A graph may carry it out again.
  for (Transfer& t : transfers) t.done = t.header_done = 0;
  has_begun = false;
  of->running = nullptr;
}

bool Operation::advance() {
  if (of->is_aborted || of->error != SUCCESS) return true;
  if (!of->is_complete()) return of->error != SUCCESS;
  Operation* none = nullptr;
  if (!has_begun && !of->running.compare_exchange_strong(none, this)) return false;
  if (!has_begun)
    for (const Copy& copy : copies) std::memmove(copy.to, copy.from, copy.num_bytes);
  has_begun = true;
  // All of them at once: a rank that waited for one could keep another one waiting.
  bool is_done = true;
  for (size_t i = 0; i < transfers.size(); ++i) {
    // Bytes between two ranks keep their order.
    const bool is_behind = std::any_of(transfers.begin(), transfers.begin() + long(i), [&](const Transfer& before) {
      return before.peer == transfers[i].peer && before.is_sent == transfers[i].is_sent &&
             (before.done < before.num_bytes || before.header_done < sizeof before.header);
    });
    is_done &= !is_behind && move(transfers[i]);
  }
  if (of->error != SUCCESS) return true;
  if (is_done) end();
  return is_done;
}

Result start(std::unique_ptr<Operation> operation, CUstream stream) {
  const std::shared_ptr<Communicator> of = operation->of;
  if (!rlt_stand_in_is_capturing(stream)) rlt_stand_in_count(RLT_LAUNCH, 0);
  const auto work = [](void* context) { return static_cast<Operation*>(context)->advance(); };
  const auto free = [](void* context) { delete static_cast<Operation*>(context); };
  const CUresult failed = rlt_stand_in_enqueue(stream, work, free, operation.release(), true);
  if (failed == CUDA_SUCCESS) return SUCCESS;
  of->fail(UNHANDLED_CUDA_ERROR, "the stream does not take it: error " + std::to_string(int(failed)));
  return UNHANDLED_CUDA_ERROR;
}

}  // namespace nccl
