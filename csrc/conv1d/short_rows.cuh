// conv1d of rows of which a warp's tile holds several: float32, up to 32 taps, as in unrolled.cuh.
//
// A row of up to 320 outputs gets as many lanes as compute it, 20 outputs each, and a warp as many rows as it has lanes
// for: what it has to find out before it multiplies is found out once. Outputs of rows that follow each other follow
// each other too, so that a warp stores one run of whole vectors, whatever a row's length.
//
// Traffic, hazard: as in tiled.cuh.
#pragma once

#include "conv1d/unrolled.cuh"

namespace cudamem {

template <int kQuads>
__global__ void __launch_bounds__(32 * kTileWarps, kUnrolledMinBlocks<kQuads>)
    conv1d_short_rows_kernel(const __grid_constant__ Conv1dTiles p) {
  constexpr int kOutputs = kFloatOutputs, kLoads = kOutputs / 4 + 1;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t first_row = stretch_of(threadIdx.x) * p.rows;
  if (first_row >= p.all_tiles) return;
  const int rows = min(p.rows, p.all_tiles - first_row);
  const int lane = opaque(static_cast<int>(threadIdx.x % 32)), lanes = p.lanes.divisor;
  uint32_t of_row = lane;  // which of a row's lanes this one is
  int slot = p.lanes.divide(of_row);
  const bool exists = slot < rows;
  if (!exists) slot = 0;
  uint32_t channel = first_row + slot;
  const uint32_t batch = p.groups.divide(channel);

  unsigned char* const of_warp = shared + threadIdx.x / 32 * p.warp_bytes;
  // A single filter is that of all rows.
  const bool single = p.groups.divisor == 1;
  float* const taps = reinterpret_cast<float*>(of_warp) + (single ? 0 : slot * p.taps_room);
  float* const all = reinterpret_cast<float*>(of_warp + p.taps_bytes);  // [row][sample], in the end [row][output]
  float* const samples = all + slot * p.staged_elems;
  const Row<float> row{static_cast<const float*>(p.input) + batch * p.batch_stride + channel * p.group_stride,
                       p.in_length, 1};
  const int early = row.misaligned(-p.padding);
  const int begin = -p.padding - early;  // of the samples, at a boundary
  if (exists || single) {
    for (int tap = single ? lane : of_row; tap < p.taps; tap += single ? 32 : lanes) {
      taps[tap] = __ldg(static_cast<const float*>(p.weight) + (channel * p.taps + p.first_tap + tap * p.tap_step));
    }
  }
  if (exists) {
    const int vectors = p.staged_elems / 4;
    const auto load = [&](int vector) {
      const int at = begin + 4 * vector;
      const bool within = at >= 0 && at <= row.size - 4;
      return within ? __ldg(reinterpret_cast<const uint4*>(row.data + at)) : uint4{};
    };
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loaded[i] = load(of_row + i * lanes);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int vector = of_row + i * lanes;
      if (i < kLoads - 1 || vector < vectors) reinterpret_cast<uint4*>(samples)[vector] = loaded[i];
    }
#pragma unroll 4
    for (int i = of_row + kLoads * lanes; i < vectors; i += lanes) reinterpret_cast<uint4*>(samples)[i] = load(i);
  }
  __syncwarp();
  const RowEnds<float> ends(row);
  if (exists && ends.any()) {
#pragma unroll 1
    for (int i = of_row; i < ends.kMost; i += lanes) {
      const int element = ends.element(i), at = element - begin;
      if (element >= 0 && at >= 0 && at < p.staged_elems) samples[at] = __ldg(row.data + element);
    }
  }
  __syncwarp();

  float sums[1][kOutputs];
  const float bias = p.bias == nullptr ? 0.0f : __ldg(static_cast<const float*>(p.bias) + channel);
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) sums[0][r] = bias;
  SlidingWindow<float, kOutputs> window{samples + of_row * kOutputs};
  window.begin();
  add_unrolled(sums, window, taps, p.taps - 4 * (kQuads - 1), std::make_integer_sequence<int, kQuads>());

  __syncwarp();  // all windows were read
  float* const output = static_cast<float*>(p.output) + uint64_t{first_row} * p.out_length;
  const int shift = Row<float>{output, 0, 1}.misaligned(0);
  const int position = static_cast<int>(of_row) * kOutputs - early;  // of the thread's first output, in its row
  const int left = exists ? p.out_length - position : 0;
  float* const target = all + (shift + slot * p.out_length + position);
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) {
    if (r < left && (r >= 3 || position + r >= 0)) target[r] = sums[0][r];
  }
  __syncwarp();
  const int end = shift + rows * p.out_length, whole = end / 4;
  auto* const to = opaque(reinterpret_cast<uint4*>(output - shift) + lane);
  const auto* const from = reinterpret_cast<const uint4*>(all) + lane;
#pragma unroll
  for (int i = 0; i < kOutputs / 4; ++i) {
    const int vector = lane + 32 * i;
    if (vector < whole && (i > 0 || vector > 0 || shift == 0)) to[32 * i] = from[32 * i];
  }
  if (lane >= shift && lane < min(end, 4) && shift > 0) output[lane - shift] = all[lane];
  const int last = 4 * whole + lane;
  if (last < end && (whole > 0 || shift == 0)) output[last - shift] = all[last];
}

}  // namespace cudamem
