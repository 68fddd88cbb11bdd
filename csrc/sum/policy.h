// The numbers that the policy chooses by. Measured on an H200; `README.md` has the figures.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cudamem {

// The textbook kernels: a thread adds so many elements before it meets the others.
constexpr int kTextbookThreads = 256;
constexpr int kTextbookItems = 16;
constexpr int kTextbookChunk = kTextbookThreads * kTextbookItems;

constexpr int kMaxSumThreads = 512;  // rows of several runs
constexpr int kLongThreads = 256;    // rows of which a block has one
constexpr int kWholeThreads = 512;   // of a block that shares all elements with others
constexpr int kWarpLoads = 8;        // vectors of a thread under way at once, where such a block is a warp
constexpr int kRowLoads = 4;         // vectors of a thread under way at once
constexpr int kGroupThreads = 256;   // of a block with several rows
constexpr int kPackedThreads = 256;
constexpr int kPackedLoads = 4;  // vectors of a thread; 2 in 512 threads are 3% slower for float16
constexpr int kFewRowsThreads = 256;
constexpr int kFinishThreads = 256;
constexpr int kStageThreads = 256;
constexpr int kSmallThreads = 128;       // of a block with several outputs, each of a few neighbours
constexpr int kSmallBlockThreads = 512;  // at most, of one that shares an output or 32
constexpr int kStageBytes = 16384;
constexpr int kStridedThreads = 256;
constexpr int kStridedLoads = 8;
constexpr int kColumnTileBytes = 32768;  // of shared memory, for the sums of a block's columns
template <int kElemBytes>
constexpr int kColumnThreads = kElemBytes == 1 ? 256 : 512;
static_assert(kColumnThreads<1> * 16 * sizeof(int64_t) <= kColumnTileBytes);
static_assert(kColumnThreads<2> * 8 * sizeof(int64_t) <= kColumnTileBytes);

constexpr int kMaxPieces = 65535;     // a grid's limit in y
constexpr int kSumLetters = 1 << 19;  // 64-bit words, 4 MB
constexpr int kStreamLetters = 2048;  // of each stream
constexpr size_t kMaxStreams = 64;    // that have letters; what is left is for captured graphs

struct SumPolicy {
  // Rows. Vectors are of 16 bytes.
  int64_t packed_bytes = 512;            // rows of a power of two of bytes up to this are packed
  int64_t short_bytes = 16384;           // rows up to this are staged, 16 KB of them a block: where all rows together
  int64_t few_bytes = 1 << 22;           // have at least this. Else that would leave multiprocessors idle: then only
  int64_t short_of_few_bytes = 512;      // rows up to this are staged
  int64_t short_lane_elems = 32;         // a thread adds at most so many elements of a short row, if a warp can
  int64_t once_elems = 64;               // rows of fewer elements are loaded through L1, since much is written beside
  int64_t lane_vectors = 8;              // a thread's part of a row that less than a warp has
  int64_t warp_vectors = 2048;           // rows up to this are a warp's, where they are many
  int64_t few_threads = 65536;           // with fewer threads than this, each has less
  int64_t runs_thread_vectors = 64;      // a thread's part of many runs that a block has
  int64_t single_vectors = 4096;         // up to this, one block is faster than several that meet
  int64_t whole_warp_vectors = 256;      // all elements: up to so many, one warp is faster than more that meet,
  int64_t whole_block_vectors = 2048;    // and one block up to so many. More are shared by
  int64_t whole_warps = 128;             // so many warps, if they are enough, by blocks that all run at once or, from
  int64_t whole_many_vectors = 1 << 26;  // so many on, by twice as many
  int64_t run_vectors = 4;               // a thread's part of one of several runs

  // Small sums.
  int64_t small_lane_elems = 4;       // a thread's part of an output that less than a block has
  int64_t small_threads = 1 << 18;    // with more threads than this, each has more
  int64_t small_side_by_side = 2048;  // from so many outputs on, a block's warps share 32 of them
  int64_t small_length = 8192;        // of an output at most, and elements in all at most:
  int64_t small_whole = 128;          // of one row,
  int64_t small_rows = 3 << 18;       // of rows,
  int64_t small_runs = 1 << 19;       // of rows of several runs,
  int64_t small_columns = 1 << 18;    // of columns,
  int64_t small_wide = 1 << 20;       // of many columns of at most
  int64_t small_wide_rows = 256;      // so many rows
  int64_t small_odd_rows = 64;        // of columns whose vectors are not aligned: any number, of at most so many rows,
  int64_t small_odd_outputs = 1 << 15;  // from so many outputs on;
  int64_t small_apart_rows = 128;       // of columns whose elements are apart: the same
  int64_t small_apart_outputs = 1 << 13;

  // Columns.
  int64_t few_rows = 1 << 15;         // up to so many, a thread sees a whole column, if there are
  int64_t few_rows_threads = 131072;  // so many threads
  int64_t across = 32;                // vectors side by side in a block, halved down to
  int64_t least_across = 8;           // this where there are few blocks
  int64_t rows_per_thread = 4;        // at least
  int64_t piece_rows = 16;            // of a thread at least, where blocks share columns
};

}  // namespace cudamem
