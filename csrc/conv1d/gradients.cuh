// conv1d's gradients of input and weight in one pass, for one channel a group (a single filter, a depthwise bank).
//
// grad_input is the convolution of grad_output with the taps in reverse order, and a tap's gradient is the sum of all
// products of an input and the output that it went into by that tap. With inputs numbered j and taps from the last one
// on, m = taps - 1 - k, both meet the same sample of grad_output:
//
//   grad_input[j]  = sum over m of  weight[m] * grad_output[j + m - (taps - 1 - padding)]
//   grad_weight[m] = sum over j of  input[j]  * grad_output[j + m - (taps - 1 - padding)]
//
// So a tile of grad_output comes to shared memory as in `tiled.cuh`, each thread holds its inputs in registers, and
// uses each sample of its window twice. A thread's sums for the taps stay in registers over all the tiles of its block.
// Then the block adds up, and where several blocks share a channel a second kernel adds theirs.
//
// Traffic: input and grad_output read once, grad_input written once: (2 * inputs + outputs) * element_bytes.
// Hazard:  every sum is added in an order that the shapes alone decide, so that it has the same bits each time.
#pragma once

#include "common/divisor.h"
#include "conv1d/policy.h"
#include "conv1d/staging.cuh"
#include "conv1d/tiled.cuh"

namespace cudamem {

struct Conv1dGradientTiles {
  const void *grad_output, *input, *weight;
  void *grad_input, *grad_weight;  // grad_input may be null
  void* partials;                  // [pieces, channels, taps], where there are several pieces
  int64_t in_length, out_length;
  int64_t input_strides[3], grad_output_strides[3];  // batch, channel, length
  int64_t padding;                                   // of the convolution by which grad_input comes
  uint32_t channels;
  int taps;

  uint32_t pieces;  // blocks that share a channel
  uint32_t parts;   // (batch, tile) of a channel; each of a block's groups of threads takes one at a time
  Divisor tiles;
  int threads_log2;  // of such a group
  int tile_outputs, staged_elems, tile_elems;
};

template <typename acc_t>
__device__ acc_t sum_of_warp(acc_t value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffff, value, lane);
  return value;
}

template <int kElems, typename scalar_t, typename acc_t>
__device__ void load_run(acc_t (&values)[kElems], const Row<scalar_t>& row, int64_t position) {
  constexpr int kVector = kVectorElems<scalar_t>;
  const scalar_t* source = row.data + position * row.stride;
  const bool aligned = row.stride == 1 && reinterpret_cast<uintptr_t>(source) % 16 == 0;
  if (aligned && position >= 0 && position + kElems <= row.size) {
#pragma unroll
    for (int i = 0; i < kElems; i += kVector) {
      const uint4 vector = __ldg(reinterpret_cast<const uint4*>(source + i));
#pragma unroll
      for (int j = 0; j < kVector; ++j) values[i + j] = convert<acc_t>(reinterpret_cast<const scalar_t*>(&vector)[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElems; ++i) values[i] = convert<acc_t>(row.at_or_zero(position + i));
  }
}

template <typename scalar_t>
constexpr int kGradientRun = sizeof(scalar_t) == 2 ? 8 : 4;  // inputs of a thread

template <typename scalar_t, int kTaps>
__global__ void __launch_bounds__(kGradientThreads, kGradientMinBlocks<scalar_t, kTaps>)
    conv1d_gradients_kernel(const __grid_constant__ Conv1dGradientTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  using Four = Quad<acc_t>;
  constexpr int kRun = kGradientRun<scalar_t>, kQuads = kRun / 4 + 1, kWarps = kGradientThreads / 32;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ acc_t taps[kTaps], of_warps[kTaps][kWarps];
  const int threads = 1 << p.threads_log2, thread = threadIdx.x & (threads - 1);
  const uint32_t group = threadIdx.x >> p.threads_log2, groups = blockDim.x >> p.threads_log2;
  acc_t* const tile = reinterpret_cast<acc_t*>(shared) + group * p.tile_elems;
  const uint32_t channel = blockIdx.x / p.pieces, piece = blockIdx.x - channel * p.pieces;
  if (threadIdx.x < p.taps) {
    const auto* weight = static_cast<const scalar_t*>(p.weight) + int64_t{channel} * p.taps;
    taps[threadIdx.x] = convert<acc_t>(__ldg(weight + p.taps - 1 - threadIdx.x));
  }

  acc_t of_taps[kTaps] = {};
  for (uint32_t start = piece * groups; start < p.parts; start += p.pieces * groups) {
    const bool exists = start + group < p.parts;
    uint32_t tile_index = exists ? start + group : 0;
    const int64_t batch = p.tiles.divide(tile_index);
    const int64_t row = (batch * p.channels + channel) * p.in_length;
    scalar_t* const grad_input = static_cast<scalar_t*>(p.grad_input) + row;
    const auto row_of = [&](const void* data, const int64_t(&strides)[3], int64_t length) {
      return Row<scalar_t>{static_cast<const scalar_t*>(data) + batch * strides[0] + channel * strides[1], length,
                           strides[2]};
    };
    const Row<scalar_t> input = row_of(p.input, p.input_strides, p.in_length);
    // Tiles start where stores to grad_input are aligned; without it, where loads of the input are.
    const auto* aligned = p.grad_input != nullptr ? grad_input : input.data;
    const int64_t first = static_cast<int64_t>(tile_index) * p.tile_outputs -
                          reinterpret_cast<uintptr_t>(aligned) % kTileAlignBytes / sizeof(scalar_t);
    acc_t inputs[kRun] = {};
    if (exists) {
      load_run(inputs, input, first + thread * kRun);
      stage<kRun, kRun / kVectorElems<scalar_t> + 1>(
          tile, row_of(p.grad_output, p.grad_output_strides, p.out_length), first - p.padding, p.staged_elems, thread,
          threads);
    }
    __syncthreads();

    if (exists) {
      const acc_t* samples = tile + place<kRun>(thread * kRun);
      const auto load = [&](int quad) { return *reinterpret_cast<const Four*>(samples + place<kRun>(4 * quad)); };
      acc_t grads[kRun] = {};
      Four window[kQuads];
#pragma unroll
      for (int quad = 0; quad < kQuads - 1; ++quad) window[quad] = load(quad);
#pragma unroll
      for (int tap = 0; tap < kTaps; tap += 4) {
        if (tap < p.taps) {
          window[(tap / 4 + kQuads - 1) % kQuads] = load(tap / 4 + kQuads - 1);
#pragma unroll
          for (int i = tap; i < tap + 4; ++i) {
            if (i < p.taps) {
              const acc_t coefficient = taps[i];
#pragma unroll
              for (int r = 0; r < kRun; ++r) {
                const int at = (i + r) % (4 * kQuads);
                const acc_t sample = window[at / 4].v[at % 4];
                grads[r] += coefficient * sample;
                of_taps[i] += inputs[r] * sample;
              }
            }
          }
        }
      }
      if (p.grad_input != nullptr) store_outputs(grad_input, p.in_length, first + thread * kRun, grads);
    }
    __syncthreads();  // the tile is free
  }

#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    if (i < p.taps) {
      const acc_t sum = sum_of_warp(of_taps[i]);
      if (threadIdx.x % 32 == 0) of_warps[i][threadIdx.x / 32] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x >= p.taps) return;
  acc_t sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[threadIdx.x][warp];
  const int64_t at = int64_t{channel} * p.taps + p.taps - 1 - threadIdx.x;
  if (p.pieces == 1) {
    static_cast<scalar_t*>(p.grad_weight)[at] = convert<scalar_t>(sum);
  } else {
    static_cast<acc_t*>(p.partials)[piece * (int64_t{p.channels} * p.taps) + at] = sum;
  }
}

// Adds the pieces' partials, by one thread for each sum or, where pieces are many, by a warp.
template <typename scalar_t>
__global__ void __launch_bounds__(kFinishThreads)
    conv1d_finish_kernel(const void* partials, void* grad_weight, int64_t count, int pieces, int lanes) {
  const auto* values = static_cast<const conv1d_acc_t<scalar_t>*>(partials);
  const int64_t at = (int64_t{blockIdx.x} * kFinishThreads + threadIdx.x) / lanes;
  double sum = 0;
  if (at < count) {
    for (int piece = threadIdx.x % lanes; piece < pieces; piece += lanes) sum += values[piece * count + at];
  }
  if (lanes > 1) sum = sum_of_warp(sum);
  if (at < count && threadIdx.x % lanes == 0) {
    static_cast<scalar_t*>(grad_weight)[at] = convert<scalar_t>(static_cast<conv1d_acc_t<scalar_t>>(sum));
  }
}

}  // namespace cudamem
