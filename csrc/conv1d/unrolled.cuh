// conv1d by up to 32 taps: float32, one channel a group, samples side by side, stride and dilation 1.
//
// As in the tiled kernel, but a kernel is made for each multiple of four taps: no loop, and no copies between a loop's
// registers and others. 31 taps of a thread's 20 outputs are 620 multiplications; they take 810 instructions, 920 in a
// loop. What comes early is not skipped: a thread's outputs begin so much earlier, and are shifted on their way out.
//
// Traffic, hazard: as in tiled.cuh.
#pragma once

#include "conv1d/tiled.cuh"

namespace cudamem {

// Taps 4 * kTurn and on, of which `rest` (1 to 4) are left in the last turn.
template <int kOutputs, int... kTurns>
__device__ void add_unrolled(float (&sums)[1][kOutputs], SlidingWindow<float, kOutputs>& window, const float* taps,
                             int rest, std::integer_sequence<int, kTurns...>) {
  constexpr int kLast = sizeof...(kTurns) - 1;
  (add_four_taps<kTurns>(sums, window, taps, 0, kTurns < kLast ? 4 : rest), ...);
}

template <int kQuads>
__global__ void __launch_bounds__(32 * kTileWarps, kUnrolledMinBlocks<kQuads>)
    conv1d_unrolled_kernel(const __grid_constant__ Conv1dTiles p) {
  constexpr int kOutputs = kFloatOutputs, kSamples = 32 * kOutputs + 4 * kQuads;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t stretch = stretch_of(threadIdx.x);
  if (stretch >= p.all_tiles) return;
  const Conv1dTile<float, 1, true, kTileAlignBytes, true> tile(p, shared, stretch);
  if (!tile.exists) return;
  tile.template stage<kOutputs / 4 + 1, 0, InOrder, kSamples>();

  float sums[1][kOutputs];
  const float bias = tile.bias(0);
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) sums[0][r] = bias;
  SlidingWindow<float, kOutputs> window{tile.samples + tile.lane * kOutputs};
  window.begin();
  add_unrolled(sums, window, tile.taps, p.taps - 4 * (kQuads - 1), std::make_integer_sequence<int, kQuads>());
  store_exchanged(tile.output, p.out_length, tile.first, p.tile_outputs, tile.early, sums[0], tile.samples);
}

}  // namespace cudamem
