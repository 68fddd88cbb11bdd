// Which tile a block moves. The grid holds (row tile, column tile, plane), so that no block divides; where a dim
// passes the grid's limits, all of them are in x.
#pragma once

#include "common/device.cuh"
#include "common/divisor.h"

namespace cudamem {

using TransposeBatch = DividedDims<4>;

constexpr int64_t kMaxGridYZ = 65535;

struct TileGrid {
  bool flat;
  Divisor row_tiles, col_tiles;
  dim3 grid;

  // Returns false where there are more tiles than a grid can hold.
  bool set(int64_t row_tile_count, int64_t col_tile_count, int64_t plane_count) {
    flat = col_tile_count > kMaxGridYZ || plane_count > kMaxGridYZ;
    const int64_t tiles = row_tile_count * col_tile_count * plane_count;
    if (tiles > kMaxDividend) return false;
    row_tiles = Divisor(row_tile_count);
    col_tiles = Divisor(col_tile_count);
    grid = flat ? dim3(static_cast<unsigned>(tiles))
                : dim3(static_cast<unsigned>(row_tile_count), static_cast<unsigned>(col_tile_count),
                       static_cast<unsigned>(plane_count));
    return true;
  }

  int64_t count() const { return int64_t{grid.x} * grid.y * grid.z; }

  // Consecutive blocks walk down the input's rows: their stores run on along an output row.
  __device__ void place(uint32_t& row_tile, uint32_t& col_tile, uint32_t& plane) const {
    row_tile = blockIdx.x;
    col_tile = blockIdx.y;
    plane = blockIdx.z;
    if (flat) {
      col_tile = row_tiles.divide(row_tile);
      plane = col_tiles.divide(col_tile);
    }
  }
};

}  // namespace cudamem
