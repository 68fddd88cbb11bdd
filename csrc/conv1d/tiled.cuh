// conv1d from tiles in shared memory.
//
// A block, or a part of one, takes one stretch of a signal after the other: it brings the samples to shared memory, each
// once, the next stretch while it computes this one; and each of its threads computes several outputs of a stretch. In
// the tiled kernel these follow each other, and their window slides through registers: four new samples and four
// coefficients come, each with one 16-byte load, for four multiplications of each output. All threads ask for the same
// coefficients, which is one access. So neither loads nor shared memory limit it, but global memory up to about 50 taps
// in float32, and above that the rate of multiplications. In the spread kernel taps lie apart, or outputs do; each
// multiplication has its own load from shared memory.
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
  int64_t batch_stride, channel_stride, length_stride;  // of the input, in elements
  int64_t out_batch_stride;
  int64_t input_step, output_step;  // batch_step times the batches' strides
  int stride, dilation, padding;  // negative padding: the input is cut
  int taps, channels, filters;
  int filter_stride, filter_channel_stride;  // of the weight; taps follow each other
  bool flipped;                              // the last tap comes first

  // A block of filters is one or kManyFilters of a group. Its tiles of all batches are numbered (batch, tile), and are
  // dealt out to its parts like cards, so that blocks that run together work on neighbours.
  uint32_t parts, all_tiles, most_tiles;  // of a part
  int tile_step, batch_step;              // from a part's tile to its next one
  Divisor parts_of_signal, tiles, filter_blocks, groups, divide_taps;
  int threads;                   // of a part: a power of two
  int tile_outputs;              // of a tile
  int staged_elems, tile_elems;  // of a channel: samples of a tile, and the room they take
  bool stages_all;               // of these samples, beyond those that the row's outputs need
  int padded_taps;               // a multiple of 4
  int part_bytes, taps_bytes, buffer_bytes;  // in shared memory: a part's coefficients, two tiles, and what else it needs
};

// The tiles of a part, one after the other.
template <typename scalar_t>
struct TileWalk {
  const scalar_t* input;  // row of the group's first channel
  scalar_t* output;       // row of the part's first filter
  uint32_t tile;          // of the row
  int left;               // tiles, with this one

  __device__ void next(const Conv1dTiles& p) {
    --left;
    tile += p.tile_step;
    const bool wraps = tile >= p.tiles.divisor;
    if (wraps) tile -= p.tiles.divisor;
    input += p.input_step + (wraps ? p.batch_stride : 0);
    output += p.output_step + (wraps ? p.out_batch_stride : 0);
  }
  // The first output. It may lie before the row's start: so far that outputs begin at a multiple of kOutputBytes; with 0,
  // that samples begin at a 16-byte boundary.
  template <int kOutputBytes>
  __device__ int first(const Conv1dTiles& p) const {
    const int position = static_cast<int>(tile) * p.tile_outputs;
    if constexpr (kOutputBytes > 0) {
      return position - static_cast<int>(reinterpret_cast<uintptr_t>(output) % kOutputBytes / sizeof(scalar_t));
    } else {
      return position - row(p).misaligned(-p.padding);
    }
  }
  __device__ Row<scalar_t> row(const Conv1dTiles& p) const { return {input, p.in_length, p.length_stride}; }
};

template <typename scalar_t, int kFilters>
struct Conv1dPart {
  using acc_t = conv1d_acc_t<scalar_t>;
  const Conv1dTiles& p;
  int thread;
  int group, filter;  // the first filter in the group
  TileWalk<scalar_t> walk;
  unsigned char* shared;  // coefficients, then two tiles, then what else the kernel needs

  __device__ Conv1dPart(const Conv1dTiles& p, unsigned char* of_block) : p(p) {
    thread = threadIdx.x & (p.threads - 1);
    const uint32_t part = threadIdx.x / static_cast<uint32_t>(p.threads);
    shared = of_block + part * p.part_bytes;
    uint32_t tile = blockIdx.x * (blockDim.x / static_cast<uint32_t>(p.threads)) + part;
    const bool exists = tile < p.parts;  // threads past the last part only take part in barriers
    uint32_t block = p.parts_of_signal.divide(tile);
    group = p.filter_blocks.divide(block);
    filter = block * kFilters;
    walk.left = exists ? (p.all_tiles - tile + p.parts_of_signal.divisor - 1) / p.parts_of_signal.divisor : 0;
    const int64_t batch = p.tiles.divide(tile);
    walk.tile = tile;
    walk.input = static_cast<const scalar_t*>(p.input) + batch * p.batch_stride + int64_t{group} * p.channels * p.channel_stride;
    walk.output = static_cast<scalar_t*>(p.output) + batch * p.out_batch_stride + int64_t{out_channel(0)} * p.out_length;
  }

  __device__ int out_channel(int f) const { return group * p.filters + filter + f; }
  __device__ acc_t* taps() const { return reinterpret_cast<acc_t*>(shared); }  // [channel][padded tap][filter]
  __device__ scalar_t* buffer(int parity) const {
    return reinterpret_cast<scalar_t*>(shared + p.taps_bytes + parity * p.buffer_bytes);
  }
  __device__ scalar_t* beyond_buffers() const { return buffer(2); }
  __device__ acc_t bias(int f) const {
    const bool exists = p.bias != nullptr && filter + f < p.filters;
    return exists ? convert<acc_t>(__ldg(static_cast<const scalar_t*>(p.bias) + out_channel(f))) : acc_t{0};
  }

  // Coefficient `index` of [channel][filter][tap], and its place; 0 for filters past the last.
  __device__ scalar_t coefficient(uint32_t index, int& at) const {
    uint32_t tap = index;
    const uint32_t pair = p.divide_taps.divide(tap);
    const int f = pair % kFilters, channel = pair / kFilters;
    at = (channel * p.padded_taps + tap) * kFilters + f;
    if (filter + f >= p.filters) return convert<scalar_t>(0.0f);
    const int64_t base = int64_t{group} * p.filters * p.channels * p.taps;
    const int offset = (filter + f) * p.filter_stride + channel * p.filter_channel_stride;
    return __ldg(static_cast<const scalar_t*>(p.weight) + base + offset + (p.flipped ? p.taps - 1 - tap : tap));
  }
  __device__ void stage_taps() const {
    if (walk.left <= 0) return;
    for (uint32_t i = thread; i < p.channels * kFilters * p.taps; i += p.threads) {
      int at;
      const acc_t value = convert<acc_t>(coefficient(i, at));
      taps()[at] = value;
    }
  }
};

// Calls compute(tile, samples) for each tile of the part, once its samples are there; the next ones are under way then.
template <int kOutputBytes, bool kFromBoundary, typename scalar_t, int kFilters, typename Compute>
__device__ void for_each_tile(const Conv1dPart<scalar_t, kFilters>& part, Compute compute) {
  const Conv1dTiles& p = part.p;
  const auto start = [&](const TileWalk<scalar_t>& tile, int parity) {
    if (tile.left <= 0) return;
    const int first = tile.template first<kOutputBytes>(p), first_input = first * p.stride - p.padding;
    const int needed = (p.out_length - 1 - first) * p.stride + (p.taps - 1) * p.dilation + 1;
    const int count = p.stages_all ? p.staged_elems : min(max(needed, 0), p.staged_elems);
    Row<scalar_t> row = tile.row(p);
    scalar_t* samples = part.buffer(parity);
    int channel = p.channels;
    do {
      stage<kFromBoundary>(samples, row, first_input, count, part.thread, p.threads);
      row.data += p.channel_stride;
      samples += p.tile_elems;
    } while (--channel > 0);
  };
  TileWalk<scalar_t> tile = part.walk;
  start(tile, 0);
  part.stage_taps();
  for (int parity = 0, rest = p.most_tiles; rest > 0; parity ^= 1, --rest) {
    wait_for_copies();
    __syncthreads();  // the tile is there for all, and the one before it is no longer needed
    const TileWalk<scalar_t> now = tile;
    tile.next(p);
    start(tile, parity ^ 1);
    if (now.left > 0) compute(now, part.buffer(parity));
  }
}

// Four numbers that lie together.
template <typename acc_t>
struct alignas(16) Quad {
  acc_t v[4];
};

// The samples of a thread's outputs, in registers.
template <typename scalar_t, int kOutputs>
struct SlidingWindow {
  using acc_t = conv1d_acc_t<scalar_t>;
  static constexpr bool kHalf = sizeof(scalar_t) == 2;         // whose samples come by eight
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
  template <int... kOwn>
  __device__ void begin(std::integer_sequence<int, kOwn...>) {
    (load<kOwn>(), ...);
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
#pragma unroll
  for (int r = 0; r < kOutputs; r += kElems) {
    Vector vector;
#pragma unroll
    for (int j = 0; j < kElems; ++j) vector.v[j] = sums[r + j];
    *reinterpret_cast<Vector*>(outputs + lane * kOutputs + r) = vector;
  }
  __syncwarp();
  scalar_t* const target = row + first;
  // The outputs [begin, end) lie within the row, [low, high) of them in whole vectors.
  const int off = (0 - static_cast<int>(reinterpret_cast<uintptr_t>(target) / sizeof(scalar_t))) & (kElems - 1);
  const int begin = max(-first, 0), end = min(row_length - first, kAll);
  const int low = begin + ((off - begin) & (kElems - 1)), high = end - ((end - off) & (kElems - 1));
#pragma unroll
  for (int r = 0; r < kAll; r += 32 * kElems) {
    const int i = off + r + lane * kElems;
    if (i >= low && i < high) {
      Vector vector;
      if (off == 0) {
        vector = *reinterpret_cast<const Vector*>(outputs + i);
      } else {
#pragma unroll
        for (int j = 0; j < kElems; ++j) vector.v[j] = outputs[i + j];
      }
      *reinterpret_cast<Vector*>(target + i) = vector;
    }
  }
  const int before = begin + lane, after = max(high, low) + lane;
  if (before < min(low, end)) target[before] = outputs[before];
  if (after < end) target[after] = outputs[after];
  __syncwarp();
}

template <typename scalar_t, int kOutputs, int kFilters>
__global__ void __launch_bounds__(kTileThreads, kTiledMinBlocks<scalar_t, kOutputs, kFilters>)
    conv1d_tiled_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  using Window = SlidingWindow<scalar_t, kOutputs>;
  constexpr bool kHalf = sizeof(scalar_t) == 2;
  extern __shared__ __align__(16) unsigned char shared[];
  const Conv1dPart<scalar_t, kFilters> part(p, shared);
  constexpr int kOfWarp = 32 * kOutputs, kOutputBytes = kHalf ? kTileAlignBytes : 0;
  const int lane = part.thread % 32, warp = part.thread / 32;
  scalar_t* const exchange = part.beyond_buffers() + warp * kOfWarp;
  acc_t bias[kFilters];
#pragma unroll
  for (int f = 0; f < kFilters; ++f) bias[f] = part.walk.left > 0 ? part.bias(f) : acc_t{0};

  for_each_tile<kOutputBytes, kHalf>(part, [&](const TileWalk<scalar_t>& tile, const scalar_t* samples_of_tile) {
    const int first = tile.template first<kOutputBytes>(p);
    for (int outputs = warp * kOfWarp; outputs < p.tile_outputs; outputs += p.threads * kOutputs) {
      if (first + outputs >= p.out_length) break;
      acc_t sums[kFilters][kOutputs];
#pragma unroll
      for (int f = 0; f < kFilters; ++f) {
#pragma unroll
        for (int r = 0; r < kOutputs; ++r) sums[f][r] = bias[f];
      }
      Row<scalar_t> row = tile.row(p);
      const acc_t* taps = part.taps();
      const scalar_t* samples = samples_of_tile + outputs + lane * kOutputs;
      int channel = p.channels;
      do {
        Window window{samples, kHalf ? row.early(first - p.padding) : 0};
        add_taps(sums, window, taps, p.taps, std::make_integer_sequence<int, Window::kQuads>());
        row.data += p.channel_stride;
        samples += p.tile_elems;
        taps += p.padded_taps * kFilters;
      } while (--channel > 0);

      if constexpr (kFilters == 1 && !kHalf) {
        store_exchanged(tile.output, p.out_length, first + outputs, sums[0], exchange);
      } else {
#pragma unroll
        for (int f = 0; f < kFilters; ++f) {
          if (part.filter + f < p.filters) {
            store_outputs(tile.output + f * int64_t{p.out_length}, p.out_length, first + outputs + lane * kOutputs,
                          sums[f]);
          }
        }
      }
    }
  });
}

// A thread's outputs lie a part's threads apart, so that a warp reads and writes neighbours.
template <typename scalar_t>
__global__ void __launch_bounds__(kTileThreads, kSpreadMinBlocks<scalar_t>)
    conv1d_spread_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  extern __shared__ __align__(16) unsigned char shared[];
  const Conv1dPart<scalar_t, 1> part(p, shared);
  for_each_tile<kTileAlignBytes, true>(part, [&](const TileWalk<scalar_t>& tile, const scalar_t* tile_samples) {
    acc_t sums[kSpreadOutputs];
    const acc_t bias = part.bias(0);
#pragma unroll
    for (int r = 0; r < kSpreadOutputs; ++r) sums[r] = bias;
    const int apart = p.threads * p.stride;
    const int first = tile.template first<kTileAlignBytes>(p);
    Row<scalar_t> row = tile.row(p);
    const acc_t* taps = part.taps();
    tile_samples += part.thread * p.stride;
    int channel = p.channels;
    do {
      const scalar_t* samples = tile_samples + row.early(first * p.stride - p.padding);
#pragma unroll 2
      for (int tap = 0; tap < p.taps; ++tap, samples += p.dilation) {
        const acc_t coefficient = taps[tap];
#pragma unroll
        for (int r = 0; r < kSpreadOutputs; ++r) sums[r] += coefficient * convert<acc_t>(samples[r * apart]);
      }
      row.data += p.channel_stride;
      tile_samples += p.tile_elems;
      taps += p.padded_taps;
    } while (--channel > 0);
    int position = first + part.thread;
    scalar_t* target = tile.output + position;
#pragma unroll
    for (int r = 0; r < kSpreadOutputs; ++r, position += p.threads, target += p.threads) {
      if (position >= 0 && position < p.out_length) *target = convert<scalar_t>(sums[r]);
    }
  });
}

}  // namespace cudamem
