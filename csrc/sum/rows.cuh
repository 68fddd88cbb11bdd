// Outputs whose elements lie side by side: `lanes` threads share an output and read its runs of memory as 16-byte
// vectors.
//
// Traffic: every element once, in whole 32-byte sectors but for a run's two ends.
// Hazard:  a run may start anywhere: the elements before its first 16-byte boundary and after its last are added one by
//          one, and nothing outside the run is read.
#pragma once

#include "sum/split.cuh"

namespace cudamem {

constexpr int kRowLoads = 4;

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

  template <typename acc_t>
  __device__ void add_ends(VectorSum<in_t, acc_t>& sum, int lane, int lanes, bool first, bool last) const {
    if (first) {
      for (int i = lane; i < head; i += lanes) sum.add_element(in[i]);
    }
    if (last) {
      const in_t* end = in + head + vectors * kElems<in_t>;
      for (int i = lane; i < tail; i += lanes) sum.add_element(end[i]);
    }
  }
};

// kOneRun: an output is one run, which blocks may share by vectors; else it is several, which they share by runs.
template <typename in_t, typename acc_t, bool kOneRun>
__global__ void __launch_bounds__(kMaxSumThreads,
                                  blocks_without_spills(kOneRun || !kIsCompensated<acc_t> || sizeof(in_t) == 4 ? 2 : 1))
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
    const int64_t first = blockIdx.y * p.piece;
    const uint4* next;
    int left;
    if (p.guarded) {
      const Run<in_t> run(in, p.inner);
      run.add_ends(sum, lane, p.lanes, blockIdx.y == 0, blockIdx.y == gridDim.y - 1);
      next = run.vector(first) + lane;
      left = static_cast<int>(min(p.piece, run.vectors - first)) - lane;
    } else {
      next = reinterpret_cast<const uint4*>(in) + first + lane;
      left = static_cast<int>(min(p.piece, p.inner / kElems<in_t> - first)) - lane;
    }
    stream_items<kRowLoads, 1>((left + p.lanes - 1) >> p.lanes_log2,
                               [&] {
                                 const uint4 vector = load_or_zeros(next, left > 0);
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
      if (p.guarded) run.add_ends(sum, across, p.run_lanes, true, true);
      next = run.vector(across);
      left = static_cast<int>(run.vectors) - across;
    };
    const int per_run = static_cast<int>((p.inner / kElems<in_t> + p.run_lanes - 1) >> p.run_lanes_log2);
    int here = per_run;
    start_run();
    stream_items<kRowLoads, 1>(
        per_run * ((end - r + step - 1) / step),
        [&] {
          const uint4 vector = load_or_zeros(next, left > 0 && r < end);
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
  if (p.lanes <= kWarp && p.split.pieces == 1) {
    const acc_t total = sum_lanes(sum.total(), p.lanes);
    if (active && lane == 0) store(p.output, out_offset, total, p.out_type);
    return;
  }
  using sum_t = wide_t<acc_t>;
  sum_t total = sum_block(widen(sum.total()));
  if (p.split.pieces > 1) {
    const unsigned others = p.split.pieces - 1;
    if (p.split.first_letter < 0) {  // another launch adds the partials
      if (threadIdx.x == 0) static_cast<sum_t*>(p.split.partials)[output * p.split.pieces + blockIdx.y] = total;
      return;
    }
    if (blockIdx.y < others) {
      if (threadIdx.x == 0) mail_partial(p.split.first_letter, output * others + blockIdx.y, total);
      return;
    }
    sum_t of_others = {};
    for (unsigned i = threadIdx.x; i < others; i += blockDim.x) {
      add(of_others, receive_partial<sum_t>(p.split.first_letter, output * others + i));
    }
    add(total, sum_block(of_others));
  }
  if (lane == 0) store(p.output, out_offset, narrow<acc_t>(total), p.out_type);
}

}  // namespace cudamem
