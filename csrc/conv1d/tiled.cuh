// conv1d from tiles in shared memory.
//
// A block, or a part of one, brings a stretch of a signal to shared memory, each sample once, and each of its threads
// computes several outputs. In the tiled kernel these follow each other, and their window slides through registers:
// four new samples and four coefficients come, each with one 16-byte load, for four multiplications of each output. All
// threads ask for the same coefficients, which is one access. So neither loads nor shared memory limit it, but global
// memory up to about 50 taps in float32, and above that the rate of multiplications. In the spread kernel taps lie
// apart, or outputs do; each multiplication has its own load from shared memory.
//
// Traffic: input read once, output written once, (inputs + outputs) * element_bytes, and a window's overlap for each
//          tile, which the caches serve.
// Hazard:  coefficients are read where they lie when the kernel runs: any number of streams, threads and replayed
//          graphs may do so at once.
#pragma once

#include <utility>

#include "common/divisor.h"
#include "conv1d/policy.h"
#include "conv1d/staging.cuh"

namespace cudamem {

// What the kernels need to know of a problem and of how it is cut. Counts are those of a group.
struct Conv1dTiles {
  const void *input, *weight, *bias;
  void* output;
  int64_t in_length, out_length;
  int64_t batch_stride, channel_stride, length_stride;  // of the input, in elements
  int64_t padding;                                      // may be negative: the input is cut then
  int stride, dilation;
  int taps, channels, filters;
  int filter_stride, filter_channel_stride;  // of the weight; taps follow each other
  bool flipped;                              // the last tap comes first

  // Parts are numbered (batch, group, block of filters, tile), the last running fastest.
  uint32_t parts;
  Divisor tiles, filter_blocks, groups, divide_taps;
  int threads_log2;              // of a part
  int tile_outputs;              // of a part
  int staged_elems, tile_elems;  // of a channel: samples, and the room they take
  int padded_taps;               // a multiple of 4
  int part_elems;                // the room that a part takes, coefficients and samples
  bool aligned_rows;             // each row of outputs starts at a whole sector
};

// Where a thread stands.
template <typename scalar_t, int kFilters>
struct Conv1dPart {
  const Conv1dTiles& p;
  int thread, threads;
  bool exists;         // beyond the last part, threads only take part in barriers
  int64_t batch;
  int group, filter;   // the first filter in the group
  int64_t first;       // output; up to a sector before the row's start

  __device__ explicit Conv1dPart(const Conv1dTiles& p) : p(p) {
    threads = 1 << p.threads_log2;
    thread = threadIdx.x & (threads - 1);
    uint32_t index = blockIdx.x * (blockDim.x >> p.threads_log2) + (threadIdx.x >> p.threads_log2);
    exists = index < p.parts;
    if (!exists) index = 0;
    uint32_t tile = index;
    index = p.tiles.divide(tile);
    uint32_t block = index;
    index = p.filter_blocks.divide(block);
    uint32_t of_batch = index;
    batch = p.groups.divide(of_batch);
    group = of_batch;
    filter = block * kFilters;
    first = static_cast<int64_t>(tile) * p.tile_outputs;
    if (!p.aligned_rows) first -= misaligned_elems(output(0));
  }

  __device__ static int misaligned_elems(const scalar_t* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % kTileAlignBytes / sizeof(scalar_t);
  }
  __device__ int out_channel(int f) const { return group * p.filters + filter + f; }
  __device__ scalar_t* output(int f) const {
    const int64_t row = batch * (int64_t{p.groups.divisor} * p.filters) + out_channel(f);
    return static_cast<scalar_t*>(p.output) + row * p.out_length;
  }
  __device__ Row<scalar_t> input(int channel) const {
    const int64_t in_channel = int64_t{group} * p.channels + channel;
    return {static_cast<const scalar_t*>(p.input) + batch * p.batch_stride + in_channel * p.channel_stride,
            p.in_length, p.length_stride};
  }

  // Coefficient `index` of [channel][filter][tap], and its place in [channel][tap][filter]; 0 for filters past the last.
  __device__ conv1d_acc_t<scalar_t> coefficient(uint32_t index, int& at) const {
    uint32_t tap = index;
    const uint32_t pair = p.divide_taps.divide(tap);
    const int f = pair % kFilters, channel = pair / kFilters;
    at = (channel * p.padded_taps + tap) * kFilters + f;
    if (filter + f >= p.filters) return 0;
    const int64_t base = int64_t{group} * p.filters * p.channels * p.taps;
    const int offset = (filter + f) * p.filter_stride + channel * p.filter_channel_stride;
    const scalar_t* weight = static_cast<const scalar_t*>(p.weight) + base + offset;
    return convert<conv1d_acc_t<scalar_t>>(__ldg(weight + (p.flipped ? p.taps - 1 - tap : tap)));
  }

  // Brings coefficients and samples of all channels to shared memory.
  template <int kRun, int kBatch>
  __device__ void stage_all(conv1d_acc_t<scalar_t>* taps, conv1d_acc_t<scalar_t>* tile) const {
    if (!exists) return;
    const uint32_t count = p.channels * kFilters * p.taps;
    int first_at = 0;  // a thread's first coefficient is under way while it fetches samples
    conv1d_acc_t<scalar_t> mine = 0;
    if (thread < count) mine = coefficient(thread, first_at);
    for (int channel = 0; channel < p.channels; ++channel) {
      stage<kRun, kBatch>(tile + channel * p.tile_elems, input(channel), first * p.stride - p.padding, p.staged_elems,
                          thread, threads);
    }
    if (thread < count) taps[first_at] = mine;
    for (uint32_t i = thread + threads; i < count; i += threads) {
      int at;
      const auto value = coefficient(i, at);
      taps[at] = value;
    }
  }
};

// sums[f][r] += coefficient[tap][f] * samples[r + tap] for all taps.
template <int kOutputs, int kFilters, typename acc_t>
struct SlidingWindow {
  static constexpr int kQuads = kOutputs / 4 + 1;
  const acc_t *samples, *coefficients;
  int taps, tap = 0;
  Quad<acc_t> window[kQuads];

  __device__ void load(int quad, Quad<acc_t>& to) const {
    to = *reinterpret_cast<const Quad<acc_t>*>(samples + place<kOutputs>(4 * quad));
  }

  // Four taps. The window's quads take turns as its first one, so that none is ever moved. False after the last tap.
  template <int kTurn>
  __device__ bool add_four(acc_t (&sums)[kFilters][kOutputs]) {
    if (tap >= taps) return false;
    load(tap / 4 + kQuads - 1, window[(kTurn + kQuads - 1) % kQuads]);
    Quad<acc_t> of_taps[kFilters];
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      of_taps[f] = *reinterpret_cast<const Quad<acc_t>*>(coefficients + tap * kFilters + 4 * f);
    }
    const auto add = [&](int i) {
#pragma unroll
      for (int f = 0; f < kFilters; ++f) {
        const acc_t coefficient = of_taps[(i * kFilters + f) / 4].v[(i * kFilters + f) % 4];
#pragma unroll
        for (int r = 0; r < kOutputs; ++r) {
          sums[f][r] += coefficient * window[(kTurn + (i + r) / 4) % kQuads].v[(i + r) % 4];
        }
      }
    };
    const int left = taps - tap;
    tap += 4;
    add(0);
    if (left >= 4) {
      add(1);
      add(2);
      add(3);
      return true;
    }
    if (left > 1) add(1);
    if (left > 2) add(2);
    return false;
  }

  template <int... kTurns>
  __device__ void add_all(acc_t (&sums)[kFilters][kOutputs], std::integer_sequence<int, kTurns...>) {
    while ((add_four<kTurns>(sums) && ...)) {
    }
  }

  __device__ void add_all(acc_t (&sums)[kFilters][kOutputs]) {
#pragma unroll
    for (int quad = 0; quad < kQuads - 1; ++quad) load(quad, window[quad]);
    add_all(sums, std::make_integer_sequence<int, kQuads>());
  }
};

template <typename scalar_t, int kOutputs, typename acc_t>
__device__ void store_outputs(scalar_t* row, int64_t row_length, int64_t position, const acc_t (&sums)[kOutputs]) {
  constexpr int kBytes = kOutputs * sizeof(scalar_t) < 16 ? kOutputs * sizeof(scalar_t) : 16;
  constexpr int kElems = kBytes / sizeof(scalar_t);
  struct alignas(kBytes) Vector {
    scalar_t v[kElems];
  };
  const bool aligned = reinterpret_cast<uintptr_t>(row + position) % kBytes == 0;
  if (aligned && position >= 0 && position + kOutputs <= row_length) {
#pragma unroll
    for (int i = 0; i < kOutputs; i += kElems) {
      Vector vector;
#pragma unroll
      for (int j = 0; j < kElems; ++j) vector.v[j] = convert<scalar_t>(sums[i + j]);
      *reinterpret_cast<Vector*>(row + position + i) = vector;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      if (position + i >= 0 && position + i < row_length) row[position + i] = convert<scalar_t>(sums[i]);
    }
  }
}

template <typename scalar_t, int kOutputs, int kFilters>
__global__ void __launch_bounds__(kTileThreads, kTiledMinBlocks<scalar_t, kOutputs, kFilters>)
    conv1d_tiled_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  extern __shared__ __align__(16) unsigned char shared[];
  const Conv1dPart<scalar_t, kFilters> part(p);
  acc_t* const taps = reinterpret_cast<acc_t*>(shared) + (threadIdx.x >> p.threads_log2) * p.part_elems;
  acc_t* const tile = taps + p.channels * p.padded_taps * kFilters;
  part.template stage_all<kOutputs, kOutputs / kVectorElems<scalar_t> + 1>(taps, tile);
  __syncthreads();

  acc_t sums[kFilters][kOutputs];
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    const bool has_bias = p.bias != nullptr && part.filter + f < p.filters;
    const acc_t bias =
        has_bias ? convert<acc_t>(__ldg(static_cast<const scalar_t*>(p.bias) + part.out_channel(f))) : acc_t{0};
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) sums[f][r] = bias;
  }
  const int own = part.thread * kOutputs;
  for (int channel = 0; channel < p.channels; ++channel) {
    SlidingWindow<kOutputs, kFilters, acc_t>{tile + channel * p.tile_elems + place<kOutputs>(own),
                                             taps + channel * p.padded_taps * kFilters, p.taps}
        .add_all(sums);
  }

  if constexpr (kFilters == 1 && kOutputs * sizeof(scalar_t) > 16) {
    // A thread's outputs are several vectors: through shared memory, a warp's stores follow each other.
    constexpr int kElems = kVectorElems<scalar_t>;
    __syncthreads();
    auto* outputs = reinterpret_cast<scalar_t*>(tile);
    struct alignas(16) Vector {
      scalar_t v[kElems];
    };
#pragma unroll
    for (int r = 0; r < kOutputs; r += kElems) {
      Vector vector;
#pragma unroll
      for (int j = 0; j < kElems; ++j) vector.v[j] = convert<scalar_t>(sums[0][r + j]);
      *reinterpret_cast<Vector*>(outputs + place<kOutputs>(own + r)) = vector;
    }
    __syncthreads();
    if (!part.exists) return;
#pragma unroll
    for (int r = 0; r < kOutputs; r += kElems) {
      const int at = r * part.threads + part.thread * kElems;
      const auto vector = *reinterpret_cast<const Vector*>(outputs + place<kOutputs>(at));
      store_outputs(part.output(0), p.out_length, part.first + at, vector.v);
    }
  } else {
    if (!part.exists) return;
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      if (part.filter + f < p.filters) store_outputs(part.output(f), p.out_length, part.first + own, sums[f]);
    }
  }
}

// A thread's outputs lie a part's threads apart, so that a warp reads and writes neighbours.
template <typename scalar_t>
__global__ void __launch_bounds__(kTileThreads, kSpreadMinBlocks<scalar_t>)
    conv1d_spread_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  extern __shared__ __align__(16) unsigned char shared[];
  const Conv1dPart<scalar_t, 1> part(p);
  acc_t* const taps = reinterpret_cast<acc_t*>(shared) + (threadIdx.x >> p.threads_log2) * p.part_elems;
  acc_t* const tile = taps + p.channels * p.padded_taps;
  part.template stage_all<1, 2>(taps, tile);
  __syncthreads();
  if (!part.exists) return;

  const acc_t bias =
      p.bias == nullptr ? acc_t{0} : convert<acc_t>(static_cast<const scalar_t*>(p.bias)[part.out_channel(0)]);
  acc_t sums[kSpreadOutputs];
#pragma unroll
  for (int r = 0; r < kSpreadOutputs; ++r) sums[r] = bias;
  for (int channel = 0; channel < p.channels; ++channel) {
    const acc_t* samples = tile + channel * p.tile_elems + part.thread * p.stride;
    const acc_t* coefficients = taps + channel * p.padded_taps;
#pragma unroll 2
    for (int tap = 0; tap < p.taps; ++tap, samples += p.dilation) {
      const acc_t coefficient = coefficients[tap];
#pragma unroll
      for (int r = 0; r < kSpreadOutputs; ++r) sums[r] += coefficient * samples[r * part.threads * p.stride];
    }
  }
#pragma unroll
  for (int r = 0; r < kSpreadOutputs; ++r) {
    const int64_t position = part.first + part.thread + r * part.threads;
    if (position >= 0 && position < p.out_length) part.output(0)[position] = convert<scalar_t>(sums[r]);
  }
}

}  // namespace cudamem
