// Every operator that has no kernel of its own here runs on the CPU, upon the device's memory: at once, behind all
// work of the current stream. While that stream captures, an operator that writes into its arguments is recorded.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <set>

#include "torch_cuda.h"

namespace torch_cuda {
namespace {

using c10::IValue;
using Stack = torch::jit::Stack;

// Operators whose result's size or value the host needs, so that it waits for a GPU inside of them.
const std::set<std::string>& waiting() {
  static const std::set<std::string> names{
      "aten::nonzero",      "aten::masked_select", "aten::equal",     "aten::_unique2",          "aten::unique_dim",
      "aten::_unique",      "aten::bincount",      "aten::histc",     "aten::unique_consecutive", "aten::nonzero_numpy",
      "aten::masked_select.out"};
  return names;
}

// Operators that take indices of the host to their device themselves.
bool moves_indices(const std::string& name) {
  return name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
}

template <class Visit>
void each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor.has_value() && tensor->defined()) visit(*tensor);
  }
}

// The one device of all arguments, numbers of the host excepted; -1 where none is on a device.
int device_of(const c10::FunctionSchema& schema, const IValue* arguments, size_t n) {
  int device = -1;
  const bool takes_indices = moves_indices(schema.name());
  for (size_t i = 0; i < n; ++i)
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (tensor.is_cpu() && (tensor.dim() == 0 || takes_indices)) return;
      TORCH_CHECK(tensor.is_cuda() && (device < 0 || device == tensor.get_device()),
                  "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                  std::max(device, 0), " and ", tensor.device(), "! (when checking arguments of ", schema.name(), ")");
      device = tensor.get_device();
    });
  return device;
}

// One call: arguments as the CPU sees them, and what of its results is an argument's own.
struct Call {
  const c10::OperatorHandle& op;
  const c10::FunctionSchema& schema;
  std::vector<IValue> arguments;
  int device;
  // Arguments to be written that had no size yet, with what the CPU made of them.
  std::vector<std::pair<at::Tensor, at::Tensor>> sized;
  std::vector<std::pair<at::Tensor, at::Tensor>> views;

  at::Tensor seen(const at::Tensor& tensor, bool is_written) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    if (is_written && tensor.numel() == 0) {
      const at::Tensor fresh = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
      sized.emplace_back(tensor, fresh);
      return fresh;
    }
    const at::Tensor view = host_view(tensor);
    views.emplace_back(tensor, view);
    return view;
  }

  IValue seen(const IValue& value, const c10::Argument& argument) {
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (value.isTensor()) return seen(value.toTensor(), is_written);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(seen(tensor, is_written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor.has_value() ? std::optional<at::Tensor>(seen(*tensor, is_written)) : tensor);
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      if (device < 0) device = value.toDevice().has_index() ? value.toDevice().index() : current_device();
      return c10::Device(c10::kCPU);
    }
    if (value.isGenerator()) return drawing(value.toGenerator());
    const bool draws = argument.type()->kind() == c10::TypeKind::OptionalType && value.isNone() &&
                       argument.name() == "generator";
    if (draws && device >= 0) return drawing(default_generator(device));
    return value;
  }

  at::Tensor result(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.is_cpu() || device < 0) return tensor;
    for (const auto& [own, view] : views)
      if (tensor.storage().data() != nullptr && tensor.storage().data() == view.storage().data())
        return own.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return on_device(tensor, device);
  }

  IValue result(const IValue& value) const {
    if (value.isTensor()) return result(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(result(tensor));
    return list;
  }

  // The argument that a result is, or none.
  const IValue* same(const c10::Argument& returned) const {
    if (returned.alias_info() == nullptr || !returned.alias_info()->isWrite()) return nullptr;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* info = schema.arguments()[i].alias_info();
      if (info != nullptr && info->isWrite() && info->beforeSet() == returned.alias_info()->beforeSet())
        return &arguments[i];
    }
    return nullptr;
  }

  // Appends the results to the stack.
  void run(Stack& stack) {
    Stack inner;
    for (size_t i = 0; i < arguments.size(); ++i) inner.push_back(seen(arguments[i], schema.arguments()[i]));
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &inner);
    for (auto& [own, made] : sized)
      if (made.numel() > 0) own.resize_(made.sizes()), host_view(own).copy_(made);
    for (size_t i = 0; i < inner.size(); ++i) {
      const IValue* argument = same(schema.returns()[i]);
      stack.push_back(argument != nullptr ? *argument : result(inner[i]));
    }
  }
};

bool writes_all_its_results(const c10::FunctionSchema& schema) {
  for (const c10::Argument& returned : schema.returns())
    if (returned.alias_info() == nullptr || !returned.alias_info()->isWrite()) return false;
  return true;
}

// What a graph does at each launch: the operator, with the arguments that it was recorded with.
struct Recorded {
  c10::OperatorHandle op;
  std::vector<IValue> arguments;
  int device;

  static bool run(void* context) {
    auto& recorded = *static_cast<Recorded*>(context);
    Stack results;
    Call{recorded.op, recorded.op.schema(), recorded.arguments, recorded.device, {}, {}}.run(results);
    return true;
  }
  static void free(void* context) { delete static_cast<Recorded*>(context); }
};

void record(Call& call, CUstream stream, Stack& stack) {
  if (!writes_all_its_results(call.schema))
    forbid_in_capture(call.schema.name() + " makes a tensor; expected its form that writes into one");
  if (waiting().count(call.schema.name()) > 0) forbid_in_capture(call.schema.name() + " waits for its result");
  check_capture(call.schema.name(), stream);
  auto* recorded = new Recorded{call.op, call.arguments, call.device};
  check(rlt_stand_in_enqueue(stream, &Recorded::run, &Recorded::free, recorded, false), "recording an operator");
  for (const c10::Argument& returned : call.schema.returns()) stack.push_back(*call.same(returned));
}

void count(const c10::FunctionSchema& schema, const IValue* arguments, size_t n) {
  rlt_stand_in_count(RLT_LAUNCH, 0);
  bool waits = waiting().count(schema.name()) > 0;
  if (moves_indices(schema.name()))
    for (size_t i = 1; i < n; ++i)
      each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        if (tensor.scalar_type() == at::kBool && i == 1) waits = true;
        if (!tensor.is_cpu() || tensor.dim() == 0) return;
        rlt_stand_in_count(RLT_HOST_TO_DEVICE, tensor.nbytes());
        rlt_stand_in_count(RLT_WAIT, 0);
      });
  if (!waits) return;
  rlt_stand_in_count(RLT_DEVICE_TO_HOST, sizeof(int64_t));
  rlt_stand_in_count(RLT_WAIT, 0);
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  check_devices();
  const c10::FunctionSchema& schema = op.schema();
  const size_t n = schema.arguments().size();
  const IValue* given = stack->data() + (stack->size() - n);
  Call call{op, schema, std::vector<IValue>(given, given + n), device_of(schema, given, n), {}, {}};
  torch::jit::drop(*stack, n);
  const c10::OptionalDeviceGuard guard(
      call.device < 0 ? std::nullopt : std::optional(c10::Device(c10::kCUDA, c10::DeviceIndex(call.device))));
  const CUstream stream = current_handle(call.device < 0 ? current_device() : call.device);
  check_determinism(schema.name(), call.arguments);
  if (rlt_stand_in_is_capturing(stream)) return record(call, stream, *stack);
  check(rlt_stand_in_drain(stream), schema.name().c_str());
  count(schema, call.arguments.data(), n);
  count_product(schema.name(), stream);
  call.run(*stack);
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  void* data = rlt_stand_in_alias(tensor.storage().data());
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                       c10::DataPtr(data, c10::Device(c10::kCPU)));
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return view;
}

at::Tensor on_device(const at::Tensor& result, int device) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, c10::DeviceIndex(device)));
  const at::Tensor dense = result.is_non_overlapping_and_dense() ? result : result.contiguous();
  at::Tensor made =
      at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(at::kCUDA).requires_grad(false));
  if (dense.numel() > 0) std::memcpy(rlt_stand_in_alias(made.data_ptr()), dense.data_ptr(), dense.nbytes());
  return made;
}

}  // namespace torch_cuda

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&torch_cuda::fallback>());
}

// One kernel on a GPU, though libtorch could also compose it for devices that have none.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("silu_backward", torch::CppFunction::makeFromBoxedFunction<&torch_cuda::fallback>());
}
