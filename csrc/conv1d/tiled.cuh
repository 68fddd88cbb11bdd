// conv1d from tiles in shared memory.
//
// A warp brings a stretch of a signal to shared memory, each sample once, and each of its threads computes several
// outputs. In the tiled kernel these follow each other, and their window slides through registers: four new samples and
// four coefficients come, each with one 16-byte load, for four multiplications of each output. All threads ask for the
// same coefficients, which is one access. So neither loads nor shared memory limit it, but global memory up to about 20
// taps in float32 (32 in unrolled.cuh), and above that the rate of multiplications. In the spread kernel taps lie
// apart, or outputs do; each multiplication has its own load from shared memory. No warp waits for another one.
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
//
// A tile is what a warp computes: the outputs of a stretch by one filter, or by kManyFilters. Tiles are numbered
// (batch, group, block of filters, stretch), the last running fastest, so that warps which run together work on
// neighbours.
struct Conv1dTiles {
  // What every kernel needs comes first: DividedDims says why.
  const void *input, *weight, *bias;
  void* output;
  int64_t batch_stride, group_stride;  // of the input, in elements
  int in_length, out_length;
  int padding;  // negative: the input is cut
  int taps;
  int first_tap, tap_step;  // 0 and 1, or in reverse order
  uint32_t all_tiles;
  int tile_outputs;
  int taps_bytes, warp_bytes;  // in shared memory: coefficients, and with the samples
  Divisor tiles, groups;

  int64_t channel_stride, length_stride;  // of the input, in elements
  int stride, dilation;
  int channels, filters;
  int group_weights, filter_stride, filter_channel_stride;  // of the weight
  Divisor filter_blocks, divide_taps;
  int staged_elems, tile_elems;  // of a channel: samples, and the room they take
  int taps_room;                 // of a filter and a channel: a multiple of 4
  uint32_t rows;                 // short ones of a warp
  Divisor lanes;                 // of each of them
};

// Which stretch of all is that of a thread's warp: from all_tiles on, none.
__device__ inline uint32_t stretch_of(uint32_t thread) { return blockIdx.x * kTileWarps + thread / 32; }

// Where a tile's coefficients begin: each channel's at its `early`, or, if not negative, after so many zeros.
constexpr int kTapsAtEarly = -1;

// A warp's tile. Its outputs begin at a multiple of kAlignBytes, and may so lie before the row's start. Its samples
// begin at a multiple of 16 bytes, `early` of them before the first output's first one. kOneChannel: in a group.
// kPlain: so is one filter, and samples lie side by side.
template <typename scalar_t, int kFilters, bool kOneChannel, int kAlignBytes = kTileAlignBytes, bool kPlain = false>
struct Conv1dTile {
  using acc_t = conv1d_acc_t<scalar_t>;
  const Conv1dTiles& p;
  const int lane;
  bool exists;
  uint32_t group, filter;  // the first filter in the group
  int first;               // output
  int first_input, early;  // early: of the group's first channel
  Row<scalar_t> row;       // the same
  scalar_t* output;        // row of the first filter
  acc_t* taps;             // in shared memory: [channel][tap][filter]
  scalar_t* samples;       // [channel][sample]

  __device__ Conv1dTile(const Conv1dTiles& p, unsigned char* shared, uint32_t stretch)
      : p(p), lane(opaque(static_cast<int>(threadIdx.x % 32))) {
    uint32_t in_batch = p.tiles.divide(stretch), block = 0;
    uint64_t out_row = in_batch;
    if constexpr (!kPlain) {
      block = in_batch;
      in_batch = p.filter_blocks.divide(block);
    }
    if constexpr (kFilters > 1) out_row = in_batch * uint64_t(p.filters) + block * kFilters;
    const uint32_t batch = p.groups.divide(in_batch);
    group = in_batch;
    filter = block * kFilters;
    output = static_cast<scalar_t*>(p.output) + out_row * p.out_length;
    first = static_cast<int>(stretch * p.tile_outputs) -
            static_cast<int>(reinterpret_cast<uintptr_t>(output) % kAlignBytes / sizeof(scalar_t));
    exists = first < p.out_length;
    row = {static_cast<const scalar_t*>(p.input) + batch * p.batch_stride + group * p.group_stride, p.in_length,
           kPlain ? 1 : p.length_stride};
    first_input = (kPlain ? first : first * p.stride) - p.padding;
    early = row.early(first_input);
    shared += threadIdx.x / 32 * p.warp_bytes;
    taps = reinterpret_cast<acc_t*>(shared);
    samples = reinterpret_cast<scalar_t*>(shared + p.taps_bytes);
  }

  // The first filter's place among all groups'.
  __device__ uint32_t filter_row() const { return kPlain ? group : group * p.filters + filter; }

  __device__ acc_t bias(int f) const {
    const bool has = p.bias != nullptr && (kFilters == 1 || filter + f < p.filters);
    return has ? convert<acc_t>(__ldg(static_cast<const scalar_t*>(p.bias) + (filter_row() + f))) : acc_t{0};
  }

  // Coefficient `index` of [channel][filter][tap], 0 for filters past the last, and its place.
  __device__ scalar_t coefficient(uint32_t index, int taps_before, int& at) const {
    const auto* weight = static_cast<const scalar_t*>(p.weight);
    if constexpr (kOneChannel && kFilters == 1) {
      at = (taps_before >= 0 ? taps_before : early) + index;
      return __ldg(weight + (filter_row() * p.taps + p.first_tap + index * p.tap_step));
    }
    uint32_t tap = index;
    const uint32_t pair = p.divide_taps.divide(tap);
    const uint32_t f = pair % kFilters, channel = pair / kFilters;
    const Row<scalar_t> of_channel{row.data + channel * p.channel_stride, row.size, row.stride};
    at = (channel * p.taps_room + of_channel.early(first_input) + tap) * kFilters + f;
    if (filter + f >= p.filters) return convert<scalar_t>(0.0f);
    return __ldg(weight + (group * p.group_weights + (filter + f) * p.filter_stride +
                           channel * p.filter_channel_stride + p.first_tap + tap * p.tap_step));
  }

  // Calls function(samples, taps, early) for each of the group's channels.
  template <typename Function>
  __device__ void for_each_channel(Function function) const {
    if constexpr (kOneChannel) {
      function(samples, taps, early);
    } else {
      Row<scalar_t> of_channel = row;
      for (int channel = 0; channel < p.channels; ++channel) {
        function(samples + channel * p.tile_elems, taps + channel * (p.taps_room * kFilters),
                 of_channel.early(first_input));
        of_channel.data += p.channel_stride;
      }
    }
  }

  // Brings samples and coefficients to shared memory, for this warp. kLoads: 16-byte loads of a thread at once.
  // kTapsBefore: where there are zeros before the first tap, there are some after the last one too. kCount: samples,
  // where the compiler knows their number; then a lane has one coefficient at most.
  template <int kLoads, int kTapsBefore = kTapsAtEarly, typename Place = InOrder, int kCount = 0>
  __device__ void stage() const {
    const uint32_t count = kOneChannel ? p.taps : p.channels * kFilters * p.taps;
    int at = 0;
    scalar_t mine = convert<scalar_t>(0.0f);  // the first coefficient is under way beside the samples
    if (lane < count) mine = coefficient(lane, kTapsBefore, at);
    if constexpr (kTapsBefore > 0) {
#pragma unroll 1
      for (int i = lane; i < p.taps_room; i += 32) taps[i] = 0;
    }
    Row<scalar_t> of_channel = row;
    for_each_channel([&](scalar_t* target, acc_t*, int early) {
      stage_by_warp<kLoads, Place, kCount>(target, of_channel, first_input - early,
                                           kCount > 0 ? kCount : p.staged_elems, lane);
      of_channel.data += p.channel_stride;
    });
    if constexpr (kTapsBefore > 0) __syncwarp();
    if (lane < count) taps[at] = convert<acc_t>(mine);
    if constexpr (kCount == 0) {
#pragma unroll 1
      for (uint32_t i = lane + 32; i < count; i += 32) {
        const scalar_t value = coefficient(i, kTapsBefore, at);
        taps[at] = convert<acc_t>(value);
      }
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

// sums[f][r] += coefficient[tap][f] * sample[r + tap], for those of four taps from 4 * kTurn on that lie in [begin,
// end).
template <int kTurn, typename scalar_t, int kOutputs, int kFilters, typename acc_t>
__device__ void add_four_taps(acc_t (&sums)[kFilters][kOutputs], SlidingWindow<scalar_t, kOutputs>& window,
                              const acc_t* coefficients, int begin, int end) {
  window.template advance<kTurn>();
  Quad<acc_t> of_taps[kFilters];
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    of_taps[f] = *reinterpret_cast<const Quad<acc_t>*>(coefficients + 4 * kTurn * kFilters + 4 * f);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < begin) continue;
    if (i > 0 && i >= end) break;
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      const acc_t coefficient = of_taps[(i * kFilters + f) / 4].v[(i * kFilters + f) % 4];
#pragma unroll
      for (int r = 0; r < kOutputs; ++r) sums[f][r] += coefficient * window.template sample<kTurn>(i + r);
    }
  }
}

// The taps [begin, end). begin: less than a 16-byte vector's elements.
template <typename scalar_t, int kOutputs, int kFilters, typename acc_t, int... kTurns>
__device__ void add_taps(acc_t (&sums)[kFilters][kOutputs], SlidingWindow<scalar_t, kOutputs>& window,
                         const acc_t* coefficients, int begin, int end, std::integer_sequence<int, kTurns...>) {
  constexpr int kRound = 4 * sizeof...(kTurns);
  const auto begin_in = [&](int turn) { return 4 * turn < kVectorElems<scalar_t> ? begin - 4 * turn : 0; };
  window.begin();
  for (; end >= kRound; end -= kRound, begin = 0) {
    (add_four_taps<kTurns>(sums, window, coefficients, begin_in(kTurns), 4), ...);
    window.samples += kRound;
    coefficients += kRound * kFilters;
  }
  const auto add_rest = [&](auto turn) {
    constexpr int kTurn = decltype(turn)::value;
    const bool whole = end >= 4 * kTurn + 4;
    if (whole) {
      add_four_taps<kTurn>(sums, window, coefficients, begin_in(kTurn), 4);
    } else if (end > 4 * kTurn) {
      add_four_taps<kTurn>(sums, window, coefficients, begin_in(kTurn), end - 4 * kTurn);
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

// The 16 bytes from element kShift of `elems` on, which lies at a boundary itself.
template <int kShift, typename scalar_t>
__device__ uint4 shifted_vector(const scalar_t* elems) {
  if constexpr (kShift == 0) return *reinterpret_cast<const uint4*>(elems);
  const auto* words = reinterpret_cast<const uint32_t*>(elems);
  if constexpr (kShift % 2 == 1) {
    const uint4 whole = *reinterpret_cast<const uint4*>(words + (kShift == 1 ? 0 : 4));
    return kShift == 1 ? uint4{whole.y, whole.z, whole.w, words[4]} : uint4{words[3], whole.x, whole.y, whole.z};
  }
  const uint2 lower = *reinterpret_cast<const uint2*>(words + 2), upper = *reinterpret_cast<const uint2*>(words + 4);
  return {lower.x, lower.y, upper.x, upper.y};
}

// The outputs of a warp, kOutputs of each lane, change places through shared memory, so that stores follow each other.
// Those stored are `count` of them from `shift` on; `first` is the position of the first one, at a 16-byte boundary.
// `outputs` is room for them, of this warp alone.
template <typename scalar_t, int kOutputs>
__device__ void store_exchanged(scalar_t* row, int row_length, int first, int count, int shift,
                                const scalar_t (&sums)[kOutputs], scalar_t* outputs) {
  constexpr int kElems = kVectorElems<scalar_t>, kVectors = kOutputs / kElems;  // of a lane
  const int lane = opaque(static_cast<int>(threadIdx.x % 32));
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kOutputs; r += kElems) {
    *reinterpret_cast<uint4*>(outputs + lane * kOutputs + r) = *reinterpret_cast<const uint4*>(sums + r);
  }
  __syncwarp();
  const int at = first + lane * kElems;
  auto* const to = opaque(reinterpret_cast<uint4*>(row + at));
  const bool last = (lane + 32 * (kVectors - 1)) * kElems < count;  // all lanes have the others
  const bool within = first >= 0 && first <= row_length - count;
  const auto store = [&](auto shift) {
    uint4 vectors[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      vectors[i] = shifted_vector<decltype(shift)::value>(outputs + (lane + 32 * i) * kElems);
    }
    if (within) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (i < kVectors - 1 || last) to[32 * i] = vectors[i];
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int begin = at + 32 * i * kElems;
      if (begin >= 0 && begin <= row_length - kElems && (i < kVectors - 1 || last)) to[32 * i] = vectors[i];
    }
  };
  if (shift == 0) {
    store(std::integral_constant<int, 0>());
  } else if constexpr (sizeof(scalar_t) == 4) {
    if (shift == 1) store(std::integral_constant<int, 1>());
    if (shift == 2) store(std::integral_constant<int, 2>());
    if (shift == 3) store(std::integral_constant<int, 3>());
  }
  if (within) return;
  for_each_end(Row<scalar_t>{row, row_length, 1}, first, count, lane,
               [&](int element, int i) { row[element] = outputs[i + shift]; });
}

template <typename scalar_t, int kOutputs, int kFilters, bool kOneChannel>
__global__ void __launch_bounds__(32 * kTileWarps, kTiledMinBlocks<scalar_t, kOutputs, kFilters>)
    conv1d_tiled_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  using Window = SlidingWindow<scalar_t, kOutputs>;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t stretch = stretch_of(threadIdx.x);
  if (stretch >= p.all_tiles) return;
  const Conv1dTile<scalar_t, kFilters, kOneChannel> tile(p, shared, stretch);
  if (!tile.exists) return;
  tile.template stage<kOutputs / kVectorElems<scalar_t> + 1>();

  acc_t sums[kFilters][kOutputs];
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    const acc_t bias = tile.bias(f);
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) sums[f][r] = bias;
  }
  tile.for_each_channel([&](const scalar_t* samples, const acc_t* taps, int early) {
    Window window{samples + tile.lane * kOutputs};
    add_taps(sums, window, taps, early, early + p.taps, std::make_integer_sequence<int, Window::kQuads>());
  });

  if constexpr (kFilters == 1 && std::is_same_v<scalar_t, acc_t>) {
    store_exchanged(tile.output, p.out_length, tile.first, p.tile_outputs, 0, sums[0], tile.samples);
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
template <typename scalar_t, int kOutputs, bool kOneChannel>
__global__ void __launch_bounds__(32 * kTileWarps, kSpreadMinBlocks<scalar_t, kOutputs>)
    conv1d_spread_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t stretch = stretch_of(threadIdx.x);
  if (stretch >= p.all_tiles) return;
  const Conv1dTile<scalar_t, 1, kOneChannel> tile(p, shared, stretch);
  if (!tile.exists) return;
  tile.template stage<kOutputs / kVectorElems<scalar_t> + 1>();

  acc_t sums[kOutputs];
  const acc_t bias = tile.bias(0);
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) sums[r] = bias;
  const int apart = 32 * p.stride;
  tile.for_each_channel([&](const scalar_t* samples, const acc_t* taps, int early) {
    samples += tile.lane * p.stride + early;
    taps += early;
#pragma unroll 2
    for (int tap = 0; tap < p.taps; ++tap, samples += p.dilation) {
      const acc_t coefficient = taps[tap];
#pragma unroll
      for (int r = 0; r < kOutputs; ++r) sums[r] += coefficient * convert<acc_t>(samples[r * apart]);
    }
  });
  int position = tile.first + tile.lane;
  scalar_t* target = tile.output + position;
#pragma unroll
  for (int r = 0; r < kOutputs; ++r, position += 32, target += 32) {
    if (position >= 0 && position < p.out_length) *target = convert<scalar_t>(sums[r]);
  }
}

}  // namespace cudamem
