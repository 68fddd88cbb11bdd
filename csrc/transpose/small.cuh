// The `small` transpose: the padded tile of transpose.cuh for mid-sized matrices of any strides. An access moves one
// element, but indices have 32 bits, all loads of a thread are in flight at once, and the grid holds row tile, column
// tile and plane: it is done before larger tiles have found their edges.
//
// Bank conflicts: none for 4-byte elements, whose rows are an odd number of words apart.
#pragma once

#include "common/device.cuh"
#include "common/divisor.h"

namespace cudamem {

constexpr int kSmallThreads = 256;
constexpr int kSmallBatchDims = 4;

struct SmallProblem {
  const void* input;
  void* output;
  uint32_t rows, cols;
  uint32_t in_row_stride, in_col_stride, out_col_stride;  // in elements
  int batch_dims;
  struct Dim {
    Divisor size;
    uint32_t in_stride, out_stride;
  } batch[kSmallBatchDims];  // innermost first
};

template <int kBytes, int kRows, int kCols>
__global__ void __launch_bounds__(kSmallThreads) transpose_small_kernel(const __grid_constant__ SmallProblem p) {
  using element_t = BitsOf<kBytes>;
  constexpr int kLoads = kRows * kCols / kSmallThreads;
  constexpr int kRowStep = kSmallThreads / kCols, kColStep = kSmallThreads / kRows;
  __shared__ element_t tile[kRows][kCols + 1];

  uint32_t plane = blockIdx.z, in_base = 0, out_base = 0;
#pragma unroll
  for (int d = 0; d < kSmallBatchDims; ++d) {
    if (d >= p.batch_dims) break;
    uint32_t here = plane;
    plane = p.batch[d].size.divide(here);
    in_base += here * p.batch[d].in_stride;
    out_base += here * p.batch[d].out_stride;
  }
  const uint32_t first_row = blockIdx.x * kRows, first_col = blockIdx.y * kCols;
  {
    const uint32_t col = threadIdx.x % kCols, row = threadIdx.x / kCols;
    const uint32_t from = in_base + (first_row + row) * p.in_row_stride + (first_col + col) * p.in_col_stride;
    const element_t* in = static_cast<const element_t*>(p.input);
    element_t value[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (first_col + col < p.cols && first_row + row + k * kRowStep < p.rows) {
        value[k] = in[from + k * kRowStep * p.in_row_stride];
      }
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) tile[row + k * kRowStep][col] = value[k];
  }
  __syncthreads();
  {
    const uint32_t row = threadIdx.x % kRows, col = threadIdx.x / kRows;
    const uint32_t to = out_base + (first_col + col) * p.out_col_stride + first_row + row;
    element_t* out = static_cast<element_t*>(p.output);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (first_row + row < p.rows && first_col + col + k * kColStep < p.cols) {
        out[to + k * kColStep * p.out_col_stride] = tile[row][col + k * kColStep];
      }
    }
  }
}

}  // namespace cudamem
