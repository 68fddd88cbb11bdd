#include "common/dispatch.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <sstream>

#include "build_info.h"

namespace cudamem {

void check_same_device(const char* op, std::initializer_list<std::pair<const char*, const at::Tensor*>> tensors) {
  const c10::Device device = tensors.begin()->second->device();
  bool same = true;
  for (const auto& [name, tensor] : tensors) same &= !tensor->defined() || tensor->device() == device;
  if (same) return;
  std::ostringstream received;
  for (const auto& [name, tensor] : tensors) {
    if (tensor->defined()) received << (received.tellp() > 0 ? ", " : "") << name << " on " << tensor->device();
  }
  TORCH_CHECK(false, "cudamem::", op, ": expected all tensors on one device, but got ", received.str());
}

bool needs_composite(std::initializer_list<const at::Tensor*> tensors) {
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode)) return true;
  for (const at::Tensor* tensor : tensors) {
    if (tensor->defined() && tensor->_fw_grad(/*level=*/0).defined()) return true;
  }
  return false;
}

#ifdef CUDAMEM_CPU_ONLY

void refuse_cuda(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(),
                              ": this build of cudamem_ops has no CUDA kernels (" CUDAMEM_WHY_CPU_ONLY
                              "). Rebuild it where nvcc is found, with CUDAMEM_CUDA=1: " CUDAMEM_REBUILD);
}

#else

namespace {

constexpr std::pair<c10::ScalarType, DType> kDTypes[] = {
    {c10::kBool, DType::kBool},      {c10::kByte, DType::kUInt8},        {c10::kChar, DType::kInt8},
    {c10::kShort, DType::kInt16},    {c10::kInt, DType::kInt32},         {c10::kLong, DType::kInt64},
    {c10::kHalf, DType::kFloat16},   {c10::kBFloat16, DType::kBFloat16}, {c10::kFloat, DType::kFloat32},
    {c10::kDouble, DType::kFloat64},
};

}  // namespace

std::optional<DType> kernel_dtype(c10::ScalarType type) {
  for (const auto& [torch_type, dtype] : kDTypes) {
    if (torch_type == type) return dtype;
  }
  return std::nullopt;
}

c10::ScalarType scalar_type(DType type) {
  for (const auto& [torch_type, dtype] : kDTypes) {
    if (dtype == type) return torch_type;
  }
  TORCH_INTERNAL_ASSERT(false);
}

cudaStream_t current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<cudaStream_t>(guard.getStream(device).native_handle());
}

void check_launch(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // what is reported here is not found again by the next call
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion) {
    int device = 0, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    TORCH_CHECK(false, "cudamem::", op,
                ": cudamem_ops was built for the GPU architectures " CUDAMEM_ARCHITECTURES ", but cuda:", device,
                " is ", major, ".", minor, ". Rebuild it with TORCH_CUDA_ARCH_LIST=\"", major, ".", minor,
                "\": " CUDAMEM_REBUILD);
  }
  TORCH_CHECK(false, "cudamem::", op, ": CUDA error: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

#endif

}  // namespace cudamem
