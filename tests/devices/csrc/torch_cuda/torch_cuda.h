// The stand-in for libtorch_cuda: what makes tensors on stand-in devices real for ATen. Its parts share what is here.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include "../driver/stand_in.h"

namespace torch_cuda {

// Throws what the driver refused, in its own words.
void check(CUresult result, const char* act);
// Throws where a device has failed.
void check_devices();
// Throws and invalidates the capture if the calling thread captures. For acts that would allocate or wait.
void forbid_in_capture(const std::string& act);

// Throws if deterministic algorithms are on and the operator has no deterministic implementation on CUDA.
void check_determinism(const std::string& name, const std::vector<c10::IValue>& arguments);
// Throws if the operator would allocate or wait during the capture of `stream`.
void check_capture(const std::string& name, CUstream stream);
// Records that cuBLAS has its workspace for the thread and stream, after a product.
void count_product(const std::string& name, CUstream stream);

int num_devices();
// The calling thread's device; becomes the driver's current one.
int current_device();
void use_device(int idx);

CUstream handle_of(const c10::Stream& stream);
// The stream on which the calling thread computes.
c10::Stream current_stream(int device);
inline CUstream current_handle(int device) { return handle_of(current_stream(device)); }

c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();
// Pinned memory is not reused before the stream is done with it.
void record_pinned(const void* address, CUstream stream);

const at::Generator& default_generator(int device);
// The generator of the CPU that draws for one of a device.
at::Generator drawing(const at::Generator& generator);

// The same numbers as a tensor of the CPU, for device work: the host itself may not touch them.
at::Tensor host_view(const at::Tensor& tensor);
// A tensor of the device with these numbers.
at::Tensor on_device(const at::Tensor& result, int device);

}  // namespace torch_cuda
