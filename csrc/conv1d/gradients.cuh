// conv1d's gradients of input and weight in one pass, for one channel and one filter a group (a single filter, a
// depthwise bank).
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
  int in_length, out_length;
  int64_t input_strides[3], grad_output_strides[3];  // batch, channel, length
  int padding;                                       // of the convolution by which grad_input comes
  int64_t channels;
  int taps;

  uint32_t pieces;          // blocks that share a channel
  uint32_t all_tiles;       // (batch, tile) of a channel
  uint32_t tiles_of_group;  // a block's groups of threads take so many each, one after the other
  Divisor tiles;
  int threads_log2;  // of such a group
  int tile_outputs, staged_elems, tile_elems;
};

template <typename scalar_t>
constexpr int kGradientRun = sizeof(scalar_t) == 8 ? 4 : 8;  // inputs of a thread

template <typename acc_t>
__device__ acc_t sum_of_warp(acc_t value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffff, value, lane);
  return value;
}

// Inputs as they lie in memory.
template <typename scalar_t>
struct alignas(16) Run {
  static constexpr int kElems = kGradientRun<scalar_t>;
  scalar_t v[kElems];

  __device__ void load(const Row<scalar_t>& row, int position) {
    constexpr int kVector = kVectorElems<scalar_t>;
    const scalar_t* source = row.data + position * row.stride;
    const bool aligned = row.stride == 1 && row.misaligned(position) == 0;
    if (aligned && position >= 0 && position <= row.size - kElems) {
#pragma unroll
      for (int i = 0; i < kElems; i += kVector) {
        *reinterpret_cast<uint4*>(v + i) = __ldg(reinterpret_cast<const uint4*>(source + i));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElems; ++i) {
        v[i] = row.has(position + i) ? __ldg(source + i * row.stride) : convert<scalar_t>(0.0f);
      }
    }
  }
};

// The tiles of inputs of one channel that a group of threads takes, one after the other.
template <typename scalar_t>
struct GradientWalk {
  Row<scalar_t> input, grad_output;
  scalar_t* grad_input;
  uint32_t tile;  // of the row
  int left;       // tiles, with this one

  __device__ GradientWalk(const Conv1dGradientTiles& p, int64_t channel, uint32_t first_tile) {
    left = first_tile < p.all_tiles ? min(p.tiles_of_group, p.all_tiles - first_tile) : 0;
    tile = left > 0 ? first_tile : 0;
    const int64_t batch = p.tiles.divide(tile);
    const auto row_of = [&](const void* data, const int64_t (&strides)[3], int length) {
      return Row<scalar_t>{static_cast<const scalar_t*>(data) + batch * strides[0] + channel * strides[1], length,
                           strides[2]};
    };
    input = row_of(p.input, p.input_strides, p.in_length);
    grad_output = row_of(p.grad_output, p.grad_output_strides, p.out_length);
    grad_input = static_cast<scalar_t*>(p.grad_input) + (batch * p.channels + channel) * p.in_length;
  }
  __device__ void next(const Conv1dGradientTiles& p) {
    --left;
    if (++tile == p.tiles.divisor) {
      tile = 0;
      input.data += p.input_strides[0];
      grad_output.data += p.grad_output_strides[0];
      grad_input += p.channels * p.in_length;
    }
  }
  // The first input; up to a sector before the row's start: stores to grad_input, or else loads of the input, are
  // aligned.
  __device__ int first(const Conv1dGradientTiles& p) const {
    const auto* aligned = p.grad_input != nullptr ? grad_input : input.data;
    return static_cast<int>(tile) * p.tile_outputs -
           static_cast<int>(reinterpret_cast<uintptr_t>(aligned) % kTileAlignBytes / sizeof(scalar_t));
  }
};

// With samples of grad_output from `samples` on: grads[r] += weight[m] * sample[r + m], of_taps[m] += input[r] * the
// same.
template <typename scalar_t, typename acc_t, int kRun, int kTaps, int... kTurns>
__device__ void add_gradients(acc_t (&grads)[kRun], acc_t (&of_taps)[kTaps], const acc_t (&inputs)[kRun],
                              SlidingWindow<scalar_t, kRun>& window, const acc_t* weight, int taps,
                              std::integer_sequence<int, kTurns...>) {
  window.begin();
  const auto add_four = [&](auto turn) {
    constexpr int kTurn = decltype(turn)::value;
    if (4 * kTurn >= taps) return;
    window.template advance<kTurn>();
    const auto coefficients = *reinterpret_cast<const Quad<acc_t>*>(weight + 4 * kTurn);
    const auto add = [&](int count) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= count) break;
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          const acc_t sample = window.template sample<kTurn>(i + r);
          grads[r] += coefficients.v[i] * sample;
          of_taps[4 * kTurn + i] += inputs[r] * sample;
        }
      }
    };
    if (taps >= 4 * kTurn + 4) {
      add(4);
    } else {
      add(taps - 4 * kTurn);
    }
  };
  (add_four(std::integral_constant<int, kTurns>()), ...);
}

// A thread's part of a tap's sum over some tiles, without the zeros beyond the ends of grad_output: these meet inputs
// that did not go into any output by this tap, and zero times infinity is NaN.
template <typename scalar_t>
__device__ __noinline__ conv1d_acc_t<scalar_t> add_products(const Conv1dGradientTiles& p, int64_t channel,
                                                            uint32_t first_tile, uint32_t tiles, int tap) {
  using acc_t = conv1d_acc_t<scalar_t>;
  acc_t total = 0;
  for (uint32_t i = first_tile; i < min(first_tile + tiles, p.all_tiles); ++i) {
    const GradientWalk<scalar_t> tile(p, channel, i);
    const int first = tile.first(p);
    for (int j = first + threadIdx.x; j < first + p.tile_outputs; j += kGradientThreads) {
      const int output = j - p.padding + tap;
      if (!tile.input.has(j) || !tile.grad_output.has(output)) continue;
      total += convert<acc_t>(tile.input.at(j)) * convert<acc_t>(tile.grad_output.at(output));
    }
  }
  return total;
}

template <typename scalar_t, int kTaps>
__global__ void __launch_bounds__(kGradientThreads, kGradientMinBlocks<scalar_t, kTaps>)
    conv1d_gradients_kernel(const __grid_constant__ Conv1dGradientTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  constexpr bool kHalf = sizeof(scalar_t) == 2;
  constexpr int kRun = kGradientRun<scalar_t>, kWarps = kGradientThreads / 32;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ __align__(16) acc_t weight[kTaps];
  __shared__ acc_t of_warps[kTaps][kWarps];
  const int threads = 1 << p.threads_log2, thread = threadIdx.x & (threads - 1);
  const uint32_t group = threadIdx.x >> p.threads_log2, groups = kGradientThreads >> p.threads_log2;
  const uint32_t channel = blockIdx.x / p.pieces, piece = blockIdx.x - channel * p.pieces;
  scalar_t* const buffers = reinterpret_cast<scalar_t*>(shared) + group * 2 * p.tile_elems;

  GradientWalk<scalar_t> tile(p, channel, (piece * groups + group) * p.tiles_of_group);
  Run<scalar_t> next;
  const auto start = [&](int parity) {
    if (tile.left <= 0) return;
    const int first = tile.first(p);
    stage<kHalf>(buffers + parity * p.tile_elems, tile.grad_output, first - p.padding, p.staged_elems, thread, threads);
    next.load(tile.input, first + thread * kRun);
  };
  start(0);
  if (threadIdx.x < kTaps) {
    const auto* source = static_cast<const scalar_t*>(p.weight) + channel * int64_t{p.taps} + p.taps - 1;
    weight[threadIdx.x] = threadIdx.x < p.taps ? convert<acc_t>(__ldg(source - threadIdx.x)) : acc_t{0};
  }

  acc_t of_taps[kTaps] = {};
  for (int parity = 0, rest = p.tiles_of_group; rest > 0; parity ^= 1, --rest) {
    wait_for_copies();
    __syncthreads();  // the tile is there for all, and the one before it is no longer needed
    acc_t inputs[kRun];
#pragma unroll
    for (int r = 0; r < kRun; ++r) inputs[r] = convert<acc_t>(next.v[r]);
    const bool exists = tile.left > 0;
    const int first = tile.first(p);
    scalar_t* const grad_input = tile.grad_input;
    SlidingWindow<scalar_t, kRun> window{buffers + parity * p.tile_elems + thread * kRun,
                                         kHalf ? tile.grad_output.early(first - p.padding) : 0};
    tile.next(p);
    start(parity ^ 1);
    if (!exists) continue;
    acc_t grads[kRun] = {};
    add_gradients(grads, of_taps, inputs, window, weight, p.taps, std::make_integer_sequence<int, kTaps / 4>());
    if (p.grad_input != nullptr) store_outputs(grad_input, p.in_length, first + thread * kRun, grads);
  }

#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    if (i < p.taps) {
      const acc_t sum = sum_of_warp(of_taps[i]);
      if (threadIdx.x % 32 == 0) of_warps[i][threadIdx.x / 32] = sum;
    }
  }
  __syncthreads();
  const auto sum_of_warps = [&](int i) {
    acc_t total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += of_warps[i][warp];
    return total;
  };
  acc_t sum = threadIdx.x < p.taps ? sum_of_warps(threadIdx.x) : acc_t{0};
  for (int i = 0; i < p.taps; ++i) {
    if (isfinite(sum_of_warps(i))) continue;
    const uint32_t first_tile = piece * groups * p.tiles_of_group;
    const acc_t products = sum_of_warp(add_products<scalar_t>(p, channel, first_tile, groups * p.tiles_of_group, i));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[i][threadIdx.x / 32] = products;
    __syncthreads();
    if (threadIdx.x == i) sum = sum_of_warps(i);
  }
  if (threadIdx.x >= p.taps) return;
  const int64_t at = channel * int64_t{p.taps} + p.taps - 1 - threadIdx.x;
  if (p.pieces == 1) {
    static_cast<scalar_t*>(p.grad_weight)[at] = convert<scalar_t>(sum);
  } else {
    static_cast<acc_t*>(p.partials)[piece * (p.channels * p.taps) + at] = sum;
  }
}

// Adds the pieces' partials: one thread for each sum or, where pieces are many, a block.
template <typename scalar_t>
__global__ void __launch_bounds__(kFinishThreads)
    conv1d_finish_kernel(const void* partials, void* grad_weight, int64_t count, int pieces, bool by_block) {
  __shared__ double of_warps[kFinishThreads / 32];
  const auto* values = static_cast<const conv1d_acc_t<scalar_t>*>(partials);
  const auto store = [&](int64_t at, double sum) {
    static_cast<scalar_t*>(grad_weight)[at] = convert<scalar_t>(static_cast<conv1d_acc_t<scalar_t>>(sum));
  };
  double sum = 0;
  if (!by_block) {
    const int64_t at = int64_t{blockIdx.x} * kFinishThreads + threadIdx.x;
    if (at >= count) return;
    for (int piece = 0; piece < pieces; ++piece) sum += values[piece * count + at];
    store(at, sum);
    return;
  }
#pragma unroll 4
  for (int piece = threadIdx.x; piece < pieces; piece += kFinishThreads) sum += values[piece * count + blockIdx.x];
  sum = sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sum = 0;
  for (double of_warp : of_warps) sum += of_warp;
  store(blockIdx.x, sum);
}

}  // namespace cudamem
