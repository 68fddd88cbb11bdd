// Everything else: any strides, any pair of types, one element a load. Each element is cast to the result's dtype as it
// is read, so that no copy of the input is made for it.
//
// Traffic: every element once, if neighbouring threads find neighbours: they run along whichever dim has the smallest
//          stride, be it summed (`lanes` threads side by side share an output) or kept (they lie a row apart).
// Hazard:  a test of the input's dtype for every element would cost more than its load: each dtype has a loop.
#pragma once

#include "sum/split.cuh"

namespace cudamem {

// x cast to the result's dtype, as the accumulator holds it.
template <typename acc_t, typename in_t>
__device__ inline acc_t cast_element(in_t x, DType type) {
  if constexpr (std::is_same_v<acc_t, int64_t>) {
    if (type == DType::kBool) {
      if constexpr (std::is_same_v<in_t, Bool>)
        return x.byte != 0;
      else
        return convert<double>(x) != 0;
    }
    constexpr bool is_float = std::is_same_v<in_t, float> || std::is_same_v<in_t, double> ||
                              std::is_same_v<in_t, __half> || std::is_same_v<in_t, __nv_bfloat16>;
    if constexpr (is_float) {  // out of an integer's range: as torch's cast
      const auto value = convert<std::conditional_t<std::is_same_v<in_t, double>, double, float>>(x);
      if (type == DType::kInt32) return static_cast<int32_t>(value);
      if (type == DType::kInt16) return static_cast<int16_t>(value);
      if (type == DType::kInt8) return static_cast<int8_t>(value);
      return static_cast<int64_t>(value);
    }
    return convert<int64_t>(x);
  } else {
    if (type == DType::kFloat64) return convert<double>(x);
    const float value = convert<float>(x);
    if (type == DType::kFloat16 && !std::is_same_v<in_t, __half>) return convert<float>(convert<__half>(value));
    if (type == DType::kBFloat16 && !std::is_same_v<in_t, __nv_bfloat16>)
      return convert<float>(convert<__nv_bfloat16>(value));
    return value;
  }
}

// The types in which an accumulator holds single elements.
template <typename acc_t>
struct ElementOf {
  using type = acc_t;
};
template <typename T>
struct ElementOf<Compensated<T>> {
  using type = T;
};

// The sum of this lane's elements of one output. kOneDim: element e is e * stride away.
template <typename in_t, bool kOneDim, typename acc_t>
__device__ inline void add_strided(acc_t& total, const SumParams& p, int64_t in_offset, int64_t first, int64_t end) {
  using elem_t = typename ElementOf<acc_t>::type;
  const in_t* in = static_cast<const in_t*>(p.input) + in_offset;
  const int count = static_cast<int>((end - first + p.lanes - 1) >> p.lanes_log2);
  const auto add_all = [&](const auto& elements) {
    if (p.adds_plainly) {
      for (in_t element : elements) add(total, convert<elem_t>(element));
    } else {
      for (in_t element : elements) add(total, cast_element<elem_t>(element, p.cast_type));
    }
  };
  if constexpr (kOneDim) {
    constexpr int kLoads = sizeof(in_t) <= 2 && !std::is_same_v<acc_t, int64_t> ? 2 * kStridedLoads : kStridedLoads;
    const in_t* next = in + first * p.reduced.dims[0].in_stride;
    const int64_t step = p.lanes * p.reduced.dims[0].in_stride;
    int left = count;
    stream_items<kLoads, 4>(
        count,
        [&] {
          const in_t element = left > 0 ? *next : in_t{};
          next += step;
          --left;
          return element;
        },
        add_all);
  } else {
    int64_t e = first;
    stream_items<kStridedLoads / 2, 4>(
        count,
        [&] {
          int64_t offset = 0, unused;
          in_t element = {};
          if (e < end) {
            p.reduced.offsets(static_cast<uint32_t>(e), offset, unused);
            element = in[offset];
          }
          e += p.lanes;
          return element;
        },
        add_all);
  }
}

template <typename acc_t, bool kOneDim>
__global__ void __launch_bounds__(kStridedThreads, 3) sum_strided_kernel(const __grid_constant__ SumParams p) {
  const int groups = kStridedThreads >> p.lanes_log2;  // outputs of the block
  const int group = p.lanes_side_by_side ? threadIdx.x >> p.lanes_log2 : threadIdx.x & (groups - 1);
  const int lane = p.lanes_side_by_side ? threadIdx.x & (p.lanes - 1) : threadIdx.x / groups;
  const int64_t output = int64_t{blockIdx.x} * groups + group;
  const bool active = output < p.kept.size;
  int64_t in_offset = 0, out_offset = 0;
  acc_t of_lane = zero<acc_t>();
  if (active) {
    p.kept.offsets(static_cast<uint32_t>(output), in_offset, out_offset);
    const int64_t end = min((blockIdx.y + int64_t{1}) * p.piece, int64_t{p.reduced.size});
    const int64_t first = blockIdx.y * p.piece + lane;
    switch (p.in_type) {
      case DType::kBool:
        add_strided<Bool, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kUInt8:
        add_strided<uint8_t, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kInt8:
        add_strided<int8_t, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kInt16:
        add_strided<int16_t, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kInt32:
        add_strided<int32_t, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kInt64:
        add_strided<int64_t, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kFloat16:
        add_strided<__half, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kBFloat16:
        add_strided<__nv_bfloat16, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kFloat32:
        add_strided<float, kOneDim>(of_lane, p, in_offset, first, end);
        break;
      case DType::kFloat64:
        add_strided<double, kOneDim>(of_lane, p, in_offset, first, end);
        break;
    }
  }

  using sum_t = wide_t<acc_t>;
  sum_t total = widen(of_lane);
  __shared__ sum_t totals[kStridedThreads];
  auto meet = [&] {  // lane 0 ends with its group's sum
    for (int half = p.lanes / 2; half > 0; half /= 2) {
      totals[threadIdx.x] = total;
      __syncthreads();
      if (lane < half) add(total, totals[threadIdx.x + (p.lanes_side_by_side ? half : half * groups)]);
      __syncthreads();
    }
  };
  meet();
  if (p.split.pieces > 1) {
    sum_t* partials = static_cast<sum_t*>(p.split.partials) + output * p.split.pieces;
    if (active && lane == 0) partials[blockIdx.y] = total;
    if (!is_last_with_all_partials(p.split)) return;
    total = active ? add_partials(partials, lane, p.split.pieces, p.lanes) : zero<sum_t>();
    meet();
  }
  if (active && lane == 0) store(p.output, out_offset, narrow<acc_t>(total), p.out_type);
}

}  // namespace cudamem
