// conv1d from tiles in shared memory.
//
// A warp brings a stretch of a signal to shared memory, each sample once, and each of its threads computes several
// outputs. In the tiled kernel these follow each other, and their window slides through registers: four new samples and
// four coefficients come, each with one 16-byte load, for four multiplications of each output. All threads ask for the
// same coefficients, which is one access. So neither loads nor shared memory limit it, but global memory up to about 20
// taps in float32, and above that the rate of multiplications. In the spread kernel taps lie apart, or outputs do; each
// multiplication has its own load from shared memory. No warp waits for another one.
//
// Traffic: input read once, output written once, (inputs + outputs) * element_bytes, and a window's overlap for each
//          stretch, which the caches serve.
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
  int in_length, out_length;
  int64_t batch_stride, group_stride, channel_stride, length_stride;  // of the input, in elements
  int stride, dilation, padding;                                      // negative padding: the input is cut
  int taps, channels, filters;
  int group_weights, filter_stride, filter_channel_stride;  // of the weight; taps follow each other
  bool flipped;                                             // the last tap comes first

  // A tile is what a warp computes: the outputs of a stretch by one filter, or by kManyFilters. Tiles are numbered
  // (batch, group, block of filters, stretch), the last running fastest, so that warps which run together work on
  // neighbours.
  uint32_t all_tiles;
  Divisor tiles, filter_blocks, groups, divide_taps;
  int tile_outputs;
  int staged_elems, tile_elems;               // of a channel: samples, and the room they take
  bool stages_all;                            // of these samples, beyond those that the row's outputs need
  int padded_taps;                            // a multiple of 4
  int taps_bytes, samples_bytes, warp_bytes;  // in shared memory: coefficients, samples, and with what else is needed
};

// A warp's tile. Its first output may lie before the row's start: so far that outputs begin at a multiple of
// kOutputBytes; with 0, that samples begin at a 16-byte boundary.
template <typename scalar_t, int kFilters, int kOutputBytes>
struct Conv1dTile {
  using acc_t = conv1d_acc_t<scalar_t>;
  const Conv1dTiles& p;
  const int lane;
  bool exists = false;
  int group, filter;  // the first filter in the group
  int first;          // output
  Row<scalar_t> row;  // of the group's first channel
  scalar_t* output;   // row of the first filter
  acc_t* taps;        // in shared memory: [channel][padded tap][filter]
  scalar_t* samples;  // [channel][staged]
  scalar_t* beyond;   // what else the kernel needs

  __device__ Conv1dTile(const Conv1dTiles& p, unsigned char* shared) : p(p), lane(threadIdx.x % 32) {
    const uint32_t warp = threadIdx.x / 32;
    uint32_t stretch = blockIdx.x * kTileWarps + warp;
    if (stretch >= p.all_tiles) return;
    uint32_t row_of_outputs = p.tiles.divide(stretch), block = row_of_outputs;
    uint32_t in_batch = p.filter_blocks.divide(block);
    const uint32_t batch = p.groups.divide(in_batch);
    group = in_batch;
    filter = block * kFilters;
    row = {static_cast<const scalar_t*>(p.input) + batch * p.batch_stride + group * p.group_stride, p.in_length,
           p.length_stride};
    const int64_t out_row = int64_t{batch * p.groups.divisor + group} * p.filters + filter;
    output = static_cast<scalar_t*>(p.output) + out_row * p.out_length;
    first = static_cast<int>(stretch) * p.tile_outputs;
    if constexpr (kOutputBytes > 0) {
      first -= static_cast<int>(reinterpret_cast<uintptr_t>(output) % kOutputBytes / sizeof(scalar_t));
    } else {
      first -= row.misaligned(-p.padding);
    }
    exists = first < p.out_length;
    shared += warp * p.warp_bytes;
    taps = reinterpret_cast<acc_t*>(shared);
    samples = reinterpret_cast<scalar_t*>(shared + p.taps_bytes);
    beyond = reinterpret_cast<scalar_t*>(shared + p.taps_bytes + p.samples_bytes);
  }

  __device__ int first_input() const { return first * p.stride - p.padding; }
  __device__ acc_t bias(int f) const {
    const bool has = p.bias != nullptr && filter + f < p.filters;
    const auto* bias = static_cast<const scalar_t*>(p.bias) + (int64_t{group} * p.filters + filter + f);
    return has ? convert<acc_t>(__ldg(bias)) : acc_t{0};
  }

  // Coefficient `index` of [channel][filter][tap], and its place; 0 for filters past the last.
  __device__ scalar_t coefficient(uint32_t index, int& at) const {
    uint32_t tap = index;
    const uint32_t pair = p.divide_taps.divide(tap);
    const int f = pair % kFilters, channel = pair / kFilters;
    at = (channel * p.padded_taps + tap) * kFilters + f;
    if (filter + f >= p.filters) return convert<scalar_t>(0.0f);
    const int offset = (filter + f) * p.filter_stride + channel * p.filter_channel_stride;
    const scalar_t* weight = static_cast<const scalar_t*>(p.weight) + group * static_cast<int64_t>(p.group_weights);
    return __ldg(weight + offset + (p.flipped ? p.taps - 1 - tap : tap));
  }

  // Brings samples and coefficients to shared memory, for this warp. kLoads: 16-byte loads of a thread at once.
  template <bool kFromBoundary, int kLoads>
  __device__ void stage() const {
    const uint32_t count = p.channels * kFilters * p.taps;
    int at = 0;
    scalar_t mine = convert<scalar_t>(0.0f);  // the first coefficient is under way beside the samples
    if (lane < count) mine = coefficient(lane, at);

    const int needed = (p.out_length - 1 - first) * p.stride + (p.taps - 1) * p.dilation + 1;
    const int staged = p.stages_all ? p.staged_elems : min(needed, p.staged_elems);
    Row<scalar_t> of_channel = row;
    scalar_t* target = samples;
    int channel = p.channels;
    do {
      stage_by_warp<kFromBoundary, kLoads>(target, of_channel, first_input(), staged, lane);
      of_channel.data += p.channel_stride;
      target += p.tile_elems;
    } while (--channel > 0);

    if (lane < count) taps[at] = convert<acc_t>(mine);
    for (uint32_t i = lane + 32; i < count; i += 32) {
      const scalar_t value = coefficient(i, at);
      taps[at] = convert<acc_t>(value);
    }
    __syncwarp();
  }
};

// Four numbers that lie together.
template <typename acc_t>
struct alignas(16) Quad {
  acc_t v[4];
};

// The samples of a thread's outputs, in registers.
template <typename scalar_t, int kOutputs>
struct SlidingWindow {
  using acc_t = conv1d_acc_t<scalar_t>;
  static constexpr bool kHalf = sizeof(scalar_t) == 2;  // whose samples come by eight
  // The names of the window's quads, of which kOutputs / 4 + 1 are in use at a time.
  static constexpr int kQuads = kHalf ? 4 : kOutputs / 4 + 1;
  static_assert(!kHalf || kOutputs == 8);

  const scalar_t* samples;
  int early;   // of halves: elements before the first sample, in its vector
  uint4 last;  // vector of halves
  Quad<acc_t> window[kQuads];

  // The quad of samples at 4 * kQuad; of halves, two quads.
  template <int kQuad>
  __device__ void load() {
    if constexpr (kHalf) {
      const uint4* vectors = reinterpret_cast<const uint4*>(samples) + kQuad / 2;
      uint4 value;
      if (early == 0) {
        value = *vectors;
      } else {
        if (kQuad == 0) last = *vectors;
        const uint4 upper = vectors[1];
        value = bytes_of_two(last, upper, early * sizeof(scalar_t));
        last = upper;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        window[(kQuad + i / 4) % kQuads].v[i % 4] = convert<acc_t>(reinterpret_cast<const scalar_t*>(&value)[i]);
      }
    } else {
      window[kQuad % kQuads] = *reinterpret_cast<const Quad<acc_t>*>(samples + 4 * kQuad);
    }
  }
  // The samples of the first tap.
  __device__ void begin() { begin(std::make_integer_sequence<int, kHalf ? 1 : kOutputs / 4>()); }
  template <int... kFirst>
  __device__ void begin(std::integer_sequence<int, kFirst...>) {
    (load<kFirst>(), ...);
  }
  // Those of taps 4 * kTurn and on, four of them. The quads take turns as the window's first one: none is ever moved.
  template <int kTurn>
  __device__ void advance() {
    if constexpr (!kHalf || kTurn % 2 == 0) load<kTurn + kOutputs / 4>();
  }
  template <int kTurn>
  __device__ acc_t sample(int i) const {
    return window[(kTurn + i / 4) % kQuads].v[i % 4];
  }
};

// sums[f][r] += coefficient[tap][f] * sample[r + tap], for the first `count` of four taps from 4 * kTurn on.
template <int kTurn, typename scalar_t, int kOutputs, int kFilters, typename acc_t>
__device__ void add_four_taps(acc_t (&sums)[kFilters][kOutputs], SlidingWindow<scalar_t, kOutputs>& window,
                              const acc_t* coefficients, int count) {
  window.template advance<kTurn>();
  Quad<acc_t> of_taps[kFilters];
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    of_taps[f] = *reinterpret_cast<const Quad<acc_t>*>(coefficients + 4 * kTurn * kFilters + 4 * f);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= count) break;
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      const acc_t coefficient = of_taps[(i * kFilters + f) / 4].v[(i * kFilters + f) % 4];
#pragma unroll
      for (int r = 0; r < kOutputs; ++r) sums[f][r] += coefficient * window.template sample<kTurn>(i + r);
    }
  }
}

template <typename scalar_t, int kOutputs, int kFilters, typename acc_t, int... kTurns>
__device__ void add_taps(acc_t (&sums)[kFilters][kOutputs], SlidingWindow<scalar_t, kOutputs>& window,
                         const acc_t* coefficients, int taps, std::integer_sequence<int, kTurns...>) {
  constexpr int kRound = 4 * sizeof...(kTurns);
  window.begin();
  for (; taps >= kRound; taps -= kRound) {
    (add_four_taps<kTurns>(sums, window, coefficients, 4), ...);
    window.samples += kRound;
    coefficients += kRound * kFilters;
  }
  const auto add_rest = [&](auto turn) {
    constexpr int kTurn = decltype(turn)::value;
    const bool whole = taps >= 4 * kTurn + 4;
    if (whole) {
      add_four_taps<kTurn>(sums, window, coefficients, 4);
    } else if (taps > 4 * kTurn) {
      add_four_taps<kTurn>(sums, window, coefficients, taps - 4 * kTurn);
    }
    return whole;
  };
  (add_rest(std::integral_constant<int, kTurns>()) && ...);
}

// A run of outputs, as whole vectors where it lies within the row.
template <typename scalar_t, int kOutputs, typename acc_t>
__device__ void store_outputs(scalar_t* row, int row_length, int position, const acc_t (&sums)[kOutputs]) {
  constexpr int kBytes = kOutputs * sizeof(scalar_t) < 16 ? kOutputs * sizeof(scalar_t) : 16;
  constexpr int kElems = kBytes / sizeof(scalar_t);
  struct alignas(kBytes) Vector {
    scalar_t v[kElems];
  };
  scalar_t* const target = row + position;
  const bool aligned = reinterpret_cast<uintptr_t>(target) % kBytes == 0;
  if (aligned && position >= 0 && position <= row_length - kOutputs) {
#pragma unroll
    for (int i = 0; i < kOutputs; i += kElems) {
      Vector vector;
#pragma unroll
      for (int j = 0; j < kElems; ++j) vector.v[j] = convert<scalar_t>(sums[i + j]);
      *reinterpret_cast<Vector*>(target + i) = vector;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      if (position + i >= 0 && position + i < row_length) target[i] = convert<scalar_t>(sums[i]);
    }
  }
}

// The outputs of a warp, kOutputs of each lane, change places through shared memory, so that stores follow each other:
// whole vectors, wherever the first output lies. `outputs` is room for them, of this warp alone.
template <typename scalar_t, int kOutputs>
__device__ void store_exchanged(scalar_t* row, int row_length, int first, const scalar_t (&sums)[kOutputs],
                                scalar_t* outputs) {
  constexpr int kElems = kVectorElems<scalar_t>, kAll = 32 * kOutputs;
  struct alignas(16) Vector {
    scalar_t v[kElems];
  };
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kOutputs; r += kElems) {
    Vector vector;
#pragma unroll
    for (int j = 0; j < kElems; ++j) vector.v[j] = sums[r + j];
    *reinterpret_cast<Vector*>(outputs + lane * kOutputs + r) = vector;
  }
  __syncwarp();
  scalar_t* const target = row + first;
  const int off = (0 - static_cast<int>(reinterpret_cast<uintptr_t>(target) / sizeof(scalar_t))) & (kElems - 1);
  if (off == 0 && first >= 0 && first <= row_length - kAll) {
#pragma unroll
    for (int i = lane * kElems; i < kAll; i += 32 * kElems) {
      *reinterpret_cast<Vector*>(target + i) = *reinterpret_cast<const Vector*>(outputs + i);
    }
    return;
  }
  // The outputs [begin, end) lie within the row, [low, high) of them in whole vectors.
  const int begin = max(-first, 0), end = min(row_length - first, kAll);
  const int low = begin + ((off - begin) & (kElems - 1)), high = end - ((end - off) & (kElems - 1));
#pragma unroll
  for (int r = 0; r < kAll; r += 32 * kElems) {
    const int i = off + r + lane * kElems;
    if (i >= low && i < high) {
      Vector vector;
#pragma unroll
      for (int j = 0; j < kElems; ++j) vector.v[j] = outputs[i + j];
      *reinterpret_cast<Vector*>(target + i) = vector;
    }
  }
  const int before = begin + lane, after = max(high, low) + lane;
  if (before < min(low, end)) target[before] = outputs[before];
  if (after < end) target[after] = outputs[after];
}

template <typename scalar_t, int kOutputs, int kFilters>
__global__ void __launch_bounds__(32 * kTileWarps, kTiledMinBlocks<scalar_t, kOutputs, kFilters>)
    conv1d_tiled_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  using Window = SlidingWindow<scalar_t, kOutputs>;
  constexpr bool kHalf = sizeof(scalar_t) == 2;
  extern __shared__ __align__(16) unsigned char shared[];
  const Conv1dTile<scalar_t, kFilters, kHalf ? kTileAlignBytes : 0> tile(p, shared);
  if (!tile.exists) return;
  tile.template stage<kHalf, kOutputs / kVectorElems<scalar_t> + 1>();

  acc_t sums[kFilters][kOutputs];
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    const acc_t bias = tile.bias(f);
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) sums[f][r] = bias;
  }
  Row<scalar_t> row = tile.row;
  const acc_t* taps = tile.taps;
  const scalar_t* samples = tile.samples + tile.lane * kOutputs;
  int channel = p.channels;
  do {
    Window window{samples, kHalf ? row.early(tile.first_input()) : 0};
    add_taps(sums, window, taps, p.taps, std::make_integer_sequence<int, Window::kQuads>());
    row.data += p.channel_stride;
    samples += p.tile_elems;
    taps += p.padded_taps * kFilters;
  } while (--channel > 0);

  if constexpr (kFilters == 1 && !kHalf) {
    store_exchanged(tile.output, p.out_length, tile.first, sums[0], tile.samples);
  } else {
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      if (tile.filter + f < p.filters) {
        store_outputs(tile.output + f * int64_t{p.out_length}, p.out_length, tile.first + tile.lane * kOutputs,
                      sums[f]);
      }
    }
  }
}

// A thread's outputs lie a warp apart, so that neighbours read and write neighbours.
template <typename scalar_t>
__global__ void __launch_bounds__(32 * kTileWarps, kSpreadMinBlocks<scalar_t>)
    conv1d_spread_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  extern __shared__ __align__(16) unsigned char shared[];
  const Conv1dTile<scalar_t, 1, kTileAlignBytes> tile(p, shared);
  if (!tile.exists) return;
  tile.template stage<true, kSpreadOutputs / kVectorElems<scalar_t> + 1>();

  acc_t sums[kSpreadOutputs];
  const acc_t bias = tile.bias(0);
#pragma unroll
  for (int r = 0; r < kSpreadOutputs; ++r) sums[r] = bias;
  const int apart = 32 * p.stride;
  Row<scalar_t> row = tile.row;
  const acc_t* taps = tile.taps;
  const scalar_t* samples_of_thread = tile.samples + tile.lane * p.stride;
  int channel = p.channels;
  do {
    const scalar_t* samples = samples_of_thread + row.early(tile.first_input());
#pragma unroll 2
    for (int tap = 0; tap < p.taps; ++tap, samples += p.dilation) {
      const acc_t coefficient = taps[tap];
#pragma unroll
      for (int r = 0; r < kSpreadOutputs; ++r) sums[r] += coefficient * convert<acc_t>(samples[r * apart]);
    }
    row.data += p.channel_stride;
    samples_of_thread += p.tile_elems;
    taps += p.padded_taps;
  } while (--channel > 0);
  int position = tile.first + tile.lane;
  scalar_t* target = tile.output + position;
#pragma unroll
  for (int r = 0; r < kSpreadOutputs; ++r, position += 32, target += 32) {
    if (position >= 0 && position < p.out_length) *target = convert<scalar_t>(sums[r]);
  }
}

}  // namespace cudamem
