// The `general` transpose: what the others leave, which is other strides than 1 along the input's fastest dim, and
// small dims. A tile's sides run over as many dims as it takes to fill them: the input's offset of each row and the
// output's offset of each column are divided out once a block, into tables.
#pragma once

#include "transpose/tiles.cuh"

namespace cudamem {

// Tall tiles have 8 columns, wide ones 8 rows.
enum class TileShape { kSquare, kTall, kWide };

constexpr int kGeneralThreads = 512;

template <int kElementBytes, TileShape kShape>
struct GeneralPolicy {
  static constexpr int kBytes = kElementBytes;
  static constexpr int kThreads = kGeneralThreads;
  static constexpr int kElems = kBytes < 4 ? 8192 : 16384 / kBytes;  // of the square tile
  static constexpr int kLong = kBytes <= 4 ? kThreads : 2048 / kBytes;
  static constexpr int kCols = kShape == TileShape::kTall   ? 8
                               : kShape == TileShape::kWide ? kLong
                               : kBytes < 8                 ? 64
                                                            : 32;
  static constexpr int kRows = kShape == TileShape::kTall ? kLong : kShape == TileShape::kWide ? 8 : kElems / kCols;
  static constexpr int kHalo = kShape == TileShape::kWide ? 0 : 32 / kBytes - 1;  // as in aligned.cuh
  static constexpr int kRowsPerPass = kThreads / kCols, kColsPerPass = kThreads / kRows;
  static constexpr int kLoads = (kRows + kHalo + kRowsPerPass - 1) / kRowsPerPass;
  static constexpr int kPitch = kCols + (kShape == TileShape::kWide ? 4 : 1);  // few bank conflicts
};

struct GeneralProblem {
  const void* input;
  void* output;
  TileGrid tiles;
  DividedDims<4> rows, cols;  // strides in elements
  TransposeBatch batch;
};

template <int kBytes, TileShape kShape>
__global__ void __launch_bounds__(GeneralPolicy<kBytes, kShape>::kThreads, kHopperOrNewer ? 3 : 2)
    transpose_general_kernel(const __grid_constant__ GeneralProblem p) {
  using Policy = GeneralPolicy<kBytes, kShape>;
  using element_t = BitsOf<kBytes>;
  constexpr int kRows = Policy::kRows, kCols = Policy::kCols, kHalo = Policy::kHalo;
  __shared__ element_t tile[(kRows + kHalo) * Policy::kPitch];
  __shared__ int64_t row_in[kRows + kHalo], col_in[kCols], col_out[kCols];

  uint32_t row_tile, col_tile, plane;
  p.tiles.place(row_tile, col_tile, plane);
  // The tile holds rows [first_row, first_row + kHalo + kRows) and columns [first_col, first_col + kCols).
  const int first_row = static_cast<int>(row_tile) * kRows - kHalo, first_col = static_cast<int>(col_tile) * kCols;
  const int row_begin = max(0, -first_row);
  const int row_end = min(static_cast<int>(p.rows.size) - first_row, kRows + kHalo);
  const int col_count = min(static_cast<int>(p.cols.size) - first_col, kCols);
  int64_t in_base, out_base, unused;
  p.batch.offsets(plane, in_base, out_base);
  for (int i = threadIdx.x + row_begin; i < row_end; i += Policy::kThreads) {
    p.rows.offsets(first_row + i, row_in[i], unused);
  }
  for (int i = threadIdx.x; i < col_count; i += Policy::kThreads) {
    p.cols.offsets(first_col + i, col_in[i], col_out[i]);
  }
  __syncthreads();

  {  // Threads run along the columns, then down the rows.
    const int col = threadIdx.x % kCols, first = threadIdx.x / kCols;
    const int end = col < col_count ? row_end : 0;
    const element_t* in = static_cast<const element_t*>(p.input) + in_base + (col < col_count ? col_in[col] : 0);
    element_t value[Policy::kLoads];
#pragma unroll
    for (int k = 0; k < Policy::kLoads; ++k) {
      const int row = first + k * Policy::kRowsPerPass;
      if (row >= row_begin && row < end) value[k] = in[row_in[row]];
    }
    __syncwarp();  // every load is issued before the first is waited for
#pragma unroll
    for (int k = 0; k < Policy::kLoads; ++k) {
      const int row = first + k * Policy::kRowsPerPass;
      if (row < kRows + kHalo) tile[row * Policy::kPitch + col] = value[k];
    }
  }
  __syncthreads();
  {  // Threads run down the rows, then along the columns.
    const int row = threadIdx.x % kRows + kHalo, first = threadIdx.x / kRows;
    element_t* out = static_cast<element_t*>(p.output) + out_base + first_row;
#pragma unroll
    for (int k = 0; k < kCols / Policy::kColsPerPass; ++k) {
      const int col = first + k * Policy::kColsPerPass;
      if (col < col_count) {
        const int64_t offset = col_out[col];
        const int tile_row = row - static_cast<int>(static_cast<uint32_t>(out_base + offset) & kHalo);
        if (tile_row >= row_begin && tile_row < row_end) {
          out[offset + tile_row] = tile[tile_row * Policy::kPitch + col];
        }
      }
    }
  }
}

}  // namespace cudamem
