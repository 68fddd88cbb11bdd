// The `swizzled` transpose: 16 bytes an access, both ways.
//
// A thread loads a block of V x V elements (V = 16 bytes / element) as V vectors, one of each of V rows, and
// transposes it in registers: now it holds V vectors that run along the output's rows. Neighbouring threads hold
// neighbouring columns, so the blocks still have to change hands before they are stored: whole vectors through
// shared memory.
//
// Bank conflicts: eight threads move 128 bytes, all banks, in one cycle where their vectors differ in index mod 8.
//                 The vector of block (row, col) is put at index col * block_rows + (row XOR col), so that threads
//                 that run along a row and threads that run along a column both meet eight different ones: none.
// Registers:      1-byte elements hold 64 words before and 64 after; shared memory holds at most eight of a thread's
//                 vectors at a time.
#pragma once

#include "transpose/tiles.cuh"

namespace cudamem {

template <int kElementBytes>
struct SwizzledPolicy {
  static constexpr int kBytes = kElementBytes;
  static constexpr int V = 16 / kBytes;
  static constexpr int kThreads = 256;
  static constexpr int kDepth = kBytes == 16 ? 2 : 1;  // blocks of a thread, one below the other
  static constexpr int kVectors = V * kDepth;
  static constexpr int kRound = kVectors < 8 ? kVectors : 8;  // vectors of a thread in shared memory
};

struct SwizzledProblem {
  const char* input;
  char* output;
  int64_t rows, cols;                   // multiples of V
  int64_t in_row_bytes, out_col_bytes;  // multiples of 16, as are the batch's strides
  TileGrid tiles;
  int block_rows_log2, block_cols_log2;  // of one plane's tile, in blocks of V x V
  int planes_per_block;
  int threads;
  TransposeBatch batch;  // strides in bytes
};

// in[row] is a row's 16 bytes; out[col] gets a column's.
template <int kBytes>
__device__ inline void transpose_in_registers(const uint4 (&in)[16 / kBytes], uint4 (&out)[16 / kBytes]) {
  constexpr int V = 16 / kBytes;
  const uint32_t (&a)[V][4] = reinterpret_cast<const uint32_t (&)[V][4]>(in);
  uint32_t (&b)[V][4] = reinterpret_cast<uint32_t (&)[V][4]>(out);
  if constexpr (kBytes == 1) {
    for (int row = 0; row < V; row += 4) {
      for (int word = 0; word < 4; ++word) {  // 4 x 4 bytes: pairs of rows interleave, then pairs of pairs
        const uint32_t low01 = __byte_perm(a[row][word], a[row + 1][word], 0x5140);
        const uint32_t low23 = __byte_perm(a[row + 2][word], a[row + 3][word], 0x5140);
        const uint32_t high01 = __byte_perm(a[row][word], a[row + 1][word], 0x7362);
        const uint32_t high23 = __byte_perm(a[row + 2][word], a[row + 3][word], 0x7362);
        b[4 * word][row / 4] = __byte_perm(low01, low23, 0x5410);
        b[4 * word + 1][row / 4] = __byte_perm(low01, low23, 0x7632);
        b[4 * word + 2][row / 4] = __byte_perm(high01, high23, 0x5410);
        b[4 * word + 3][row / 4] = __byte_perm(high01, high23, 0x7632);
      }
    }
  } else if constexpr (kBytes == 2) {
    for (int row = 0; row < V; row += 2) {
      for (int word = 0; word < 4; ++word) {
        b[2 * word][row / 2] = __byte_perm(a[row][word], a[row + 1][word], 0x5410);
        b[2 * word + 1][row / 2] = __byte_perm(a[row][word], a[row + 1][word], 0x7632);
      }
    }
  } else {
    constexpr int kWords = kBytes / 4;
    for (int row = 0; row < V; ++row) {
      for (int col = 0; col < V; ++col) {
        for (int word = 0; word < kWords; ++word) b[col][row * kWords + word] = a[row][col * kWords + word];
      }
    }
  }
}

template <int kBytes>
__global__ void __launch_bounds__(SwizzledPolicy<kBytes>::kThreads, kBytes != 2      ? 1
                                                                    : kHopperOrNewer ? 4
                                                                                     : 3)
    transpose_swizzled_kernel(const __grid_constant__ SwizzledProblem p) {
  using Policy = SwizzledPolicy<kBytes>;
  constexpr int V = Policy::V, kDepth = Policy::kDepth, kRound = Policy::kRound;
  __shared__ uint4 exchange[kRound][Policy::kThreads];

  uint32_t row_tile, col_tile, plane;
  p.tiles.place(row_tile, col_tile, plane);
  const int rows_log2 = p.block_rows_log2, cols_log2 = p.block_cols_log2;
  const int block_rows = 1 << rows_log2, block_cols = 1 << cols_log2;
  const int member = static_cast<int>(threadIdx.x) >> (rows_log2 + cols_log2);  // of the planes of this thread block
  plane = plane * p.planes_per_block + member;
  const bool exists = plane < p.batch.size;
  int64_t in_base, out_base;
  p.batch.offsets(plane, in_base, out_base);
  const int64_t first_row = static_cast<int64_t>(row_tile) * (V * kDepth << rows_log2);
  const int64_t first_col = static_cast<int64_t>(col_tile) * (V << cols_log2);

  // Neighbours run along the input's rows.
  const int along = threadIdx.x & (block_cols - 1), across = (threadIdx.x >> cols_log2) & (block_rows - 1);
  uint4 in[kDepth][V];
  {
    const int64_t row = first_row + across * V, col = first_col + along * V;
    const char* from = p.input + in_base + row * p.in_row_bytes + col * kBytes;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (exists && col < p.cols && row + d * V * block_rows < p.rows) {
#pragma unroll
        for (int v = 0; v < V; ++v) in[d][v] = *reinterpret_cast<const uint4*>(from + v * p.in_row_bytes);
      }
      from += V * block_rows * p.in_row_bytes;
    }
  }
  uint4 out[kDepth][V];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) transpose_in_registers<kBytes>(in[d], out[d]);

  // Neighbours turn to run along the output's rows.
  const int down = threadIdx.x & (block_rows - 1), aside = (threadIdx.x >> rows_log2) & (block_cols - 1);
  const int group = member << (rows_log2 + cols_log2);
  const int put = group + (along << rows_log2) + (across ^ (along & (block_rows - 1)));
  const int get = group + (aside << rows_log2) + (down ^ (aside & (block_rows - 1)));
  const int64_t row = first_row + down * V, col = first_col + aside * V;
  char* to = p.output + out_base + col * p.out_col_bytes + row * kBytes;
#pragma unroll
  for (int round = 0; round < Policy::kVectors; round += kRound) {
    if (round > 0) __syncthreads();
#pragma unroll
    for (int v = 0; v < kRound; ++v) exchange[v][put] = out[(round + v) / V][(round + v) % V];
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kRound; ++v) {
      const int d = (round + v) / V;
      if (exists && col < p.cols && row + d * V * block_rows < p.rows) {
        *reinterpret_cast<uint4*>(to + (round + v) % V * p.out_col_bytes + d * 16 * block_rows) = exchange[v][get];
      }
    }
  }
}

}  // namespace cudamem
