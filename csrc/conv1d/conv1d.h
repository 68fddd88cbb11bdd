// The boundary between torch and the conv1d kernels.
#pragma once

#include "common/cuda_types.h"
#include "common/dtype.h"

namespace cudamem {

enum class Conv1dVariant { kGlobal, kReadonly, kShared, kConstant, kParameter, kRegisters, kFlat, kTiled };
constexpr const char* kConv1dVariants[] = {"global",    "readonly",  "shared", "constant",
                                           "parameter", "registers", "flat",   "tiled"};

constexpr int64_t kConstantBankBytes = 65536;  // all the __constant__ memory that a CUDA module has
constexpr int64_t kParameterBytes = 2048;      // of coefficients as a kernel's argument; all arguments may have 4096
constexpr int64_t kRegisterTaps = 32;          // that a thread keeps in registers

struct Conv1dProblem {
  const void* input = nullptr;   // [batch, groups * channels_per_group, in_length], any strides
  const void* weight = nullptr;  // [groups * channels_out_per_group, channels_per_group, taps], contiguous
  const void* bias = nullptr;    // [groups * channels_out_per_group], contiguous, or null
  void* output = nullptr;        // [batch, groups * channels_out_per_group, out_length], contiguous
  int64_t batch, out_channels, channels_per_group, channels_out_per_group;
  int64_t in_length, out_length, taps;
  int64_t batch_stride, channel_stride, length_stride;  // of the input, in elements
  int64_t stride, padding, dilation;
  int64_t weight_bytes;
  DType dtype;  // float16, bfloat16, float32 or float64
  // The gradient of an input is a convolution too: by the weight [groups * channels_per_group, channels_out_per_group,
  // taps] of the forward one, whose channels change places with its filters and whose taps are reversed; and with a
  // padding that may be negative. The flat and tiled kernels alone take it.
  bool transposed = false;
};

// The gradients of input and weight together, of one channel and one filter a group, stride and dilation 1.
struct Conv1dGradients {
  const void* grad_output;  // [batch, channels, out_length], any strides
  const void* input;        // [batch, channels, in_length], any strides
  const void* weight;       // [channels, 1, taps], contiguous
  void* grad_input;         // [batch, channels, in_length], contiguous, or null
  void* grad_weight;        // [channels, 1, taps], contiguous
  int64_t batch, channels, in_length, out_length, taps, padding;
  int64_t input_strides[3], grad_output_strides[3];  // batch, channel, length, in elements
  DType dtype;
};

#ifndef CUDAMEM_CPU_ONLY
// Why `variant` cannot run here, or null where it can.
const char* conv1d_illegal(Conv1dVariant variant, const Conv1dProblem& problem, cudaStream_t stream);
cudaError_t launch_conv1d(Conv1dVariant variant, const Conv1dProblem& problem, cudaStream_t stream);

// What runs by default: kTiled, kFlat, or, where neither takes the problem, kGlobal.
Conv1dVariant best_conv1d_variant(const Conv1dProblem& problem);

bool conv1d_tiled_takes(const Conv1dProblem& problem);
cudaError_t launch_conv1d_tiled(const Conv1dProblem& problem, cudaStream_t stream);

bool conv1d_flat_takes(const Conv1dProblem& problem);
cudaError_t launch_conv1d_flat(const Conv1dProblem& problem, cudaStream_t stream);

bool conv1d_gradients_take(const Conv1dGradients& problem);
int64_t conv1d_gradients_scratch_bytes(const Conv1dGradients& problem);
cudaError_t launch_conv1d_gradients(const Conv1dGradients& problem, void* scratch, cudaStream_t stream);

std::vector<KernelEntry> conv1d_kernels();
std::vector<KernelEntry> conv1d_tiled_kernel_entries();
std::vector<KernelEntry> conv1d_gradient_kernel_entries();
#endif

}  // namespace cudamem
