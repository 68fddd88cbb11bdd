// Outputs whose elements lie side by side: `lanes` threads share an output and read its runs of memory as 16-byte
// vectors.
//
// Traffic: every element once, in whole 32-byte sectors but for a run's two ends.
// Hazard:  a run may start anywhere: the elements before its first 16-byte boundary and after its last are added one by
//          one, and nothing outside the run is read.
#pragma once

#include "sum/split.cuh"

namespace cudamem {

// A run of memory as its ends and the vectors between them.
template <typename in_t>
struct Run {
  const in_t* in;
  int head, tail;   // elements
  int64_t vectors;  // between them

  __device__ Run(const in_t* start, int64_t elems) : in(start) {
    const int to_boundary = static_cast<int>((0 - reinterpret_cast<uintptr_t>(start)) % 16 / sizeof(in_t));
    head = to_boundary < elems ? to_boundary : static_cast<int>(elems);
    vectors = (elems - head) / kElems<in_t>;
    tail = static_cast<int>((elems - head) % kElems<in_t>);
  }

  __device__ const uint4* vector(int64_t index) const { return reinterpret_cast<const uint4*>(in + head) + index; }

  // The elements before and after the vectors, of which the caller takes every `lanes`th.
  template <typename acc_t>
  __device__ void add_ends(VectorSum<in_t, acc_t>& sum, int lane, int lanes) const {
#pragma unroll 1
    for (int i = lane; i < head; i += lanes) sum.add_element(in[i]);
    const in_t* end = in + head + vectors * kElems<in_t>;
#pragma unroll 1
    for (int i = lane; i < tail; i += lanes) sum.add_element(end[i]);
  }
};

// Every kThreads-th of the vectors up to `left` from `next` on; meanwhile() does what else there is to do, while the
// first loads are under way. As stream_items does it, by steps that the compiler knows. A block of one warp has no more
// vectors than it loads at once.
template <int kThreads, int kLoads, typename in_t, typename acc_t, typename Meanwhile>
__device__ inline void add_vectors(VectorSum<in_t, acc_t>& sum, const uint4* next, int left, Meanwhile meanwhile) {
  uint4 ring[kLoads];
  const auto load = [&](int u) { return load_once_or_zeros(next + u * kThreads, left > u * kThreads); };
#pragma unroll
  for (int u = 0; u < kLoads; ++u) ring[u] = load(u);
  meanwhile();
  if constexpr (kThreads > kWarp) {
#pragma unroll 1
    while (left > kLoads * kThreads) {
      next += kLoads * kThreads;
      left -= kLoads * kThreads;
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const uint4 now = ring[u];
        ring[u] = load(u);
        sum.add_vector(now);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) sum.add_vector(ring[u]);
}

// All elements are one run and one output, which blocks share by vectors: `input` is the first vector, `head` and
// `tail` elements lie around them. Small sums wait for the first load, and for all that comes before it: hence little
// does.
template <typename in_t, typename acc_t, int kThreads, int kLoads>
__global__ void __launch_bounds__(kThreads, blocks_without_spills(kThreads > kWarp ? 1024 / kThreads : 1))
    sum_whole_kernel(const __grid_constant__ SumParams p) {
  static_assert(kThreads >= kElems<in_t>);
  const int thread = threadIdx.x;
  const int64_t first = blockIdx.y * p.piece;
  const uint4* in = static_cast<const uint4*>(p.input);
  VectorSum<in_t, acc_t> sum;
  add_vectors<kThreads, kLoads>(sum, in + first + thread, static_cast<int>(min(p.piece, p.inner - first)) - thread,
                                [&] {
                                  if (blockIdx.y != 0) return;
                                  const in_t* head = reinterpret_cast<const in_t*>(in) - p.head;
                                  const in_t* tail = reinterpret_cast<const in_t*>(in + p.inner);
                                  if (thread < p.head) sum.add_element(head[thread]);
                                  if (thread < p.tail) sum.add_element(tail[thread]);
                                });
  wide_t<acc_t> total = widen(sum.total());
  if (sum_of_blocks<kThreads>(p.split, 0, total)) store_sum<in_t>(p, 0, narrow<acc_t>(total));
}

// An output is one run, which a block adds, or several blocks by vectors.
template <typename in_t, typename acc_t>
__global__ void __launch_bounds__(kLongThreads, blocks_without_spills(4))
    sum_long_rows_kernel(const __grid_constant__ SumParams p) {
  static_assert(kLongThreads >= kElems<in_t>);
  const int thread = threadIdx.x;
  int64_t in_offset, out_offset;
  p.kept.offsets(blockIdx.x, in_offset, out_offset);
  const in_t* in = static_cast<const in_t*>(p.input) + in_offset;
  int64_t vectors = p.inner / kElems<in_t>;
  int head = 0, tail = 0;
  if (p.guarded) {
    const Run<in_t> run(in, p.inner);
    head = blockIdx.y == 0 ? run.head : 0;
    tail = blockIdx.y == gridDim.y - 1 ? run.tail : 0;
    in += run.head;
    vectors = run.vectors;
  }
  const int64_t first = blockIdx.y * p.piece;
  VectorSum<in_t, acc_t> sum;
  add_vectors<kLongThreads, kRowLoads>(sum, reinterpret_cast<const uint4*>(in) + first + thread,
                                       static_cast<int>(min(p.piece, vectors - first)) - thread, [&] {
                                         if (thread < head) sum.add_element(in[thread - head]);
                                         if (thread < tail) sum.add_element(in[vectors * kElems<in_t> + thread]);
                                       });
  wide_t<acc_t> total = widen(sum.total());
  if (sum_of_blocks<kLongThreads>(p.split, blockIdx.x, total)) store_sum<in_t>(p, out_offset, narrow<acc_t>(total));
}

// Several outputs a block, or one that is several runs, which blocks may share by runs. kOneRun: an output is one run,
// which a warp adds, or less.
template <typename in_t, typename acc_t, bool kOneRun>
__global__ void __launch_bounds__(kOneRun ? kGroupThreads : kMaxSumThreads,
                                  blocks_without_spills(kIsCompensated<acc_t> ? 1 : 2))
    sum_rows_kernel(const __grid_constant__ SumParams p) {
  const int lane = threadIdx.x & (p.lanes - 1);
  const unsigned output = blockIdx.x * (blockDim.x >> p.lanes_log2) + (threadIdx.x >> p.lanes_log2);
  const bool active = output < p.kept.size;
  int64_t in_offset = 0, out_offset = 0;
  if (active) p.kept.offsets(output, in_offset, out_offset);
  const in_t* in = static_cast<const in_t*>(p.input) + in_offset;
  VectorSum<in_t, acc_t> sum;
  auto add_one = [&](const uint4(&vector)[1]) { sum.add_vector(vector[0]); };
  if (!active) {
  } else if constexpr (kOneRun) {
    int64_t vectors = p.inner / kElems<in_t>;
    if (p.guarded) {
      const Run<in_t> run(in, p.inner);
      run.add_ends(sum, lane, p.lanes);
      in += run.head;
      vectors = run.vectors;
    }
    const uint4* next = reinterpret_cast<const uint4*>(in) + lane;
    int left = static_cast<int>(vectors) - lane;
    stream_items<kRowLoads, 1>((left + p.lanes - 1) >> p.lanes_log2,
                               [&] {
                                 const uint4 vector = load_once_or_zeros(next, left > 0);
                                 next += p.lanes;
                                 left -= p.lanes;
                                 return vector;
                               },
                               add_one);
  } else {
    // A thread walks along a run, and then on to the next of its runs.
    const int across = lane & (p.run_lanes - 1), step = p.lanes >> p.run_lanes_log2;
    const int64_t end = min((blockIdx.y + int64_t{1}) * p.piece, int64_t{p.reduced.size});
    int64_t r = blockIdx.y * p.piece + (lane >> p.run_lanes_log2);
    const uint4* next = nullptr;
    int left = 0;  // of the run
    auto start_run = [&] {
      if (r >= end) return;
      int64_t offset, unused;
      p.reduced.offsets(static_cast<uint32_t>(r), offset, unused);
      const Run<in_t> run(in + offset, p.inner);
      if (p.guarded) run.add_ends(sum, across, p.run_lanes);
      next = run.vector(across);
      left = static_cast<int>(run.vectors) - across;
    };
    const int per_run = static_cast<int>((p.inner / kElems<in_t> + p.run_lanes - 1) >> p.run_lanes_log2);
    int here = per_run;
    start_run();
    stream_items<kRowLoads, 1>(
        per_run * ((end - r + step - 1) / step),
        [&] {
          const uint4 vector = load_once_or_zeros(next, left > 0 && r < end);
          next += p.run_lanes;
          left -= p.run_lanes;
          if (--here == 0) {
            here = per_run;
            r += step;
            start_run();
          }
          return vector;
        },
        add_one);
  }
  if (kOneRun || (p.lanes <= kWarp && p.split.pieces == 1)) {
    const acc_t total = sum_lanes(sum.total(), p.lanes);
    if (active && lane == 0) store_sum<in_t>(p, out_offset, total);
    return;
  }
  wide_t<acc_t> total = widen(sum.total());
  if (sum_of_blocks(p.split, output, total)) store_sum<in_t>(p, out_offset, narrow<acc_t>(total));
}

}  // namespace cudamem
