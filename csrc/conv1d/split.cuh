// conv1d of float32 by tensor cores, as exact as float32: each number as a sum of two.
//
// Tensor cores multiply TF32 numbers, of 11 significant bits. A float32 has 24: x = high + low, the nearest TF32 number
// and what remains of 12 bits. Of the four products of two such sums the tensor cores compute three; the fourth, low *
// low, lies below float32's last bit:
//
//   x * w = high(x) * high(w) + (high(x) * low(w) + low(x) * high(w))
//
// A warp computes 16 stretches of 8 * kBlocks outputs, one for each row of a left factor. In step s block b of outputs
// meets the samples from 8 * (b + s) on, which are the rows of a left factor of 16 x 8, and the taps from 8 * s on, a
// right factor of 8 x 8 with right[p][n] = tap[8 * s + p - n]. So a left factor serves kBlocks blocks, one in each
// step.
//
// Traffic: as in `tiled.cuh`.
// Hazard:  tensor cores drop bits when they add, so a sum of eight products is as much as they add; the sums of eight
// are
//          added as float32. What they cannot compute a warp computes again, one product after the other: a result
//          that is not finite, since high(x) may overflow and zeros in the right factor meet samples that are not
//          theirs; and a result so small that lost bits may show, if there are samples so small.
// Source:  NVIDIA, PTX ISA, "Matrix Fragments for mma.m16n8k8" and "ldmatrix".
#pragma once

#include "conv1d/tensor_cores.cuh"

namespace cudamem {

struct SplitFloat {
  uint32_t high, low;
  __device__ explicit SplitFloat(float x) {
    high = (__float_as_uint(x) + 0x1000) & 0xffffe000;
    low = __float_as_uint(x - __uint_as_float(high));
  }
};

// products = left * right + sums, 16 x 8 times 8 x 8.
__device__ inline void multiply_tf32(float (&products)[4], const uint32_t (&left)[4], const uint32_t (&right)[2],
                                     const float (&sums)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(products[0]), "=f"(products[1]), "=f"(products[2]), "=f"(products[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "f"(sums[0]),
        "f"(sums[1]), "f"(sums[2]), "f"(sums[3]));
#endif
}

// A left factor: a thread's four samples.
struct SplitFragment {
  uint32_t high[4], low[4];
};

// Staged samples as a matrix of rows of 8 * kBlocks, whose 16-byte vectors change places so that a column of them lies
// in different banks.
template <int kBlocks>
struct SplitTile {
  static constexpr int kVectors = 2 * kBlocks;  // of a row
  __device__ static uint32_t place(uint32_t vector) { return vector ^ (vector / kVectors % 8); }
  __device__ float at(uint32_t element) const { return samples[place(element / 4) * 4 + element % 4]; }

  const float* samples;
  // The samples from 8 * block on, of each row.
  __device__ SplitFragment load(int block) const {
    const int lane = threadIdx.x % 32;
    uint32_t raw[4];
    load_matrices(raw, samples + 4 * place(lane % 16 * kVectors + 2 * block + lane / 16));
    SplitFragment fragment;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const SplitFloat split(__uint_as_float(raw[i]));
      fragment.high[i] = split.high;
      fragment.low[i] = split.low;
    }
    return fragment;
  }
};

// A step for all blocks. kTurn: the step modulo kBlocks; left[i] is that of the blocks i modulo kBlocks. `taps` points
// to the thread's first one.
template <int kTurn, int kBlocks>
__device__ void add_step(float (&sums)[kBlocks][4], SplitFragment (&left)[kBlocks], const SplitTile<kBlocks>& tile,
                         const float* taps, int step) {
  left[(kTurn + kBlocks - 1) % kBlocks] = tile.load(step + kBlocks - 1);
  const SplitFloat first(taps[8 * step]), second(taps[8 * step + 4]);
  const uint32_t high[2] = {first.high, second.high}, low[2] = {first.low, second.low};
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const SplitFragment& samples = left[(kTurn + b) % kBlocks];
    float products[4];
    multiply_tf32(products, samples.high, low, {0, 0, 0, 0});
    multiply_tf32(products, samples.low, high, products);
    multiply_tf32(products, samples.high, high, products);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[b][i] += products[i];
  }
}

template <int kBlocks, int... kTurns>
__device__ void add_steps(float (&sums)[kBlocks][4], const SplitTile<kBlocks>& tile, const float* taps, int steps,
                          std::integer_sequence<int, kTurns...>) {
  SplitFragment left[kBlocks];
  ((kTurns < kBlocks - 1 ? void(left[kTurns] = tile.load(kTurns)) : void()), ...);
  for (int step = 0;; step += kBlocks) {
    const auto add = [&](auto turn) {
      constexpr int kTurn = decltype(turn)::value;
      if (step + kTurn >= steps) return false;
      add_step<kTurn>(sums, left, tile, taps, step + kTurn);
      return true;
    };
    if (!(add(std::integral_constant<int, kTurns>()) && ...)) return;
  }
}

// A tap that float32 can multiply and that its parts cannot, by some samples.
__device__ inline bool is_extreme(float tap) {
  return tap != 0 && !(fabsf(tap) >= kSplitTiny && fabsf(tap) <= kSplitHuge);
}

// Checks and stores a warp's sums. The tile is found again, rather than kept in registers while all are in use.
template <int kBlocks>
__device__ void finish_split(const Conv1dTiles& p, unsigned char* shared, float (&sums)[kBlocks][4]) {
  constexpr int kRow = 8 * kBlocks, kOutputs = 16 * kRow;
  const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % 32;
  const Conv1dTile<float, 1, true> tile(p, shared, stretch_of(thread));
  const float* const taps = tile.taps + kSplitTapsBefore;
  const float bias = tile.bias(0);
  float zero = 0, least = kSplitLeast;  // zero: NaN, if a result is not finite
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[b][i] += bias;
      zero += 0 * sums[b][i];
      least = fminf(least, fabsf(sums[b][i]));
    }
  }
  bool again = zero != 0;
  for (int i = lane; i < p.taps; i += 32) again = again || is_extreme(taps[i]);
  if (__any_sync(0xffffffff, least < kSplitLeast)) {
    for (int i = lane; i < p.staged_elems; i += 32) {
      again = again || (tile.samples[i] != 0 && fabsf(tile.samples[i]) < kSplitTiny);
    }
  }
  if (__any_sync(0xffffffff, again)) {
    const SplitTile<kBlocks> samples{tile.samples};
    for (int output = lane; output < kOutputs; output += 32) {
      float sum = bias;
      for (int tap = 0; tap < p.taps; ++tap) sum += taps[tap] * samples.at(output + tile.early + tap);
      const int position = tile.first + output;
      if (position >= 0 && position < p.out_length) tile.output[position] = sum;
    }
    return;
  }
  const int of_thread = lane / 4 * kRow + 2 * (lane % 4);  // its first output
  if (tile.first >= 0 && tile.first <= p.out_length - kOutputs) {
    auto* const target = opaque(reinterpret_cast<float2*>(tile.output + tile.first + of_thread));
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      target[4 * b] = {sums[b][0], sums[b][1]};
      target[4 * b + 4 * kRow] = {sums[b][2], sums[b][3]};
    }
    return;
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = tile.first + of_thread + 8 * b + i / 2 * (8 * kRow) + i % 2;
      if (position >= 0 && position < p.out_length) tile.output[position] = sums[b][i];
    }
  }
}

template <int kBlocks>
__global__ void __launch_bounds__(32 * kTileWarps, kSplitMinBlocks)
    conv1d_split_kernel(const __grid_constant__ Conv1dTiles p) {
  if constexpr (!kSplitHere) return;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t stretch = stretch_of(threadIdx.x);
  if (stretch >= p.all_tiles) return;
  const Conv1dTile<float, 1, true> tile(p, shared, stretch);
  if (!tile.exists) return;
  tile.template stage<kBlocks + 1, kSplitTapsBefore, SplitTile<kBlocks>>();
  const int lane = threadIdx.x % 32;
  float sums[kBlocks][4] = {};
  add_steps(sums, SplitTile<kBlocks>{tile.samples}, tile.taps + (kSplitTapsBefore + lane % 4 - lane / 4 - tile.early),
            (p.taps + tile.early + 14) / 8, std::make_integer_sequence<int, kBlocks>());
  finish_split(p, shared, sums);
}

}  // namespace cudamem
