// Outputs side by side in memory, each with elements far apart: a thread owns the columns of one 16-byte vector and
// walks down the rows; where there are few columns, threads share them by rows and meet in shared memory.
//
// Traffic: every element once.
// Hazard:  rows of odd length start at other places between two 16-byte boundaries. A thread therefore walks rows that
//          all start alike (every 2nd, 4th, 8th or 16th) and owns the columns of aligned vectors there; the sums are
//          shifted into place when the threads meet. Vectors then reach over both ends of a row, into its neighbours,
//          whose sums are dropped; not so in the first and the last, where no neighbour may exist.
#pragma once

#include "sum/split.cuh"

namespace cudamem {

// int64 sums of small integers start as int32: the launch bounds how many rows a thread adds.
template <typename in_t, typename acc_t>
using column_t = std::conditional_t<sizeof(in_t) <= 2 && std::is_same_v<acc_t, int64_t>, int32_t, acc_t>;

// How many rows are added at once.
template <typename in_t, typename acc_t>
constexpr int kColumnGroup = sizeof(in_t) == 1 && std::is_same_v<acc_t, int64_t> ? 4 : 1;

// Adds `count` rows of V columns.
template <typename in_t, int count, typename sum_t>
__device__ inline void add_columns(sum_t (&sums)[kElems<in_t>], const uint4 (&rows)[count]) {
  if constexpr (sizeof(in_t) == 1 && std::is_same_v<sum_t, int32_t>) {
    // Bytes are added as 16-bit halves of a word, two at once; signed ones 128 too large.
    constexpr uint32_t kBias = std::is_same_v<in_t, int8_t> ? 0x80808080u : 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t even = 0, odd = 0;
#pragma unroll
      for (int u = 0; u < count; ++u) {
        const Vector<in_t> v(rows[u]);
        const uint32_t word = std::is_same_v<in_t, Bool> ? true_bytes(v.words[w]) : v.words[w] ^ kBias;
        even += word & 0x00ff00ffu;
        odd += (word >> 8) & 0x00ff00ffu;
      }
      constexpr int kTooLarge = kBias != 0 ? 128 * count : 0;
      sums[4 * w] += static_cast<int>(even & 0xffffu) - kTooLarge;
      sums[4 * w + 1] += static_cast<int>(odd & 0xffffu) - kTooLarge;
      sums[4 * w + 2] += static_cast<int>(even >> 16) - kTooLarge;
      sums[4 * w + 3] += static_cast<int>(odd >> 16) - kTooLarge;
    }
  } else {
#pragma unroll
    for (int u = 0; u < count; ++u) {
      const Vector<in_t> v(rows[u]);
#pragma unroll
      for (int j = 0; j < kElems<in_t>; ++j) add(sums[j], v.elems[j]);
    }
  }
}

// Few rows, whole vectors, outputs side by side: a thread sees a column from end to end, and no block shares one.
// kLoads: rows that are under way at once.
template <typename in_t, typename acc_t, int kLoads>
__global__ void __launch_bounds__(kFewRowsThreads) sum_few_rows_kernel(const __grid_constant__ SumParams p) {
  constexpr int V = kElems<in_t>;
  const uint32_t vector = blockIdx.x * kFewRowsThreads + threadIdx.x;
  const bool active = vector < p.inner / V;
  int64_t in_offset, out_offset;
  p.kept.offsets(blockIdx.y, in_offset, out_offset);
  const in_t* in = static_cast<const in_t*>(p.input) + in_offset + int64_t{vector} * V;
  const int64_t stride = p.reduced.dims[0].in_stride;
  const int rows = static_cast<int>(p.reduced.size);
  column_t<in_t, acc_t> sums[V] = {};
  if (!active) return;
  const uint4* next = reinterpret_cast<const uint4*>(in);
  int left = rows;
  stream_items<kLoads, kColumnGroup<in_t, acc_t>>(
      rows,
      [&] {
        const uint4 row = load_or_zeros(next, left > 0);
        next = reinterpret_cast<const uint4*>(reinterpret_cast<const in_t*>(next) + stride);
        --left;
        return row;
      },
      [&](const auto& group) { add_columns<in_t>(sums, group); });
  acc_t totals[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if constexpr (kIsCompensated<acc_t>) {
      totals[j] = sums[j];
    } else {
      totals[j] = static_cast<acc_t>(sums[j]);
    }
  }
  store_many(p.output, out_offset + int64_t{vector} * V, totals, p.out_type);
}

// tile [rows, width]: the upper half of the rows is added to the lower until one is left. `rows` is a power of two.
template <typename acc_t>
__device__ inline void add_tile_rows(acc_t* tile, int rows, int width, int thread, int threads) {
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    for (int i = thread; i < half * width; i += threads) add(tile[i], tile[i + half * width]);
  }
  __syncthreads();
}

// The outputs of a group of blocks, and their partials [pieces, stride].
struct ColumnOutputs {
  int64_t offset;  // of the first, in the output
  int stride, count;

  __device__ explicit ColumnOutputs(const SumParams& p) {
    uint32_t window = blockIdx.x;
    int64_t unused;
    p.kept.offsets(p.windows.divide(window), unused, offset);
    const int64_t first = int64_t{window} * p.window;  // fold is 1 where there are several windows
    offset += first * p.inner_out_stride;
    stride = p.window / p.fold;
    count = static_cast<int>(min(int64_t{stride}, p.inner / p.fold - first));
  }

  template <typename acc_t>
  __device__ acc_t* partials(const SumParams& p) const {
    return static_cast<acc_t*>(p.split.partials) + int64_t{blockIdx.x} * p.split.pieces * stride;
  }

  template <typename acc_t>
  __device__ void store(const SumParams& p, int i, const acc_t& total) const {
    cudamem::store(p.output, offset + i * p.inner_out_stride, total, p.out_type);
  }

  // Adds up all partials: neighbouring threads take neighbouring outputs, and as many share one as there are threads.
  template <typename acc_t>
  __device__ void finish(const SumParams& p, acc_t* tile, int thread, int threads) const {
    int sharing = 1;
    while (2 * sharing * stride <= threads) sharing *= 2;
    const unsigned all = p.split.pieces * stride;
    for (int i = thread; i < sharing * stride; i += threads) {
      if (i % stride < count) tile[i] = add_partials(partials<acc_t>(p), i, all, sharing * stride);
    }
    add_tile_rows(tile, sharing, stride, thread, threads);
    for (int i = thread; i < count; i += threads) store(p, i, tile[i]);
  }
};

// kOneDim: the rows are one dim, else two. Launched with `across` x `down` threads, `down` a power of two.
template <typename in_t, typename acc_t, bool kOneDim>
__global__ void __launch_bounds__(kColumnThreads<sizeof(in_t)>,
                                  blocks_without_spills(sizeof(in_t) == 1                            ? kOneDim ? 4 : 3
                                                        : kIsCompensated<acc_t> && sizeof(in_t) == 2 ? 1
                                                                                                     : 2))
    sum_columns_kernel(const __grid_constant__ SumParams p) {
  constexpr int kLoads = 4, V = kElems<in_t>;
  using sum_t = column_t<in_t, acc_t>;
  uint32_t window = blockIdx.x;
  const uint32_t batch = p.windows.divide(window);
  int64_t in_offset, unused;
  p.kept.offsets(batch, in_offset, unused);
  const in_t* in = static_cast<const in_t*>(p.input) + in_offset;

  const int rows = static_cast<int>(p.reduced.size), step = blockDim.y;
  const int first = static_cast<int>(blockIdx.y * p.piece);
  const int end = static_cast<int>(min(first + p.piece, int64_t{rows}));
  // Row r; of two dims, `inner_size` rows lie a stride apart, and the next ones after them.
  const int inner_size = kOneDim ? 1 : static_cast<int>(p.reduced.dims[1].size.divisor);
  const int64_t outer_stride = p.reduced.dims[0].in_stride, stride = p.reduced.dims[kOneDim ? 0 : 1].in_stride;
  auto row = [&](int r) {
    return kOneDim ? in + r * stride : in + r / inner_size * outer_stride + r % inner_size * stride;
  };
  const int own = threadIdx.y;  // the thread's first row of the block's
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(row(first + own)) % 16 / sizeof(in_t));
  const int64_t from = int64_t{window} * p.window;                          // the block's first column
  const int64_t column = from + static_cast<int>(threadIdx.x * V) - shift;  // the thread's
  const bool guarded = p.guarded && (from == 0 || from + p.window + V > p.inner);
  const bool active = column < p.inner;
  sum_t sums[V] = {};
  const int last_row = rows - (p.last_inner < V ? 2 : 1);  // from here on, a vector may reach over the end of the last
  const int begin = guarded && first == 0 ? 1 : first, plain_end = guarded ? min(end, last_row) : end;
  if (guarded) {  // what lies outside of the rows is not read
    auto add_inside = [&](int edge) {
      if (edge < first || edge >= end || (edge - first) % step != own) return;
      const int64_t width = edge == rows - 1 ? p.last_inner : p.inner;
      const in_t* elements = row(edge) + column;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (column + j >= 0 && column + j < width) add(sums[j], elements[j]);
      }
    };
    add_inside(0);
    for (int edge = max(last_row, 1); edge < rows; ++edge) add_inside(edge);
  }
  int r = first + own;
  if (r < begin) r += step;
  if (active && r < plain_end) {
    const in_t* next = row(r) + column;
    int inner = r % inner_size;
    stream_items<kLoads, kColumnGroup<in_t, acc_t>>((plain_end - r + step - 1) / step,
                                                    [&] {
                                                      const uint4 vector = load_or_zeros(
                                                          reinterpret_cast<const uint4*>(next), r < plain_end);
                                                      r += step;
                                                      next += step * stride;
                                                      if constexpr (!kOneDim) {
                                                        for (inner += step; inner >= inner_size; inner -= inner_size)
                                                          next += outer_stride - inner_size * stride;
                                                      }
                                                      return vector;
                                                    },
                                                    [&](const auto& group) { add_columns<in_t>(sums, group); });
  }
  // The block's sums as [down * fold, outputs] in shared memory, halved until one row is left.
  __shared__ acc_t tile[kColumnThreads<sizeof(in_t)> * V];
  const int width = p.window, threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int place = static_cast<int>(threadIdx.x * V) - shift + j;
    if (place >= 0 && place < width) {
      if constexpr (std::is_same_v<sum_t, acc_t>) {
        tile[own * width + place] = sums[j];
      } else {
        tile[own * width + place] = static_cast<acc_t>(sums[j]);
      }
    }
  }
  const ColumnOutputs outputs(p);
  add_tile_rows(tile, blockDim.y * p.fold, outputs.stride, thread, threads);
  acc_t* partials = outputs.partials<acc_t>(p);
  for (int i = thread; i < outputs.count; i += threads) {
    if (p.split.pieces > 1) {
      partials[blockIdx.y * outputs.stride + i] = tile[i];
    } else {
      outputs.store(p, i, tile[i]);
    }
  }
  if (p.split.pieces > 1 && is_last_with_all_partials(p.split)) outputs.finish(p, tile, thread, threads);
}

template <typename acc_t>
__global__ void __launch_bounds__(kFinishThreads) sum_column_partials_kernel(const __grid_constant__ SumParams p) {
  __shared__ acc_t tile[kColumnTileBytes / sizeof(acc_t)];
  ColumnOutputs(p).finish(p, tile, threadIdx.x, blockDim.x);
}

}  // namespace cudamem
