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
  int stride, dilation, padding;                        // negative padding: the input is cut
  int taps, channels, filters;
  int filter_stride, filter_channel_stride;  // of the weight; taps follow each other
  bool flipped;                              // the last tap comes first

  // A block of filters is one or kManyFilters of a group. Its tiles of all batches are numbered (batch, tile), and a
  // part takes some that follow each other; parts are numbered (some tiles, group, block of filters).
  uint32_t parts, all_tiles, tiles_of_part;
  Divisor tiles, filter_blocks, groups, divide_taps;
  int threads_log2;              // of a part
  int tile_outputs;              // of a tile
  int staged_elems, tile_elems;  // of a channel: samples, and the room they take
  int padded_taps;               // a multiple of 4
  int part_bytes, taps_bytes, buffer_bytes;  // in shared memory: a part's coefficients, kTileBuffers tiles, and more
  bool aligned_rows;                         // each row of outputs starts at a whole sector
};

template <typename scalar_t, int kFilters>
struct Conv1dPart {
  using acc_t = conv1d_acc_t<scalar_t>;
  const Conv1dTiles& p;
  int thread, threads;
  int group, filter;  // the first filter in the group
  uint32_t first_tile;
  acc_t* taps;  // in shared memory, [channel][padded tap][filter]
  unsigned char* buffers;

  __device__ Conv1dPart(const Conv1dTiles& p, unsigned char* shared) : p(p) {
    threads = 1 << p.threads_log2;
    thread = threadIdx.x & (threads - 1);
    const uint32_t of_block = threadIdx.x >> p.threads_log2;
    uint32_t block = blockIdx.x * (blockDim.x >> p.threads_log2) + of_block;
    const bool exists = block < p.parts;  // threads past the last part only take part in barriers
    uint32_t in_groups = p.filter_blocks.divide(block);
    const uint32_t number = p.groups.divide(in_groups);
    group = in_groups;
    filter = block * kFilters;
    first_tile = exists ? number * p.tiles_of_part : p.all_tiles;
    taps = reinterpret_cast<acc_t*>(shared + of_block * p.part_bytes);
    buffers = shared + of_block * p.part_bytes + p.taps_bytes;
  }

  __device__ int out_channel(int f) const { return group * p.filters + filter + f; }
  __device__ scalar_t* buffer(int index) const {
    return reinterpret_cast<scalar_t*>(buffers + index % kTileBuffers * p.buffer_bytes);
  }

  // Coefficient `index` of [channel][filter][tap], and its place; 0 for filters past the last.
  __device__ acc_t coefficient(uint32_t index, int& at) const {
    uint32_t tap = index;
    const uint32_t pair = p.divide_taps.divide(tap);
    const int f = pair % kFilters, channel = pair / kFilters;
    at = (channel * p.padded_taps + tap) * kFilters + f;
    if (filter + f >= p.filters) return 0;
    const int64_t base = int64_t{group} * p.filters * p.channels * p.taps;
    const int offset = (filter + f) * p.filter_stride + channel * p.filter_channel_stride;
    const scalar_t* weight = static_cast<const scalar_t*>(p.weight) + base + offset;
    return convert<acc_t>(__ldg(weight + (p.flipped ? p.taps - 1 - tap : tap)));
  }
  __device__ void stage_taps() const {
    if (first_tile >= p.all_tiles) return;
    for (uint32_t i = thread; i < p.channels * kFilters * p.taps; i += threads) {
      int at;
      const acc_t value = coefficient(i, at);
      taps[at] = value;
    }
  }
};

// A tile of a part.
template <typename scalar_t, int kFilters>
struct Conv1dTile {
  const Conv1dPart<scalar_t, kFilters>& part;
  bool exists;
  int64_t batch;
  int first;  // output; up to a sector before the row's start

  __device__ Conv1dTile(const Conv1dPart<scalar_t, kFilters>& part, uint32_t number) : part(part) {
    const Conv1dTiles& p = part.p;
    uint32_t tile = part.first_tile + number;
    exists = number < p.tiles_of_part && tile < p.all_tiles;
    if (!exists) tile = 0;
    batch = p.tiles.divide(tile);
    first = static_cast<int>(tile) * p.tile_outputs;
    if (!p.aligned_rows) first -= reinterpret_cast<uintptr_t>(output(0)) % kTileAlignBytes / sizeof(scalar_t);
  }

  __device__ scalar_t* output(int f) const {
    const Conv1dTiles& p = part.p;
    const int64_t row = batch * (int64_t{p.groups.divisor} * p.filters) + part.out_channel(f);
    return static_cast<scalar_t*>(p.output) + row * p.out_length;
  }
  __device__ Row<scalar_t> input(int channel) const {
    const Conv1dTiles& p = part.p;
    const int64_t in_channel = int64_t{part.group} * p.channels + channel;
    return {static_cast<const scalar_t*>(p.input) + batch * p.batch_stride + in_channel * p.channel_stride,
            p.in_length, p.length_stride};
  }
  __device__ int first_input() const { return first * part.p.stride - part.p.padding; }

  template <int kRun>
  __device__ void start(scalar_t* buffer) const {
    if (exists) {
      for (int channel = 0; channel < part.p.channels; ++channel) {
        stage<kRun>(buffer + channel * part.p.tile_elems, input(channel), first_input(), part.p.staged_elems,
                    part.thread, part.threads);
      }
    }
    end_group();
  }
};

// All tiles of a part, one after the other: compute(tile, buffer, number) once a tile's samples are there.
template <int kRun, typename scalar_t, int kFilters, typename Compute>
__device__ void for_each_tile(const Conv1dPart<scalar_t, kFilters>& part, Compute compute) {
  using Tile = Conv1dTile<scalar_t, kFilters>;
#pragma unroll
  for (int i = 0; i < kTileBuffers - 1; ++i) Tile(part, i).template start<kRun>(part.buffer(i));
  part.stage_taps();
  for (uint32_t i = 0; i < part.p.tiles_of_part; ++i) {
    wait_for_groups<kTileBuffers - 2>();
    __syncthreads();  // the tile is there for all, and the one before it is no longer needed
    Tile(part, i + kTileBuffers - 1).template start<kRun>(part.buffer(i + kTileBuffers - 1));
    const Tile tile(part, i);
    if (tile.exists) compute(tile, part.buffer(i));
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
  static constexpr int kQuads = kOutputs / 4 + (kHalf ? 2 : 1);
  static_assert(!kHalf || kOutputs == 8);

  const scalar_t* samples;
  int early;
  uint4 last;  // vector of halves
  Quad<acc_t> window[kQuads];

  // Samples 4 * quad and on, four of them, or eight halves.
  template <int kSlot>
  __device__ void load(int quad) {
    if constexpr (kHalf) {
      const uint4* vectors = reinterpret_cast<const uint4*>(samples) + quad / 2;
      uint4 value;
      if (early == 0) {
        value = *vectors;
      } else {
        if (quad == 0) last = *vectors;
        const uint4 upper = vectors[1];
        value = bytes_of_two(last, upper, early * sizeof(scalar_t));
        last = upper;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        window[(kSlot + i / 4) % kQuads].v[i % 4] = convert<acc_t>(reinterpret_cast<const scalar_t*>(&value)[i]);
      }
    } else {
      window[kSlot % kQuads] = *reinterpret_cast<const Quad<acc_t>*>(samples + place<kOutputs>(4 * quad));
    }
  }

  // The samples of the first tap.
  __device__ void begin() { begin(std::make_integer_sequence<int, kHalf ? 1 : kOutputs / 4>()); }
  template <int... kOwn>
  __device__ void begin(std::integer_sequence<int, kOwn...>) {
    (load<kOwn>(kOwn), ...);
  }
  // Those of four taps more; the window's quads take turns as its first one, so that none is ever moved.
  template <int kTurn>
  __device__ void advance(int tap) {
    if constexpr (!kHalf || kTurn % 2 == 0) load<kTurn + kOutputs / 4>(tap / 4 + kOutputs / 4);
  }
  template <int kTurn>
  __device__ acc_t sample(int i) const {
    return window[(kTurn + i / 4) % kQuads].v[i % 4];
  }
};

// sums[f][r] += coefficient[tap][f] * sample[r + tap] for four taps from `tap` on. False after the last one.
template <int kTurn, typename scalar_t, int kOutputs, int kFilters, typename acc_t>
__device__ bool add_four_taps(acc_t (&sums)[kFilters][kOutputs], SlidingWindow<scalar_t, kOutputs>& window,
                              const acc_t* coefficients, int taps, int& tap) {
  if (tap >= taps) return false;
  window.template advance<kTurn>(tap);
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
      for (int r = 0; r < kOutputs; ++r) sums[f][r] += coefficient * window.template sample<kTurn>(i + r);
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

template <typename scalar_t, int kOutputs, int kFilters, typename acc_t, int... kTurns>
__device__ void add_taps(acc_t (&sums)[kFilters][kOutputs], SlidingWindow<scalar_t, kOutputs>& window,
                         const acc_t* coefficients, int taps, std::integer_sequence<int, kTurns...>) {
  window.begin();
  int tap = 0;
  while ((add_four_taps<kTurns>(sums, window, coefficients, taps, tap) && ...)) {
  }
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

template <typename scalar_t, int kOutputs, int kFilters>
__global__ void __launch_bounds__(kTileThreads, kTiledMinBlocks<scalar_t, kOutputs, kFilters>)
    conv1d_tiled_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  extern __shared__ __align__(16) unsigned char shared[];
  const Conv1dPart<scalar_t, kFilters> part(p, shared);
  const int own = part.thread * kOutputs;
  for_each_tile<kOutputs>(part, [&](const Conv1dTile<scalar_t, kFilters>& tile, const scalar_t* samples) {
    acc_t sums[kFilters][kOutputs];
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      const bool has_bias = p.bias != nullptr && part.filter + f < p.filters;
      const auto* bias = static_cast<const scalar_t*>(p.bias) + part.out_channel(f);
#pragma unroll
      for (int r = 0; r < kOutputs; ++r) sums[f][r] = has_bias ? convert<acc_t>(__ldg(bias)) : acc_t{0};
    }
    for (int channel = 0; channel < p.channels; ++channel) {
      using Window = SlidingWindow<scalar_t, kOutputs>;
      Window window{samples + channel * p.tile_elems + place<kOutputs>(own),
                    tile.input(channel).early(tile.first_input())};
      add_taps(sums, window, part.taps + channel * p.padded_taps * kFilters, p.taps,
               std::make_integer_sequence<int, Window::kQuads>());
    }
    if constexpr (kOutputs > 8) {
      // A thread's outputs are several vectors: they change places within the warp, by shared memory of its own, so
      // that its stores follow each other.
      const int lane = part.thread % 32, of_warp = part.thread - lane;
      auto* outputs = reinterpret_cast<scalar_t*>(part.buffer(0)) +
                      kTileBuffers * (p.buffer_bytes / static_cast<int>(sizeof(scalar_t))) + place<kOutputs>(of_warp * kOutputs);
#pragma unroll
      for (int r = 0; r < kOutputs; r += 4) {
        *reinterpret_cast<Quad<acc_t>*>(outputs + place<kOutputs>(lane * kOutputs) + r) =
            {sums[0][r], sums[0][r + 1], sums[0][r + 2], sums[0][r + 3]};
      }
      __syncwarp();
#pragma unroll
      for (int r = 0; r < kOutputs; r += 4) {
        const int at = 32 * r + 4 * lane;
        const auto quad = *reinterpret_cast<const Quad<acc_t>*>(outputs + place<kOutputs>(at));
        store_outputs(tile.output(0), p.out_length, tile.first + of_warp * kOutputs + at, quad.v);
      }
      __syncwarp();
    } else {
#pragma unroll
      for (int f = 0; f < kFilters; ++f) {
        if (part.filter + f < p.filters) store_outputs(tile.output(f), p.out_length, tile.first + own, sums[f]);
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
  for_each_tile<1>(part, [&](const Conv1dTile<scalar_t, 1>& tile, const scalar_t* tile_samples) {
    acc_t sums[kSpreadOutputs];
    const auto* bias = static_cast<const scalar_t*>(p.bias) + part.out_channel(0);
#pragma unroll
    for (int r = 0; r < kSpreadOutputs; ++r) sums[r] = p.bias != nullptr ? convert<acc_t>(__ldg(bias)) : acc_t{0};
    const int apart = part.threads * p.stride;
    for (int channel = 0; channel < p.channels; ++channel) {
      const scalar_t* samples = tile_samples + channel * p.tile_elems + part.thread * p.stride +
                                tile.input(channel).early(tile.first_input());
      const acc_t* coefficients = part.taps + channel * p.padded_taps;
#pragma unroll 4
      for (int tap = 0; tap < p.taps; ++tap, samples += p.dilation) {
        const acc_t coefficient = coefficients[tap];
#pragma unroll
        for (int r = 0; r < kSpreadOutputs; ++r) sums[r] += coefficient * convert<acc_t>(samples[r * apart]);
      }
    }
    scalar_t* const output = tile.output(0);
#pragma unroll
    for (int r = 0; r < kSpreadOutputs; ++r) {
      const int position = tile.first + part.thread + r * part.threads;
      if (position >= 0 && position < p.out_length) output[position] = convert<scalar_t>(sums[r]);
    }
  });
}

}  // namespace cudamem
