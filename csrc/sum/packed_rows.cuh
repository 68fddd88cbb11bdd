// Rows of a power of two of bytes, up to a warp's 32 vectors, one after the other in memory: a thread has a whole row
// in its vector, or several, or neighbouring threads share one.
//
// Traffic: every element once; one output for every row, which counts where rows are short.
// Hazard:  nothing but instructions: there is so little to add that finding the address costs as much. Hence no strides
//          here, and no loop.
#pragma once

#include "sum/accumulate.cuh"

namespace cudamem {

// totals[count] are neighbours' sums: added in pairs until as many are left as a vector has rows.
template <int count, typename acc_t>
__device__ inline void store_rows(const SumParams& p, int64_t vector, acc_t (&totals)[count], int rows, bool exists) {
  if constexpr (count == 1) {
    const acc_t total = sum_lanes(totals[0], p.lanes);
    if (exists && (vector & (p.lanes - 1)) == 0) store(p.output, vector >> p.lanes_log2, total, p.out_type);
  } else if (rows == count) {
    if (exists) store_many(p.output, vector * count, totals, p.out_type);
  } else {
    acc_t pairs[count / 2];
#pragma unroll
    for (int j = 0; j < count / 2; ++j) {
      pairs[j] = totals[2 * j];
      add(pairs[j], totals[2 * j + 1]);
    }
    store_rows(p, vector, pairs, rows, exists);
  }
}

template <typename in_t, typename acc_t, int kLoads>
__global__ void __launch_bounds__(kPackedThreads, kFewRegisters ? 0 : 3)
    sum_packed_rows_kernel(const __grid_constant__ SumParams p) {
  constexpr int V = kElems<in_t>;
  const uint4* in = static_cast<const uint4*>(p.input);
  const int64_t first = int64_t{blockIdx.x} * (kPackedThreads * kLoads) + threadIdx.x;
  const int64_t vectors = p.inner;
  uint4 loaded[kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    loaded[u] = load_or_zeros(in + first + u * kPackedThreads, first + u * kPackedThreads < vectors);
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const Vector<in_t> v(loaded[u]);
    const int64_t vector = first + u * kPackedThreads;
    if (p.rows_per_vector <= 1) {
      VectorSum<in_t, acc_t> sum;
      sum.add_vector(v);
      acc_t totals[1] = {sum.total()};
      store_rows(p, vector, totals, 1, vector < vectors);
    } else {
      acc_t totals[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        totals[j] = zero<acc_t>();
        add(totals[j], v.elems[j]);
      }
      store_rows(p, vector, totals, p.rows_per_vector, vector < vectors);
    }
  }
  // Rows that fill no vector: fewer than a vector holds.
  const int64_t row = vectors * p.rows_per_vector + threadIdx.x;
  if (blockIdx.x == 0 && p.rows_per_vector > 1 && row < p.kept.size) {
    acc_t total = zero<acc_t>();
    const int length = V / p.rows_per_vector;
    for (int e = 0; e < length; ++e) add(total, static_cast<const in_t*>(p.input)[row * length + e]);
    store(p.output, row, total, p.out_type);
  }
}

}  // namespace cudamem
