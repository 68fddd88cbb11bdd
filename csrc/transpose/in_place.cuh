// The transpose in place: two tiles that face each other across the diagonal change places. Each is read completely
// before either is written, so that no second matrix is needed: 2 * elements * element_bytes, as out of place.
#pragma once

#include "common/device.cuh"
#include "transpose/transpose.h"

namespace cudamem {

constexpr int kInPlaceTile = 32, kInPlaceBlockRows = 8;

template <int kBytes>
__global__ void __launch_bounds__(kInPlaceTile* kInPlaceBlockRows)
    transpose_in_place_kernel(const __grid_constant__ TransposeInPlaceProblem p) {
  using element_t = BitsOf<kBytes>;
  __shared__ element_t upper[kInPlaceTile][kInPlaceTile + 1], lower[kInPlaceTile][kInPlaceTile + 1];
  const int64_t tiles = ceil_div<int64_t>(p.size, kInPlaceTile);
  const int64_t block = block_index();
  const int64_t band = quotient(block, tiles), plane = quotient(band, tiles);
  const int64_t tile_row = band - plane * tiles, tile_col = block - band * tiles;
  if (plane >= p.planes || tile_row > tile_col) return;  // the pair belongs to the block above the diagonal
  int64_t base[1];
  p.batch.offsets(plane, base);
  element_t* data = static_cast<element_t*>(p.data) + base[0];
  const bool pair = tile_row != tile_col;

  auto for_each = [&](int64_t first_row, int64_t first_col, auto&& visit) {
    for (int y = threadIdx.y; y < kInPlaceTile; y += kInPlaceBlockRows) {
      const int64_t row = first_row * kInPlaceTile + y, col = first_col * kInPlaceTile + threadIdx.x;
      if (row < p.size && col < p.size) visit(y, threadIdx.x, data[row * p.row_stride + col * p.col_stride]);
    }
  };
  for_each(tile_row, tile_col, [&](int y, int x, element_t& element) { upper[y][x] = element; });
  if (pair) for_each(tile_col, tile_row, [&](int y, int x, element_t& element) { lower[y][x] = element; });
  __syncthreads();
  for_each(tile_row, tile_col, [&](int y, int x, element_t& element) { element = (pair ? lower : upper)[x][y]; });
  if (pair) for_each(tile_col, tile_row, [&](int y, int x, element_t& element) { element = upper[x][y]; });
}

}  // namespace cudamem
