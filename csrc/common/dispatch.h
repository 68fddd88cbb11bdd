// What every operator's torch side shares: variants by name, devices and streams, launch errors, dtypes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "common/cuda_types.h"
#include "common/dtype.h"

namespace cudamem {

// The index of `name` among `names`; an unknown name is refused with the names there are.
template <size_t n>
int variant_index(const char* op, const char* const (&names)[n], std::string_view name) {
  std::string known;
  for (size_t i = 0; i < n; ++i) {
    if (name == names[i]) return static_cast<int>(i);
    known += (i == 0 ? "'" : ", '") + std::string(names[i]) + "'";
  }
  TORCH_CHECK(false, "cudamem::", op, ": unknown variant '", name, "'; there are ", known);
}

// Refuses tensors on different devices, naming each. An undefined tensor (an optional that is absent) is skipped.
void check_same_device(const char* op, std::initializer_list<std::pair<const char*, const at::Tensor*>> tensors);

// True inside torch.func transforms and under forward-mode AD, where a C++ autograd::Function cannot run: the
// Autograd kernels then compute with ATen's differentiable operators instead.
bool needs_composite(std::initializer_list<const at::Tensor*> tensors);

#ifdef CUDAMEM_CPU_ONLY
// The CUDA kernel of every operator in a build without CUDA: an error that says so and how to rebuild.
void refuse_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack);
#define CUDAMEM_CUDA_FN(function) torch::CppFunction::makeFromBoxedFunction<&refuse_cuda>()
#else
#define CUDAMEM_CUDA_FN(function) TORCH_FN(function)

// The dtype as the kernels know it, if they do.
std::optional<DType> kernel_dtype(c10::ScalarType type);
c10::ScalarType scalar_type(DType type);

// torch's current stream, through the device-generic interface: no CUDA header of torch's is needed.
cudaStream_t current_stream(c10::Device device);

// Turns a launch error into an exception. A GPU for which nothing was compiled is named with what was.
void check_launch(const char* op, cudaError_t error);
#endif

}  // namespace cudamem
