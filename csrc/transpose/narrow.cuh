// The `narrow` transposes: a few long lines, such as an image's 3 channels, to and from one interleaved line. A tile
// would be almost empty; here a thread moves a place's elements of all lines.
#pragma once

#include "transpose/tiles.cuh"

namespace cudamem {

constexpr int kNarrowThreads = 256;

// ---------------------------------------------------------------------------------------------------------------------
// Two to four lines, 16 bytes an access: a thread holds V places (V = 16 bytes / element) of all lines, which are
// kLines vectors that follow each other in the interleaved line, and one vector of each separate line. It turns one
// into the other in registers.
// ---------------------------------------------------------------------------------------------------------------------

constexpr int kMaxVectorLines = 4;

struct InterleaveProblem {
  const char* input;
  char* output;
  uint32_t groups;       // of V places, in a plane
  int64_t line_bytes;    // from one separate line to the next
  TileGrid tiles;        // a tile is one thread block's groups
  TransposeBatch batch;  // strides in bytes
};

// to[i] = the element of `from` at index source(i), both of kBytes; every index is known at compile time.
template <int kBytes, int kWords, typename Source>
__device__ inline void permute_in_registers(const uint32_t (&from)[kWords], uint32_t (&to)[kWords], Source source) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    if constexpr (kBytes >= 4) {
      constexpr int n = kBytes / 4;
      to[w] = from[source(w / n) * n + w % n];
    } else if constexpr (kBytes == 2) {
      const int a = source(2 * w), b = source(2 * w + 1);
      to[w] = __byte_perm(from[a / 2], from[b / 2], (a % 2 ? 0x32 : 0x10) | (b % 2 ? 0x7600 : 0x5400));
    } else {
      const int a = source(4 * w), b = source(4 * w + 1), c = source(4 * w + 2), d = source(4 * w + 3);
      const uint32_t low = __byte_perm(from[a / 4], from[b / 4], a % 4 | (4 + b % 4) << 4);
      const uint32_t high = __byte_perm(from[c / 4], from[d / 4], c % 4 | (4 + d % 4) << 4);
      to[w] = __byte_perm(low, high, 0x5410);
    }
  }
}

// kJoins: separate lines become the interleaved one; else the reverse.
template <int kBytes, int kLines, bool kJoins>
__global__ void __launch_bounds__(kNarrowThreads)
    transpose_interleave_kernel(const __grid_constant__ InterleaveProblem p) {
  constexpr int V = 16 / kBytes;
  uint32_t tile, unused, plane;
  p.tiles.place(tile, unused, plane);
  int64_t in_base, out_base;
  p.batch.offsets(plane, in_base, out_base);
  const int64_t group = static_cast<int64_t>(tile) * kNarrowThreads + threadIdx.x;
  const bool exists = group < p.groups;
  const int64_t in_line = kJoins ? p.line_bytes : 16;
  const char* from = p.input + in_base + group * (kJoins ? 16 : 16 * kLines);
  uint4 in[kLines], out[kLines];
#pragma unroll
  for (int n = 0; n < kLines; ++n) {
    if (exists) in[n] = *reinterpret_cast<const uint4*>(from + n * in_line);
  }
  permute_in_registers<kBytes>(reinterpret_cast<uint32_t (&)[4 * kLines]>(in),
                               reinterpret_cast<uint32_t (&)[4 * kLines]>(out),
                               [](int i) { return kJoins ? i % kLines * V + i / kLines : i % V * kLines + i / V; });
  if constexpr (kJoins) {
    // Vectors that a thread stores one after the other would leave gaps between the threads: half-written sectors.
    // A warp puts its vectors in the order of memory first.
    __shared__ uint4 exchange[kNarrowThreads * kLines];
    const int lane = threadIdx.x % 32;
    uint4* mine = exchange + (threadIdx.x - lane) * kLines;
#pragma unroll
    for (int n = 0; n < kLines; ++n) mine[lane * kLines + n] = out[n];
    __syncwarp();
    const int64_t warp_group = group - lane;
    uint4* to = reinterpret_cast<uint4*>(p.output + out_base) + warp_group * kLines;
#pragma unroll
    for (int n = 0; n < kLines; ++n) {
      const int i = 32 * n + lane;
      if (warp_group + i / kLines < p.groups) to[i] = mine[i];
    }
  } else {
    char* to = p.output + out_base + group * 16;
#pragma unroll
    for (int n = 0; n < kLines; ++n) {
      if (exists) *reinterpret_cast<uint4*>(to + n * p.line_bytes) = out[n];
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Any number of lines, an element an access. Where lines are split, the first access to a sector brings the others,
// which follow at once, into L1. Where they are joined, the interleaved line is put together in shared memory.
// ---------------------------------------------------------------------------------------------------------------------

struct NarrowProblem {
  const void* input;
  void* output;
  int64_t places;  // along a line
  int lines;
  int64_t in_place_stride, in_line_stride;    // in elements
  int64_t out_place_stride, out_line_stride;  // splits only: joined, the output is one contiguous line
  TileGrid tiles;                             // a tile is one thread block's places
  TransposeBatch batch;
};

template <int kElementBytes>
struct NarrowPolicy {
  static constexpr int kBytes = kElementBytes;
  static constexpr int kLoads = 8;  // of a thread, in flight
  static constexpr int kMaxLines = kBytes <= 4 ? 32 : 128 / kBytes;
  static constexpr int kJoinedBytes = kNarrowThreads * kMaxLines * kBytes;
};

template <int kBytes, bool kJoins>
__global__ void __launch_bounds__(kNarrowThreads) transpose_narrow_kernel(const __grid_constant__ NarrowProblem p) {
  using Policy = NarrowPolicy<kBytes>;
  using element_t = BitsOf<kBytes>;
  __shared__ uint4 joined[kJoins ? Policy::kJoinedBytes / 16 : 1];
  uint32_t tile, unused, plane;
  p.tiles.place(tile, unused, plane);
  int64_t in_base, out_base;
  p.batch.offsets(plane, in_base, out_base);
  const int64_t first = static_cast<int64_t>(tile) * kNarrowThreads, place = first + threadIdx.x;
  const element_t* in = static_cast<const element_t*>(p.input) + in_base + place * p.in_place_stride;
  element_t* out = static_cast<element_t*>(p.output) + out_base;
  element_t* to =
      kJoins ? reinterpret_cast<element_t*>(joined) + threadIdx.x * p.lines : out + place * p.out_place_stride;
  const int64_t out_step = kJoins ? 1 : p.out_line_stride;
  const int lines = place < p.places ? p.lines : 0;
  for (int line = 0; line < lines; line += Policy::kLoads) {
    element_t value[Policy::kLoads];
#pragma unroll
    for (int k = 0; k < Policy::kLoads; ++k) {
      if (line + k < lines) value[k] = *in;
      in += p.in_line_stride;
    }
#pragma unroll
    for (int k = 0; k < Policy::kLoads; ++k) {
      if (line + k < lines) *to = value[k];
      to += out_step;
    }
  }
  if constexpr (kJoins) {
    __syncthreads();
    out += first * p.lines;
    const int elems = static_cast<int>(min(p.places - first, int64_t{kNarrowThreads})) * p.lines;
    const bool aligned = reinterpret_cast<uintptr_t>(out) % 16 == 0;
    const int vectors = aligned ? elems * kBytes / 16 : 0;
    for (int i = threadIdx.x; i < vectors; i += kNarrowThreads) reinterpret_cast<uint4*>(out)[i] = joined[i];
    for (int i = vectors * 16 / kBytes + threadIdx.x; i < elems; i += kNarrowThreads) {
      out[i] = reinterpret_cast<const element_t*>(joined)[i];
    }
  }
}

}  // namespace cudamem
