// Small sums, and short ones of any strides: one element a load, one launch, 32-bit offsets, and as little as can be
// before the first load. A group of up to 32 neighbours shares an output, or a block does; or, where outputs lie side
// by side, a thread of each warp of a block.
//
// Hazard: every 64-byte line of parameters that a kernel reads costs 0.03 to 0.07 us: what all sums need takes one.
#pragma once

#include "sum/accumulate.cuh"

namespace cudamem {

// What one thread adds up, a few elements at a time.
template <typename in_t, typename acc_t>
struct ElementSum {
  using part_t = std::conditional_t<sizeof(in_t) <= 2 && std::is_same_v<acc_t, int64_t>, int32_t, acc_t>;
  acc_t sum = {};

  template <int kCount>
  __device__ void add_all(const in_t (&elements)[kCount]) {
    part_t part = {};
#pragma unroll
    for (int u = 0; u < kCount; ++u) add(part, elements[u]);
    sum += part;
  }
  __device__ acc_t total() const { return sum; }
};
template <>
struct ElementSum<float, double> : VectorSum<float, double> {
  template <int kCount>
  __device__ void add_all(const float (&elements)[kCount]) {
#pragma unroll
    for (int u = 0; u < kCount; u += 4) {
      add_vector(make_uint4(__float_as_uint(elements[u]), __float_as_uint(elements[u + 1]),
                            __float_as_uint(elements[u + 2]), __float_as_uint(elements[u + 3])));
    }
  }
};

// kOneDim: of what is summed.
template <typename in_t, typename acc_t, Sharing kSharing, bool kOneDim>
__global__ void __launch_bounds__(kSharing == Sharing::kLanes ? kSmallThreads : kSmallBlockThreads)
    sum_small_kernel(const __grid_constant__ SmallSumParams p) {
  constexpr bool kLanes = kSharing == Sharing::kLanes, kWarps = kSharing == Sharing::kWarps;
  const unsigned thread = threadIdx.x;
  const unsigned lanes = kLanes ? 1u << p.lanes_log2 : kWarps ? blockDim.x / kWarp : blockDim.x;
  const unsigned lane = kWarps ? thread / kWarp : thread & (lanes - 1);
  const unsigned output = kLanes   ? (blockIdx.x * kSmallThreads + thread) >> p.lanes_log2
                          : kWarps ? blockIdx.x * kWarp + thread % kWarp
                                   : blockIdx.x;
  const bool active = kSharing == Sharing::kBlock || output < p.outputs;
  uint32_t index = output, in_offset = 0, out_offset = 0;
#pragma unroll
  for (int d = 0; d < kSmallDims - 1; ++d) {
    if (d >= p.kept_divided) break;
    uint32_t here = index;
    index = p.kept[d].size.divide(here);
    in_offset += here * p.kept[d].in_stride;
    out_offset += here * p.kept[d].out_stride;
  }
  in_offset += index * p.kept_in_stride;
  out_offset += index * p.kept_out_stride;
  const in_t* in = static_cast<const in_t*>(p.input) + in_offset;
  ElementSum<in_t, acc_t> sum;
  constexpr int kLoads = kLanes ? 4 : 8;
  const uint32_t end = active ? p.length : 0;
#pragma unroll 1
  for (uint32_t e = lane; e < end; e += kLoads * lanes) {
    in_t loaded[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const uint32_t at = e + u * lanes;
      loaded[u] = in_t{};
      if (at < end) {
        uint32_t index = at, offset = 0;
#pragma unroll
        for (int d = 0; d < kSmallDims - 1; ++d) {
          if (kOneDim || d >= p.reduced_divided) break;
          uint32_t here = index;
          index = p.reduced[d].size.divide(here);
          offset += here * p.reduced[d].in_stride;
        }
        loaded[u] = in[offset + index * p.reduced_stride];
      }
    }
    sum.add_all(loaded);
  }
  acc_t total = sum.total();
  if constexpr (kWarps) {
    __shared__ acc_t totals[kSmallBlockThreads];
    totals[thread] = total;
    __syncthreads();
    if (lane > 0) return;
#pragma unroll 4
    for (unsigned w = 1; w < lanes; ++w) add(total, totals[w * kWarp + thread]);
  } else {
    total = kLanes ? sum_lanes(total, lanes) : sum_block(total);
  }
  if (active && lane == 0) store_sum_as<in_t>(p.output, out_offset, total, p.out_type);
}

}  // namespace cudamem
