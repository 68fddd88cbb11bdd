// The boundary between torch and the conv1d kernels.
#pragma once

#include "common/cuda_types.h"
#include "common/dtype.h"

namespace cudamem {

enum class Conv1dVariant { kGlobal, kReadonly, kShared, kConstant };
constexpr const char* kConv1dVariants[] = {"global", "readonly", "shared", "constant"};

constexpr int64_t kConstantBankBytes = 65536;  // all the __constant__ memory that a CUDA module has

struct Conv1dProblem {
  const void* input;   // [batch, in_channels, in_length], any strides
  const void* weight;  // [out_channels, channels_per_group, taps], contiguous
  const void* bias;    // [out_channels], contiguous, or null
  void* output;        // [batch, out_channels, out_length], contiguous
  int64_t batch, out_channels, channels_per_group, channels_out_per_group;
  int64_t in_length, out_length, taps;
  int64_t batch_stride, channel_stride, length_stride;  // of the input, in elements
  int64_t stride, padding, dilation;
  int64_t weight_bytes;
  DType dtype;  // float16, bfloat16, float32 or float64
};

#ifndef CUDAMEM_CPU_ONLY
// Why `variant` cannot run here, or null where it can.
const char* conv1d_illegal(Conv1dVariant variant, int64_t weight_bytes, cudaStream_t stream);

cudaError_t launch_conv1d(Conv1dVariant variant, const Conv1dProblem& problem, cudaStream_t stream);
std::vector<KernelEntry> conv1d_kernels();
#endif

}  // namespace cudamem
