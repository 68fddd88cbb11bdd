// Transpose: a matrix leaves memory along its rows and must return along its columns.
//
// Traffic: each element is read once and written once, 2 * elements * element_bytes; nothing is computed.
// Hazard:  a warp's 32 accesses are one transaction only where they are neighbours. Read along the input's fast
//          dim and the writes are `rows` elements apart, each in a 32-byte sector of its own (and the reverse).
//          The cure is a square tile in shared memory, written by rows and read by columns.
//
// The kernels below share their geometry (a 32 x 32 tile, 32 x 8 threads, four elements a thread), so that they
// differ in the technique alone:
//   naive   no tile: coalesced reads, scattered writes
//   shared  the tile: coalesced both ways, but its columns lie in one bank: 32-way conflicts for 4-byte elements
//   padded  one more column: neighbours in a column are 33 words apart, in 32 different banks
// Source: M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA Developer Blog, 2013.
#pragma once

#include "common/device.cuh"
#include "transpose/transpose.h"

namespace cudamem {

constexpr int kTransposeTile = 32;      // one warp wide, and shared memory's number of banks
constexpr int kTransposeBlockRows = 8;  // 256 threads: four elements each
constexpr int kTransposeBlockThreads = kTransposeTile * kTransposeBlockRows;

// Where this block's tile lies. Blocks walk the columns first, then the rows, then the planes.
struct TransposeTile {
  int64_t row, col;           // the tile's first element in its plane
  int64_t in_base, out_base;  // the plane's first element
  bool exists;                // the grid may be a little larger than the work

  __device__ explicit TransposeTile(const TransposeProblem& p) {
    const int64_t col_tiles = ceil_div<int64_t>(p.cols, kTransposeTile);
    const int64_t row_tiles = ceil_div<int64_t>(p.rows, kTransposeTile);
    const int64_t block = block_index();
    const int64_t band = quotient(block, col_tiles);
    const int64_t plane = quotient(band, row_tiles);
    col = (block - band * col_tiles) * kTransposeTile;
    row = (band - plane * row_tiles) * kTransposeTile;
    int64_t base[2];
    p.batch.offsets(plane, base);
    in_base = base[0];
    out_base = base[1];
    exists = plane < p.planes;
  }
};

template <typename element_t>
__global__ void __launch_bounds__(kTransposeBlockThreads)
    transpose_naive_kernel(const __grid_constant__ TransposeProblem p) {
  const TransposeTile tile(p);
  if (!tile.exists) return;
  const element_t* in = static_cast<const element_t*>(p.input) + tile.in_base;  // [rows, cols]
  element_t* out = static_cast<element_t*>(p.output) + tile.out_base;           // [cols, rows]

  const int64_t col = tile.col + threadIdx.x;
  for (int y = threadIdx.y; y < kTransposeTile; y += kTransposeBlockRows) {
    const int64_t row = tile.row + y;
    if (row < p.rows && col < p.cols) {
      out[row * p.out_row_stride + col * p.out_col_stride] = in[row * p.in_row_stride + col * p.in_col_stride];
    }
  }
}

// kPadding 0 is the `shared` variant, kPadding 1 the `padded` one.
template <typename element_t, int kPadding>
__global__ void __launch_bounds__(kTransposeBlockThreads)
    transpose_tiled_kernel(const __grid_constant__ TransposeProblem p) {
  __shared__ element_t exchange[kTransposeTile][kTransposeTile + kPadding];
  const TransposeTile tile(p);
  if (!tile.exists) return;
  const element_t* in = static_cast<const element_t*>(p.input) + tile.in_base;  // [rows, cols]
  element_t* out = static_cast<element_t*>(p.output) + tile.out_base;           // [cols, rows]

  for (int y = threadIdx.y; y < kTransposeTile; y += kTransposeBlockRows) {
    const int64_t row = tile.row + y, col = tile.col + threadIdx.x;
    if (row < p.rows && col < p.cols) {
      exchange[y][threadIdx.x] = in[row * p.in_row_stride + col * p.in_col_stride];
    }
  }
  __syncthreads();
  // The threads turn: threadIdx.x now follows the output's fast dim, and so walks down a column of the tile.
  for (int y = threadIdx.y; y < kTransposeTile; y += kTransposeBlockRows) {
    const int64_t row = tile.row + threadIdx.x, col = tile.col + y;
    if (row < p.rows && col < p.cols) {
      out[row * p.out_row_stride + col * p.out_col_stride] = exchange[threadIdx.x][y];
    }
  }
}

}  // namespace cudamem
