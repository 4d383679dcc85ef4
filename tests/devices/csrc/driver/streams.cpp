// Streams and their work. Work is executed when a thread waits for it: a result is never visible without a
// wait.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <thread>

#include "core.h"

namespace stand_in {
namespace {

constexpr auto PAUSE = std::chrono::microseconds(50);

double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// With `running` held. Carries out what the stream was asked for up to a position, and first what it awaits of
// others; false where something is not done yet.
bool run_until(Stream& stream, uint64_t position) {
  while (stream.passed.load() < position) {
    Entry entry;
    {
      std::lock_guard<std::mutex> guard(core().lock);
      entry = stream.queue.front();
    }
    if (entry.awaits && !run_until(*entry.awaits->stream, entry.awaits->position)) return false;
    if (entry.work && core().failure.load() == CUDA_SUCCESS) {
      try {
        if (!entry.work()) return false;
      } catch (const std::exception& error) { fail(CUDA_ERROR_LAUNCH_FAILED, error.what()); }
    }
    std::lock_guard<std::mutex> guard(core().lock);
    stream.queue.pop_front();
    ++stream.passed;
  }
  return true;
}

// A thread that looks, while other processes may be waiting, whether work can be carried out.
struct Progress {
  std::mutex lock;
  std::condition_variable asked;
  std::set<Stream*> streams;

  void ask(Stream& stream) {
    std::lock_guard<std::mutex> guard(lock);
    if (streams.insert(&stream).second) asked.notify_one();
  }

  void work() {
    std::unique_lock<std::mutex> guard(lock);
    while (true) {
      asked.wait(guard, [&] { return !streams.empty(); });
      const std::set<Stream*> now = streams;
      guard.unlock();
      std::set<Stream*> idle;
      for (Stream* stream : now) {
        const uint64_t position = rlt_stand_in_position(reinterpret_cast<CUstream>(stream));
        if (advance(*stream, position, false)) idle.insert(stream);
      }
      if (idle.empty()) std::this_thread::sleep_for(PAUSE);
      guard.lock();
      for (Stream* stream : idle)
        if (stream->passed.load() == rlt_stand_in_position(reinterpret_cast<CUstream>(stream))) streams.erase(stream);
    }
  }
};

// A thread on which functions of the host are called, as the driver has one.
struct Caller {
  std::mutex lock;
  std::condition_variable changed;
  void (*function)(void*) = nullptr;
  void* context = nullptr;

  void work() {
    is_in_host_function = true;
    std::unique_lock<std::mutex> guard(lock);
    while (true) {
      changed.wait(guard, [&] { return function != nullptr; });
      guard.unlock();
      function(context);
      guard.lock();
      function = nullptr;
      changed.notify_all();
    }
  }
};

// Threads that are never joined: the data that they read lives as long as the process.
template <class Worker>
Worker& started() {
  static Worker* worker = [] {
    auto* made = new Worker;
    std::thread([made] { made->work(); }).detach();
    return made;
  }();
  return *worker;
}

}  // namespace

bool is_over(const Moment& moment) { return moment.stream->passed.load() >= moment.position; }

bool advance(Stream& stream, uint64_t position, bool patiently) {
  while (true) {
    {
      std::lock_guard<std::mutex> guard(core().running);
      if (run_until(stream, position)) return true;
    }
    if (!patiently) return false;
    std::this_thread::sleep_for(PAUSE);
  }
}

CUresult drain(Stream& stream) {
  uint64_t position;
  {
    std::lock_guard<std::mutex> guard(core().lock);
    if (stream.capture != nullptr) {
      stream.capture->is_invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    position = stream.position;
  }
  advance(stream, position, true);
  return core().failure;
}

CUresult drain_device(Device& device) {
  std::vector<Stream*> streams{device.default_stream.get()};
  {
    std::lock_guard<std::mutex> guard(core().lock);
    for (auto& stream : core().streams)
      if (stream->device == &device) streams.push_back(stream.get());
  }
  for (Stream* stream : streams)
    if (CUresult failed = drain(*stream)) return failed;
  return CUDA_SUCCESS;
}

CUresult enqueue(Stream& stream, Work work) {
  std::lock_guard<std::mutex> guard(core().lock);
  if (stream.capture != nullptr) {
    auto& unjoined = stream.capture->unjoined;
    if (const auto found = unjoined.find(&stream); found != unjoined.end()) found->second = true;
    stream.capture->graph->nodes.push_back(std::move(work));
    return stream.capture->is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  stream.queue.push_back({std::move(work), nullptr});
  ++stream.position;
  return CUDA_SUCCESS;
}

void enqueue_wait(Stream& stream, std::shared_ptr<Moment> moment) {
  std::lock_guard<std::mutex> guard(core().lock);
  stream.queue.push_back({nullptr, std::move(moment)});
  ++stream.position;
}

std::shared_ptr<Moment> mark(Stream& stream) {
  std::lock_guard<std::mutex> guard(core().lock);
  auto moment = std::make_shared<Moment>();
  moment->stream = &stream;
  moment->capture = stream.capture;
  if (stream.capture == nullptr) {
    stream.queue.push_back({[moment] { return moment->milliseconds = now(), true; }, nullptr});
    moment->position = ++stream.position;
  }
  return moment;
}

Stream* stream_of(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
    return current_device == nullptr ? nullptr : current_device->default_stream.get();
  return reinterpret_cast<Stream*>(handle);
}

void make_progress_on(Stream& stream) { started<Progress>().ask(stream); }

void call_on_host(void (*function)(void*), void* context) {
  auto& caller = started<Caller>();
  std::unique_lock<std::mutex> guard(caller.lock);
  caller.function = function, caller.context = context;
  caller.changed.notify_all();
  caller.changed.wait(guard, [&] { return caller.function == nullptr; });
}

}  // namespace stand_in

using namespace stand_in;

extern "C" {
CUresult rlt_stand_in_drain(CUstream handle) {
  Stream* stream = stream_of(handle);
  return stream == nullptr ? CUDA_ERROR_INVALID_CONTEXT : drain(*stream);
}
CUresult rlt_stand_in_enqueue(CUstream handle, bool (*work)(void*), void (*free)(void*), void* context,
                              bool is_exchange) {
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::shared_ptr<void> owned(context, free);
  const CUresult result = enqueue(*stream, [owned, work] { return work(owned.get()); });
  if (!is_exchange) return result;
  if (!rlt_stand_in_is_capturing(handle)) return make_progress_on(*stream), result;
  std::lock_guard<std::mutex> guard(core().lock);
  stream->capture->graph->is_exchange = true;
  return result;
}
uint64_t rlt_stand_in_position(CUstream handle) {
  Stream* stream = stream_of(handle);
  std::lock_guard<std::mutex> guard(core().lock);
  return stream == nullptr ? 0 : stream->position;
}
uint64_t rlt_stand_in_passed(CUstream handle) {
  Stream* stream = stream_of(handle);
  return stream == nullptr ? 0 : stream->passed.load();
}
CUstream rlt_stand_in_default_stream(int device) {
  return reinterpret_cast<CUstream>(core().devices[size_t(device)]->default_stream.get());
}
bool rlt_stand_in_is_capturing(CUstream handle) {
  Stream* stream = stream_of(handle);
  std::lock_guard<std::mutex> guard(core().lock);
  return stream != nullptr && stream->capture != nullptr;
}
}
