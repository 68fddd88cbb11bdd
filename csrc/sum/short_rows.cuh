// Short rows, one after the other in memory: a block copies a span of whole rows into shared memory by 16-byte vectors,
// and then a few threads add up each row from there.
//
// Traffic: every element once from memory, once into shared memory and once out of it, by words of 4 bytes where rows
//          consist of them.
// Hazard:  bank conflicts: neighbouring rows start a row apart. With as many threads a row as the row's length has
//          factors of 2, the threads of a warp read 32 different banks; where that is too few threads, rows of odd
//          length spread over the banks by themselves.
#pragma once

#include "sum/accumulate.cuh"

namespace cudamem {

template <typename in_t, typename acc_t, bool kOnce>
__global__ void __launch_bounds__(kStageThreads) sum_short_rows_kernel(const __grid_constant__ SumParams p) {
  constexpr int kVectors = kStageBytes / 16;
  __shared__ uint4 stage[kVectors + 1];
  const int length = static_cast<int>(p.inner);
  const int64_t first_row = int64_t{blockIdx.x} * p.piece;
  const int rows = static_cast<int>(min(p.piece, int64_t{p.kept.size} - first_row));
  const in_t* in = static_cast<const in_t*>(p.input) + first_row * length;
  const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(in) % 16 / sizeof(in_t));
  const int elems = rows * length;

  const uint4* vectors = reinterpret_cast<const uint4*>(in - skew);
  const int count = (skew + elems + kElems<in_t> - 1) / kElems<in_t>;
  // Neighbours' elements are read and ignored, but nothing before the first row or after the last.
  const int begin = first_row * length < skew ? 1 : 0;
  const int64_t left = (int64_t{p.kept.size} - first_row) * length;
  const int end = static_cast<int>(min(int64_t{count}, (skew + left) / kElems<in_t>));
  constexpr int kLoads = kVectors / kStageThreads;
  uint4 loaded[kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int i = threadIdx.x + u * kStageThreads;
    if (i >= begin && i < end) loaded[u] = kOnce ? load_once(vectors + i) : __ldg(vectors + i);
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int i = threadIdx.x + u * kStageThreads;
    if (i >= begin && i < end) stage[i] = loaded[u];
  }
  in_t* staged = reinterpret_cast<in_t*>(stage);
  if (begin == 1 || end < count || count > kVectors) {
    for (int i = threadIdx.x; i < skew + elems; i += kStageThreads) {
      const int vector = i / kElems<in_t>;
      if (i >= skew && (vector < begin || vector >= min(end, kVectors))) staged[i] = in[i - skew];
    }
  }
  __syncthreads();

  // int32 holds what a row of small integers adds up to.
  using sum_t = std::conditional_t<sizeof(in_t) <= 2 && std::is_same_v<acc_t, int64_t>, int32_t, acc_t>;
  constexpr int kOfWord = sizeof(in_t) < 4 ? 4 / sizeof(in_t) : 1;  // elements
  const bool by_words = kOfWord > 1 && (length | skew) % kOfWord == 0;
  const int lane = threadIdx.x & (p.lanes - 1), groups = kStageThreads >> p.lanes_log2;
  for (int row = threadIdx.x >> p.lanes_log2; row - (threadIdx.x >> p.lanes_log2) < rows; row += groups) {
    sum_t of_lane = {};
    if (row < rows) {
      const in_t* elements = staged + skew + row * length;
      if (by_words) {
#pragma unroll 4
        for (int e = lane; e < length / kOfWord; e += p.lanes) {
          const uint32_t word = reinterpret_cast<const uint32_t*>(elements)[e];
#pragma unroll
          for (int j = 0; j < kOfWord; ++j) add(of_lane, reinterpret_cast<const in_t*>(&word)[j]);
        }
      } else {
#pragma unroll 4
        for (int e = lane; e < length; e += p.lanes) add(of_lane, elements[e]);
      }
    }
    const sum_t total = sum_lanes(of_lane, p.lanes);
    if (row < rows && lane == 0) store(p.output, first_row + row, acc_t(total), p.out_type);
  }
}

}  // namespace cudamem
