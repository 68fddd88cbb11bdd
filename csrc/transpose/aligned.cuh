// The `aligned` transpose: any size and alignment, and still whole sectors.
//
// Memory moves in sectors of 32 bytes. Where the output's pitch is no multiple of that, each output row starts at
// another place within a sector, and a tile with straight edges writes two partial sectors a row. So the tile's edge
// follows the sectors: each output row's piece is shifted back to its own sector boundary. The tile reads up to a
// sector's elements more rows than it writes, which L2 has.
//
// 1- and 2-byte elements move four bytes an access. A warp loads 32 words of a row from the row's own word boundary and
// puts them into shared memory at an address that is equal to theirs mod 4, which works for all rows at once where the
// tile's pitch is equal to the input's mod 4. A thread then picks four bytes of a column and stores them as one word.
//
// Bank conflicts: threads run down a column, a pitch (or four bytes' worth of rows) apart. An odd number of words:
// none. A pitch that has to be equal to the input's mod 4 may be another: 2-way for 2-byte elements, up to 4-way for
// 1-byte ones.
#pragma once

#include "transpose/tiles.cuh"

namespace cudamem {

template <int kElementBytes>
struct AlignedPolicy {
  static constexpr int kBytes = kElementBytes;
  static constexpr int kThreads = 512;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPerWord = kBytes < 4 ? 4 / kBytes : 1;  // elements of an access
  static constexpr int kHalo = 32 / kBytes - 1;                 // a sector's elements - 1
  static constexpr int kRowsPerLane = kBytes < 4 ? 4 : 2;
  static constexpr int kRows = 32 * kRowsPerLane;                               // written
  static constexpr int kWordsPerLane = kBytes == 4 ? 2 : 1;                     // of a row
  static constexpr int kCols = kBytes < 4 ? 124 / kBytes : 32 * kWordsPerLane;  // one of 32 words for the phase
  static constexpr int kLoads = (kRows + kHalo + kWarps - 1) / kWarps;          // rows of a warp
  static constexpr int kStores = (kCols + kWarps - 1) / kWarps;                 // columns of a warp
  static constexpr int kPitch = kBytes < 4 ? 140 : (kCols + 1) * kBytes;        // in bytes
  static constexpr int kMinBlocks = kBytes == 1 ? 3 : 4;  // a multiprocessor; more than 3 and bytes spill registers
  static constexpr int kTileBytes = kLoads * kWarps * (kPitch + (kBytes < 4 ? 3 : 0)) + 16;
};

struct AlignedProblem {
  const char* input;
  char* output;
  int64_t rows, cols;
  int64_t in_row_bytes, out_col_bytes;
  TileGrid tiles;
  int pitch;             // of the tile in shared memory, in bytes
  TransposeBatch batch;  // strides in bytes
};

template <int kBytes>
__global__ void __launch_bounds__(AlignedPolicy<kBytes>::kThreads, AlignedPolicy<kBytes>::kMinBlocks)
    transpose_aligned_kernel(const __grid_constant__ AlignedProblem p) {
  using Policy = AlignedPolicy<kBytes>;
  using element_t = BitsOf<kBytes>;
  using word_t = BitsOf<(kBytes < 4 ? 4 : kBytes)>;
  constexpr int kWarps = Policy::kWarps, kPerWord = Policy::kPerWord, kHalo = Policy::kHalo;
  __shared__ __align__(16) char tile[Policy::kTileBytes];

  uint32_t row_tile, col_tile, plane;
  p.tiles.place(row_tile, col_tile, plane);
  int64_t in_base, out_base;
  p.batch.offsets(plane, in_base, out_base);
  // The tile holds rows [first_row, first_row + kHalo + kRows) and columns [first_col, first_col + kCols).
  const int64_t first_row = static_cast<int64_t>(row_tile) * Policy::kRows - kHalo;
  const int64_t first_col = static_cast<int64_t>(col_tile) * Policy::kCols;
  const int row_begin = first_row < 0 ? kHalo : 0;
  const int row_end = static_cast<int>(min(p.rows - first_row, int64_t{Policy::kRows + kHalo}));
  const int col_count = static_cast<int>(min(p.cols - first_col, int64_t{Policy::kCols + kPerWord}));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const char* in = p.input + in_base + first_row * p.in_row_bytes + first_col * kBytes;
  const int phase = kBytes < 4 ? static_cast<int>(reinterpret_cast<uintptr_t>(in) % 4) : 0;  // of element (0, 0)
  const int pitch = kBytes < 4 ? p.pitch : Policy::kPitch;

  auto move = [&](auto is_inside) {  // inside of the matrix nothing has to be compared
    constexpr bool kInside = decltype(is_inside)::value;
    {
      const int start = phase + warp * pitch;  // mod 4 the same for all rows of this warp
      const int byte = lane * static_cast<int>(sizeof(word_t)) - start % 4 * (kBytes < 4);  // from element (row, 0)
      const char* from = in + warp * p.in_row_bytes + byte;
      const int64_t step = kWarps * p.in_row_bytes;
      word_t word[Policy::kLoads][Policy::kWordsPerLane];
#pragma unroll
      for (int k = 0; k < Policy::kLoads; ++k) {
        const int row = warp + k * kWarps;
#pragma unroll
        for (int w = 0; w < Policy::kWordsPerLane; ++w) {
          if (kInside ? row < Policy::kRows + kHalo : row >= row_begin && row < row_end) {
            const int end = col_count * kBytes - byte - 32 * w * static_cast<int>(sizeof(word_t));
            if (kInside || end >= static_cast<int>(sizeof(word_t))) {
              word[k][w] = reinterpret_cast<const word_t*>(from)[32 * w];
            } else if (kBytes < 4 && end > 0) {  // beyond the row's end may be beyond the memory
              word[k][w] = {};
              for (int b = 0; b < end; b += kBytes) {
                if constexpr (kBytes < 4) {
                  if (byte + b >= 0) {
                    word[k][w] |= static_cast<word_t>(*reinterpret_cast<const element_t*>(from + b)) << (8 * b);
                  }
                }
              }
            }
          }
        }
        from += step;
      }
      __syncwarp();  // every load is issued before the first is waited for
      char* to = tile + start / 4 * 4 + lane * sizeof(word_t);
#pragma unroll
      for (int k = 0; k < Policy::kLoads; ++k) {
#pragma unroll
        for (int w = 0; w < Policy::kWordsPerLane; ++w) {
          reinterpret_cast<word_t*>(to + k * kWarps * pitch)[32 * w] = word[k][w];
        }
      }
    }
    __syncthreads();
    // A warp stores a column's rows, kPerWord of them a thread.
    char* to = p.output + out_base + (first_col + warp) * p.out_col_bytes + first_row * kBytes;
    const int64_t step = kWarps * p.out_col_bytes;
    uint32_t out_phase = static_cast<uint32_t>(out_base + (first_col + warp) * p.out_col_bytes);
#pragma unroll
    for (int k = 0; k < Policy::kStores; ++k) {
      const int col = warp + k * kWarps;
      if (col < (kInside ? Policy::kCols : min(col_count, Policy::kCols))) {
        const int first = lane * kPerWord + kHalo - static_cast<int>(out_phase % 32 / kBytes);
        const char* from = tile + phase + first * pitch + col * kBytes;
#pragma unroll
        for (int r = 0; r < Policy::kRowsPerLane / kPerWord; ++r) {
          const int row = first + 32 * kPerWord * r;
          if constexpr (kPerWord == 1) {
            if (kInside || (row >= row_begin && row < row_end)) {
              reinterpret_cast<word_t*>(to)[row] = *reinterpret_cast<const word_t*>(from + 32 * r * pitch);
            }
          } else {
            word_t word = 0;
#pragma unroll
            for (int b = 0; b < kPerWord; ++b) {
              word |= static_cast<word_t>(*reinterpret_cast<const element_t*>(from + (32 * kPerWord * r + b) * pitch))
                      << (8 * kBytes * b);
            }
            if (kInside || (row >= row_begin && row + kPerWord <= row_end)) {
              *reinterpret_cast<word_t*>(to + row * kBytes) = word;
            } else {
              for (int b = 0; b < kPerWord; ++b) {
                if (row + b >= row_begin && row + b < row_end) {
                  reinterpret_cast<element_t*>(to)[row + b] = static_cast<element_t>(word >> (8 * kBytes * b));
                }
              }
            }
          }
        }
      }
      to += step;
      out_phase += static_cast<uint32_t>(step);
    }
  };
  if (row_begin == 0 && row_end == Policy::kRows + kHalo && col_count >= Policy::kCols + (kBytes < 4 ? kPerWord : 0)) {
    move(std::true_type());
  } else {
    move(std::false_type());
  }
}

}  // namespace cudamem
