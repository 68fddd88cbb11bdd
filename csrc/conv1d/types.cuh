// The element types that the kernels take.
#pragma once

#include "common/device.cuh"

namespace cudamem {

// Half types add up in float32.
template <typename scalar_t>
using conv1d_acc_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

// Calls `function` with a value of each type.
template <typename Function>
void for_each_type(Function function) {
  function(__half{});
  function(__nv_bfloat16{});
  function(0.0f);
  function(0.0);
}

// Calls `function` with a value of the type `dtype`, which is one of these.
template <typename Function>
auto with_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat16:
      return function(__half{});
    case DType::kBFloat16:
      return function(__nv_bfloat16{});
    case DType::kFloat32:
      return function(0.0f);
    default:
      return function(0.0);
  }
}

template <typename scalar_t>
constexpr const char* kTypeName = kDTypeNames[static_cast<int>(kDType<scalar_t>)];

}  // namespace cudamem
