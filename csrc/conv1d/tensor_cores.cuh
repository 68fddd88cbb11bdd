// conv1d of halves by tensor cores: a row of outputs as a product of matrices.
//
// A warp computes 256 outputs as a matrix of 16 rows of 16. Row m of the left factor is the signal from sample 16 * m
// on, so that its rows overlap in memory and nothing is copied to build it; the right factor holds the taps along its
// diagonals (a Toeplitz matrix), the same for every 256 outputs of a signal:
//
//   output[16 * m + n] = sum over p of  signal[16 * m + p] * right[p][n],   right[p][n] = tap[p - n]
//
// One of its multiplications in 1.5 (42 taps) to 11 (3 taps) counts, and that is still an eighth of the instructions:
// the kernel runs at the speed of memory up to kTensorTaps of them. Products are exact and are added in float32.
//
// Traffic: as in `tiled.cuh`.
// Hazard:  the zeros beside the diagonals meet samples that are not theirs, and zero times infinity is NaN. A
//          warp that finds NaN in its results computes them again, one by one.
// Source:  NVIDIA, PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".
#pragma once

#include "conv1d/tiled.cuh"

namespace cudamem {

constexpr int kTensorRow = 16, kTensorOutputs = kTensorRow * kTensorRow;  // of a warp at once

// The four 8 x 8 matrices of a left factor, whose rows lie where the 32 threads point.
__device__ inline void load_matrices(uint32_t (&left)[4], const void* row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(left[0]), "=r"(left[1]), "=r"(left[2]), "=r"(left[3])
               : "r"(address)
               : "memory");
#endif
}

// sums += left * right, 16 x 16 times 16 x 8.
template <typename scalar_t>
__device__ void multiply(float (&sums)[4], const uint32_t (&left)[4], const uint32_t (&right)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<scalar_t, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  }
#endif
}

// A thread's part of the right factor: two blocks of 8 columns. Their columns are numbered so that of a row of results
// a thread has four that follow each other: column c of block b is output 4 * (c / 2) + 2 * b + c % 2.
template <typename scalar_t, int kSteps>
struct RightFactor {
  uint32_t blocks[kSteps][2][2];

  // `taps` has zeros before and after it; sample `early` is that of the first output's first tap.
  __device__ void load(const float* taps, int early) {
    const int lane = threadIdx.x % 32, column = lane / 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * step + 8 * half + 2 * (lane % 4);
          const int output = 4 * (column / 2) + 2 * b + column % 2;
          const float* tap = taps + row - output - early;
          scalar_t pair[2] = {convert<scalar_t>(tap[0]), convert<scalar_t>(tap[1])};
          blocks[step][b][half] = *reinterpret_cast<const uint32_t*>(pair);
        }
      }
    }
  }
};

template <typename scalar_t, int kSteps>
__global__ void __launch_bounds__(32 * kTileWarps, kTensorMinBlocks)
    conv1d_tensor_cores_kernel(const __grid_constant__ Conv1dTiles p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t stretch = stretch_of(threadIdx.x);
  if (stretch >= p.all_tiles) return;
  const Conv1dTile<scalar_t, 1, true, kTensorAlignBytes> tile(p, shared, stretch);
  if (!tile.exists) return;
  tile.template stage<kTensorLoads, kTensorTapsBefore>();
  const int lane = tile.lane;
  const float bias = tile.bias(0);
  const float* const taps = tile.taps + kTensorTapsBefore;
  RightFactor<scalar_t, kSteps> right;
  right.load(taps, tile.early);

  const scalar_t* row_of_left = tile.samples + kTensorRow * (lane % 16) + lane / 16 * 8;  // that this thread points to
  for (int outputs = 0; outputs < p.tile_outputs; outputs += kTensorOutputs) {
    if (tile.first + outputs >= p.out_length) return;
    float sums[2][4] = {{bias, bias, bias, bias}, {bias, bias, bias, bias}};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t left[4];
      load_matrices(left, row_of_left + outputs + kTensorRow * step);
#pragma unroll
      for (int b = 0; b < 2; ++b) multiply<scalar_t>(sums[b], left, right.blocks[step][b]);
    }
    const float any =
        (sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]) + ((sums[1][0] + sums[1][1]) + (sums[1][2] + sums[1][3]));
    const bool again = __any_sync(0xffffffff, any != any);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = outputs + kTensorRow * (lane / 4 + 8 * half) + 4 * (lane % 4);
      float results[4] = {sums[0][2 * half], sums[0][2 * half + 1], sums[1][2 * half], sums[1][2 * half + 1]};
      if (again) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          results[i] = bias;
#pragma unroll 1
          for (int tap = 0; tap < p.taps; ++tap) {
            results[i] += taps[tap] * convert<float>(tile.samples[at + i + tile.early + tap]);
          }
        }
      }
      store_outputs(tile.output, p.out_length, tile.first + at, results);
    }
  }
}

}  // namespace cudamem
