// The devices of this process: their memory, their streams and the work that waits in them.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "stand_in.h"

namespace stand_in {

struct Stream;
struct Capture;

// A moment in a stream: over when the stream has passed the position. A moment of a capture is part of its graph
// only.
struct Moment {
  Stream* stream;
  uint64_t position;
  Capture* capture = nullptr;
  std::atomic<double> milliseconds{0};
};

// Work returns whether it is done; an entry that awaits a moment of another stream does nothing itself.
using Work = std::function<bool()>;
struct Entry {
  Work work;
  std::shared_ptr<Moment> awaits;
};

// A copy that a graph makes at each launch, for the counters.
struct Copy {
  RltCounter direction;
  size_t num_bytes;
};

struct Graph {
  std::vector<Work> nodes;
  std::vector<Copy> copies;
  // Whether other processes wait for a part of it.
  bool is_exchange = false;
};

// What is recorded between the begin and the end of a capture. Streams that follow the first one's events join it,
// and must be followed by it before the end.
struct Capture {
  Capture(Stream* begun_on, CUstreamCaptureMode in) : origin(begun_on), mode(in) {}

  Stream* origin;
  CUstreamCaptureMode mode;
  std::thread::id owner = std::this_thread::get_id();
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::map<Stream*, bool> unjoined;
  bool is_invalid = false;
};

struct Device {
  int idx;
  size_t memory;
  // The addresses that programs know, which the host may not touch, and the same memory where device work finds it.
  char *base = nullptr, *alias = nullptr;
  size_t region = 0;
  int file = -1;
  // By address: sizes of what is taken and of what is free.
  std::map<char*, size_t> taken, gaps;
  // `kept` are used bytes that an allocator on top keeps as free blocks; `peak` excludes them.
  size_t used = 0, kept = 0, peak = 0, peak_reserved = 0;
  std::unique_ptr<Stream> default_stream;
};

struct Stream {
  Device* device;
  int priority = 0;
  std::deque<Entry> queue;
  uint64_t position = 0;
  std::atomic<uint64_t> passed{0};
  Capture* capture = nullptr;
};

struct Event {
  std::shared_ptr<Moment> recorded;
};

// What the environment says about the devices.
struct Settings {
  int num_devices = 1, driver_version = 13000, compute_capability = 90;
  size_t memory = size_t(1) << 30;
  // As many as an H100 has, so that work is split as it would be there.
  int multiprocessors = 132;
  // Bytes of each device that another process has.
  size_t taken = 0;
  // The failure that each device reports from a number of launches on.
  int64_t failing_launch = -1;
  CUresult failure = CUDA_SUCCESS;
  // Result of each `cuStreamEndCapture`.
  CUresult capture_failure = CUDA_SUCCESS;
};

struct Core {
  Settings settings;
  std::vector<std::unique_ptr<Device>> devices;
  // Around queues, events, captures and memory. Never held while work is carried out.
  std::mutex lock;
  // Held by the thread that executes work: one entry of one stream at a time.
  std::mutex running;
  std::vector<std::unique_ptr<Stream>> streams;
  std::set<Capture*> captures;
  std::map<char*, size_t> pinned;
  // Kernels that were allowed more shared memory than any kernel has, with how much.
  std::map<CUfunction, size_t> shared_bytes;
  std::atomic<CUresult> failure{CUDA_SUCCESS};

  Core();
};

// Made at the first use; never freed, for work may be left when the process ends.
Core& core();
// The calling thread's device; null before it has one.
extern thread_local Device* current_device;
// Set on the thread that carries out functions of the host, which must not call the driver.
extern thread_local bool is_in_host_function;

// The stream behind a handle; the current device's own for the handles that mean it. Null without a device.
Stream* stream_of(CUstream handle);
// Appends to the stream or to the graph that it captures.
CUresult enqueue(Stream& stream, Work work);
void enqueue_wait(Stream& stream, std::shared_ptr<Moment> moment);
std::shared_ptr<Moment> mark(Stream& stream);
// Carries out what comes before a position. Without `patiently` it returns false where work is not done yet.
bool advance(Stream& stream, uint64_t position, bool patiently);
bool is_over(const Moment& moment);
CUresult drain(Stream& stream);
CUresult drain_device(Device& device);
// Refuses what a capture forbids to all threads or to its own, and makes the captures invalid by it.
CUresult refuse_while_capturing();
// What an entry of the driver returns before it does anything.
CUresult ready();
void fail(CUresult failure, const std::string& cause);

CUresult allocate(Device& device, size_t num_bytes, void** out);
bool release(void* address);
Device* device_of(const void* address);
// Whether so many bytes from the address on belong to one allocation.
bool is_within(const Device& device, const void* address, size_t num_bytes);
void* alias_of(const void* address);
bool is_pinned(const void* address);

// Device memory is accessible by its own addresses while one of these lives: for kernels.
struct Opened {
  Opened();
  ~Opened();
};

void count_copies(const std::vector<Copy>& copies);
// Lets the process carry the stream's work out by itself.
void make_progress_on(Stream& stream);
// Calls on the thread for functions of the host and returns when it is done.
void call_on_host(void (*function)(void*), void* context);

}  // namespace stand_in
