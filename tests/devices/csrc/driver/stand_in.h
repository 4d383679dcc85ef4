// What the stand-in device offers beside the CUDA driver's own functions, to the stand-ins for libtorch_cuda and NCCL
// and to tests. The functions of the driver are those of cuda.h.
#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>

constexpr int RLT_MOST_DEVICES = 16;

// What a process has asked of its devices. Copies and bytes are counted in each direction; a wait is a moment at
// which the host was kept until a device was done.
struct RltStandInCounts {
  int64_t host_to_device, device_to_host, device_to_device;
  int64_t launches, graph_launches, waits;
  int64_t bytes_host_to_device, bytes_device_to_host, bytes_device_to_device;
  int64_t num_devices;
  // Peaks of each device's memory: without and with the free blocks that an allocator on top keeps.
  int64_t peak_bytes[RLT_MOST_DEVICES], peak_reserved_bytes[RLT_MOST_DEVICES];
};

enum RltCounter {
  RLT_HOST_TO_DEVICE,
  RLT_DEVICE_TO_HOST,
  RLT_DEVICE_TO_DEVICE,
  RLT_LAUNCH,
  RLT_GRAPH_LAUNCH,
  RLT_WAIT
};

extern "C" {
void rlt_stand_in_counts(RltStandInCounts* out);
// Adds one to a counter, and to its bytes where it has some.
void rlt_stand_in_count(RltCounter counter, size_t num_bytes);
// Writes the counts to the file that RLT_STAND_IN_REPORT names, `%p` in it being the process's number. Done at the
// process's end as well.
void rlt_stand_in_report();

// Where device work finds the memory that the host knows by a device address; other addresses are returned as they
// are.
void* rlt_stand_in_alias(const void* address);
// The device whose memory an address is in, or -1.
int rlt_stand_in_device_of(const void* address);
bool rlt_stand_in_is_pinned(const void* address);
// Memory of a device, allocated and freed without a wait: an allocator on top must know when work on it is
// over.
CUresult rlt_stand_in_allocate(int device, size_t num_bytes, void** out);
void rlt_stand_in_release(void* address);
// Reports that an allocator on top keeps `num_bytes` more unused bytes, fewer if negative.
void rlt_stand_in_kept(int device, int64_t num_bytes);
// Returns the driver's error and invalidates the capture if the calling thread captures, else success.
CUresult rlt_stand_in_forbid_in_capture();

// Carries out all that the stream and whatever it waits for have been asked for, which is no wait of the host's: what
// the caller does next is work of that stream. An error while the stream captures.
CUresult rlt_stand_in_drain(CUstream stream);
// Appends work to a stream, or to the graph that it captures. `work` returns whether it is done, and is called again
// while it is not. `free` is called when the work is no longer needed. With `is_exchange`, the process carries the
// stream's work out by itself, because other processes wait for it.
CUresult rlt_stand_in_enqueue(CUstream stream, bool (*work)(void*), void (*free)(void*), void* context,
                              bool is_exchange);
// How much has been appended to a stream so far, and how much of it is over.
uint64_t rlt_stand_in_position(CUstream stream);
uint64_t rlt_stand_in_passed(CUstream stream);
bool rlt_stand_in_is_capturing(CUstream stream);
// The stream that a null handle stands for while the device is the current one.
CUstream rlt_stand_in_default_stream(int device);
// A device's failure that lasts: every later call returns it.
CUresult rlt_stand_in_failure();
}
