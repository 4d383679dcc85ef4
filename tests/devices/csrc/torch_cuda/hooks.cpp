// How libtorch's CPU half asks about CUDA, under the name with which the real library registers, and generators.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/StreamGuard.h>

#include <array>

#include "torch_cuda.h"

namespace torch_cuda {
namespace {

// A device's generator; a generator of the CPU draws for it.
struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator drawn_by;

  DeviceGenerator(c10::DeviceIndex device, at::Generator by)
      : c10::GeneratorImpl({c10::kCUDA, device}, c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        drawn_by(std::move(by)) {}
  explicit DeviceGenerator(c10::DeviceIndex device) : DeviceGenerator(device, at::detail::createCPUGenerator()) {}

  void set_current_seed(uint64_t seed) override { drawn_by.set_current_seed(seed); }
  uint64_t current_seed() const override { return drawn_by.current_seed(); }
  uint64_t seed() override { return drawn_by.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "the stand-in's generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "the stand-in's generators have no offset"); }
  void set_state(const c10::TensorImpl& state) override { drawn_by.getIntrusivePtr()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return drawn_by.getIntrusivePtr()->get_state(); }

 private:
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(device_.index(), drawn_by.clone()); }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool hasCUDA() const override { return num_devices() > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  bool hasCUDART() const override { return true; }
  long versionCUDART() const override { return 13000; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  std::string showConfig() const override { return "stand-in devices of CPU memory"; }

  int getNumGPUs() const override { return num_devices(); }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(num_devices()); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(torch_cuda::current_device()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { use_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    if (device >= 0) use_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? torch_cuda::current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<DeviceGenerator>(device);
  }

  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* address) const override { return rlt_stand_in_is_pinned(address); }
  at::Device getDeviceFromPtr(void* address) const override {
    return {c10::kCUDA, c10::DeviceIndex(rlt_stand_in_device_of(address))};
  }
};

}  // namespace

const at::Generator& default_generator(int device) {
  static const std::vector<at::Generator>* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (int idx = 0; idx < RLT_MOST_DEVICES; ++idx)
      made->push_back(at::make_generator<DeviceGenerator>(c10::DeviceIndex(idx)));
    return made;
  }();
  return generators->at(size_t(device));
}

at::Generator drawing(const at::Generator& generator) {
  return generator.device().is_cuda() ? generator.get<DeviceGenerator>()->drawn_by : generator;
}

}  // namespace torch_cuda

namespace at {
namespace {
using StandInHooks = ::torch_cuda::Hooks;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", StandInHooks)
}  // namespace
}  // namespace at
