// conv1d: every output reads the same few coefficients, so what matters is how they reach the threads.
//
// Traffic: input read once and output written once, (inputs + outputs) * element_bytes; the windows of neighbouring
//          outputs overlap and are served by the caches. 2 * outputs * channels_per_group * taps FLOPs.
// Hazard:  one thread computes one output, in the same order in every variant; they differ in the coefficient alone:
//   global     an ordinary load
//   readonly   __ldg, the read-only data cache
//   shared     staged by the block in shared memory, in pieces of kConv1dStage
//   constant   the __constant__ bank: all threads of a warp ask for the same address at once, which is the one case
//              that the constant cache serves in a single step
//   parameter  an argument of the kernel, by value, which lies in constant memory too; the host must know it
//   registers  each thread's own copy, for which it computes several outputs
// The bank belongs to the whole device: conv1d.cu says how calls share it.
// Source: NVIDIA, "Image Convolution with CUDA" (V. Podlozhnyuk, 2007), convolutionSeparable.
#pragma once

#include "common/device.cuh"
#include "conv1d/conv1d.h"
#include "conv1d/policy.h"
#include "conv1d/types.cuh"

namespace cudamem {

__constant__ __align__(16) unsigned char conv1d_bank[kConstantBankBytes];

// A block covers a stretch of one output signal: x is the position, y the channel, z the batch. There may be more
// channels and batches than a grid takes in y and z (65,535), so blocks stride over those.
struct Conv1dOutput {
  int64_t batch, channel, position;
};

// What a thread adds up: its window in each channel of its group.
template <typename scalar_t>
struct Conv1dWindow {
  using acc_t = conv1d_acc_t<scalar_t>;

  const scalar_t* in;  // [channels_per_group, in_length] of this thread's group
  int64_t start;       // where the first tap falls; negative in the padding
  bool whole;          // no tap falls outside the signal

  __device__ Conv1dWindow(const Conv1dProblem& p, const Conv1dOutput& out) {
    const int64_t group = p.channels_out_per_group == 1 ? out.channel : quotient(out.channel, p.channels_out_per_group);
    in = static_cast<const scalar_t*>(p.input) + out.batch * p.batch_stride +
         group * p.channels_per_group * p.channel_stride;
    start = out.position * p.stride - p.padding;
    whole = start >= 0 && start + (p.taps - 1) * p.dilation < p.in_length;
  }

  // Adds the taps [first, end) of one channel; coefficient(tap) fetches one.
  template <typename Coefficient>
  __device__ void add(const Conv1dProblem& p, int64_t channel, int first, int end, acc_t& total,
                      Coefficient coefficient) const {
    int64_t at = start + first * p.dilation;
    const int64_t step = p.dilation * p.length_stride;
    const scalar_t* x = in + channel * p.channel_stride + at * p.length_stride;
    if (whole) {
#pragma unroll 4
      for (int tap = first; tap < end; ++tap, x += step) total += convert<acc_t>(*x) * convert<acc_t>(coefficient(tap));
    } else {
#pragma unroll 1
      for (int tap = first; tap < end; ++tap, x += step, at += p.dilation) {
        if (at >= 0 && at < p.in_length) total += convert<acc_t>(*x) * convert<acc_t>(coefficient(tap));
      }
    }
  }

  // Adds all taps of the group's only channel, whose coefficients are in registers: so nothing may count at run time
  // which one is next.
  template <int kTaps>
  __device__ void add(const Conv1dProblem& p, const acc_t (&coefficients)[kTaps], acc_t& total) const {
    const scalar_t* x = in + start * p.length_stride;
    const int64_t step = p.dilation * p.length_stride;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap, x += step) {
      const int64_t at = start + tap * p.dilation;
      if (tap < p.taps && (whole || (at >= 0 && at < p.in_length))) total += convert<acc_t>(*x) * coefficients[tap];
    }
  }

  __device__ acc_t bias(const Conv1dProblem& p, const Conv1dOutput& out) const {
    return p.bias == nullptr ? acc_t{0} : convert<acc_t>(static_cast<const scalar_t*>(p.bias)[out.channel]);
  }
};

template <typename scalar_t>
__device__ void conv1d_store(const Conv1dProblem& p, const Conv1dOutput& out, conv1d_acc_t<scalar_t> total) {
  static_cast<scalar_t*>(p.output)[(out.batch * p.out_channels + out.channel) * p.out_length + out.position] =
      convert<scalar_t>(total);
}

// Where these variants read a coefficient of [out_channels, channels_per_group, taps].
template <typename scalar_t>
struct FromGlobal {
  const scalar_t* weight;
  __device__ scalar_t operator[](int64_t i) const { return weight[i]; }
};
template <typename scalar_t>
struct FromReadonly {
  const scalar_t* weight;
  __device__ scalar_t operator[](int64_t i) const { return __ldg(weight + i); }
};
template <typename scalar_t>
struct FromConstant {
  int64_t offset_bytes;
  __device__ scalar_t operator[](int64_t i) const {
    return reinterpret_cast<const scalar_t*>(conv1d_bank + offset_bytes)[i];
  }
};

template <typename scalar_t>
struct FromParameter {
  alignas(8) unsigned char bytes[kParameterBytes];
  __device__ scalar_t operator[](int64_t i) const { return reinterpret_cast<const scalar_t*>(bytes)[i]; }
};

template <typename scalar_t, typename Source>
__device__ conv1d_acc_t<scalar_t> conv1d_direct(const Conv1dProblem& p, const Conv1dOutput& out, const Source& source) {
  const Conv1dWindow<scalar_t> window(p, out);
  conv1d_acc_t<scalar_t> total = window.bias(p, out);
  for (int64_t channel = 0; channel < p.channels_per_group; ++channel) {
    const int64_t first = (out.channel * p.channels_per_group + channel) * p.taps;
    window.add(p, channel, 0, p.taps, total, [&](int tap) { return source[first + tap]; });
  }
  return total;
}

template <typename scalar_t, typename Source>
__global__ void __launch_bounds__(kConv1dMaxThreads, kConv1dMinBlocks)
    conv1d_direct_kernel(const __grid_constant__ Conv1dProblem p, const __grid_constant__ Source source) {
  const int64_t position = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (position >= p.out_length) return;
  for (int64_t batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
    for (int64_t channel = blockIdx.y; channel < p.out_channels; channel += gridDim.y) {
      const Conv1dOutput out{batch, channel, position};
      conv1d_store<scalar_t>(p, out, conv1d_direct<scalar_t>(p, out, source));
    }
  }
}

template <typename scalar_t>
__device__ conv1d_acc_t<scalar_t> conv1d_shared(const Conv1dProblem& p, const Conv1dOutput& out, bool inside) {
  __shared__ scalar_t stage[kConv1dStage];
  const Conv1dWindow<scalar_t> window(p, out);
  const scalar_t* weight = static_cast<const scalar_t*>(p.weight) +
                           out.channel * p.channels_per_group * p.taps;  // [channels_per_group, taps]

  conv1d_acc_t<scalar_t> total = window.bias(p, out);
  for (int64_t channel = 0; channel < p.channels_per_group; ++channel) {
    for (int64_t first = 0; first < p.taps; first += kConv1dStage) {
      const int count = min(p.taps - first, int64_t{kConv1dStage});
      __syncthreads();  // the stage is free: everybody has used what it held
      for (int i = threadIdx.x; i < count; i += blockDim.x) stage[i] = weight[channel * p.taps + first + i];
      __syncthreads();
      if (inside) window.add(p, channel, first, first + count, total, [&](int tap) { return stage[tap - first]; });
    }
  }
  return total;
}

template <typename scalar_t>
__global__ void __launch_bounds__(kConv1dMaxThreads, kConv1dMinBlocks)
    conv1d_shared_kernel(const __grid_constant__ Conv1dProblem p) {
  const int64_t position = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool inside = position < p.out_length;  // threads beyond the end still help to fill the stage
  for (int64_t batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
    for (int64_t channel = blockIdx.y; channel < p.out_channels; channel += gridDim.y) {
      const Conv1dOutput out{batch, channel, position};
      const auto total = conv1d_shared<scalar_t>(p, out, inside);
      if (inside) conv1d_store<scalar_t>(p, out, total);
    }
  }
}

// One channel a group, kRegisterTaps at most. Of kRegisterOutputs outputs a thread, each lies a block after the last
// one.
template <typename scalar_t>
__global__ void __launch_bounds__(kConv1dMaxThreads, kRegistersMinBlocks)
    conv1d_registers_kernel(const __grid_constant__ Conv1dProblem p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  const int64_t first = int64_t{blockIdx.x} * kRegisterOutputs * blockDim.x + threadIdx.x;
  for (int64_t batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
    for (int64_t channel = blockIdx.y; channel < p.out_channels; channel += gridDim.y) {
      const auto* weight = static_cast<const scalar_t*>(p.weight) + channel * p.taps;
      acc_t coefficients[kRegisterTaps];
#pragma unroll
      for (int tap = 0; tap < kRegisterTaps; ++tap) {
        coefficients[tap] = tap < p.taps ? convert<acc_t>(weight[tap]) : acc_t{0};
      }
      Conv1dOutput out{batch, channel, first};
#pragma unroll 1
      for (int i = 0; i < kRegisterOutputs && out.position < p.out_length; ++i, out.position += blockDim.x) {
        const Conv1dWindow<scalar_t> window(p, out);
        acc_t total = window.bias(p, out);
        window.add(p, coefficients, total);
        conv1d_store<scalar_t>(p, out, total);
      }
    }
  }
}

}  // namespace cudamem
