// How elements are added up: one at a time, a 16-byte vector at a time, across a warp, across a block.
#pragma once

#include "common/device.cuh"
#include "sum/sum.h"

namespace cudamem {

constexpr unsigned kAllLanes = 0xffffffffu;

// Whether this pass compiles for 9.0 to 11.0: on other architectures the compiler needs more registers for sums.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
constexpr bool kFewRegisters = true;
#else
constexpr bool kFewRegisters = false;
#endif

// How many blocks a multiprocessor is to hold at least.
constexpr int blocks_without_spills(int blocks) { return kFewRegisters ? blocks : 1; }

template <typename in_t>
constexpr int kElems = 16 / sizeof(in_t);  // of one vector

// A running sum beside what its additions rounded away.
// Source: A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", ZAMM 54, 1974.
template <typename T>
struct Compensated {
  using value_t = T;
  T sum, lost;
};

// a + b, and what rounding took from it: exactly, without a branch. Beyond the largest number, and beside it, `lost`
// may be infinity - infinity. Source: D. Knuth, The Art of Computer Programming 2, 4.2.2.
template <typename T>
__device__ inline Compensated<T> exact_sum(T a, T b) {
  const T sum = a + b, back = sum - a;
  return {sum, (a - (sum - back)) + (b - back)};
}

template <typename acc_t>
constexpr bool kIsCompensated = false;
template <typename T>
constexpr bool kIsCompensated<Compensated<T>> = true;

template <typename acc_t>
__device__ inline acc_t zero() {
  return acc_t{};
}

template <typename acc_t, typename value_t>
__device__ inline void add(acc_t& total, value_t value) {
  if constexpr (!kIsCompensated<acc_t>) {
    total += convert<acc_t>(value);
  } else if constexpr (kIsCompensated<value_t>) {
    add(total, value.sum);
    total.lost += value.lost;
  } else {
    const auto exact = exact_sum(total.sum, convert<typename acc_t::value_t>(value));
    total.sum = exact.sum;
    total.lost += exact.lost;
  }
}

// What the threads of a block and the blocks of an output meet in: few additions, but of the largest numbers.
template <typename acc_t>
using wide_t =
    std::conditional_t<std::is_same_v<acc_t, float> || std::is_same_v<acc_t, Compensated<float>>, double, acc_t>;

template <typename acc_t>
__device__ inline wide_t<acc_t> widen(const acc_t& total) {
  if constexpr (std::is_same_v<acc_t, Compensated<float>>) {
    return isfinite(total.lost) ? double{total.sum} + total.lost : double{total.sum};
  } else {
    return total;
  }
}

template <typename acc_t, typename sum_t>
__device__ inline acc_t narrow(const sum_t& total) {
  if constexpr (std::is_same_v<acc_t, sum_t>) {
    return total;
  } else if constexpr (std::is_same_v<acc_t, Compensated<float>>) {
    return {static_cast<float>(total), 0};
  } else {
    return static_cast<acc_t>(total);
  }
}

template <typename acc_t>
__device__ inline auto result_of(const acc_t& total) {
  if constexpr (kIsCompensated<acc_t>) {
    return isfinite(total.lost) ? total.sum + total.lost : total.sum;
  } else {
    return total;
  }
}

// out[index] = total, rounded to the output's type or cut to its bits.
template <typename acc_t>
__device__ inline void store(void* out, int64_t index, const acc_t& total, DType type) {
  const auto value = result_of(total);
  using T = std::decay_t<decltype(value)>;
  if constexpr (std::is_same_v<T, int64_t>) {
    if (type == DType::kInt64) {
      static_cast<int64_t*>(out)[index] = value;
    } else if (type == DType::kInt32) {
      static_cast<int32_t*>(out)[index] = static_cast<int32_t>(value);
    } else if (type == DType::kInt16) {
      static_cast<int16_t*>(out)[index] = static_cast<int16_t>(value);
    } else {
      static_cast<uint8_t*>(out)[index] = type == DType::kBool ? value != 0 : static_cast<uint8_t>(value);
    }
  } else if constexpr (std::is_same_v<T, float>) {
    if (type == DType::kFloat32) {
      static_cast<float*>(out)[index] = value;
    } else if (type == DType::kFloat16) {
      static_cast<__half*>(out)[index] = convert<__half>(value);
    } else {
      static_cast<__nv_bfloat16*>(out)[index] = convert<__nv_bfloat16>(value);
    }
  } else {
    if (type == DType::kFloat64) {
      static_cast<double*>(out)[index] = value;
    } else if (type == DType::kFloat32) {
      static_cast<float*>(out)[index] = static_cast<float>(value);
    } else if (type == DType::kFloat16) {
      static_cast<__half*>(out)[index] = __double2half(value);
    } else {
      static_cast<__nv_bfloat16*>(out)[index] = __double2bfloat16(value);
    }
  }
}

// The same for elements that are added plainly: float32 and float64 then stay what they are.
template <typename in_t, typename acc_t>
__device__ inline void store_sum_as(void* out, int64_t index, const acc_t& total, DType type) {
  if constexpr (sizeof(in_t) >= 4 && std::is_floating_point_v<in_t>) {
    static_cast<in_t*>(out)[index] = static_cast<in_t>(result_of(total));
  } else {
    store(out, index, total, type);
  }
}
template <typename in_t, typename acc_t>
__device__ inline void store_sum(const SumParams& p, int64_t index, const acc_t& total) {
  store_sum_as<in_t>(p.output, index, total, p.out_type);
}

template <typename out_t, int count, typename acc_t>
__device__ inline void store_as(void* out, int64_t index, const acc_t (&totals)[count]) {
  constexpr int kBytes = count * sizeof(out_t), kWordBytes = kBytes < 16 ? kBytes : 16;
  union {
    BitsOf<kWordBytes> words[kBytes / kWordBytes];
    out_t values[count];
  } all;
#pragma unroll
  for (int i = 0; i < count; ++i) all.values[i] = convert<out_t>(result_of(totals[i]));
  auto* address = reinterpret_cast<BitsOf<kWordBytes>*>(static_cast<out_t*>(out) + index);
#pragma unroll
  for (int w = 0; w < kBytes / kWordBytes; ++w) __stcs(address + w, all.words[w]);
}

// The same for `count` neighbours, a power of two of which `index` is a multiple: in as wide stores as there are.
template <int count, typename acc_t>
__device__ inline void store_many(void* out, int64_t index, const acc_t (&totals)[count], DType type) {
  using T = decltype(result_of(totals[0]));
  if constexpr (std::is_same_v<T, int64_t>) {
    if (type == DType::kInt64) return store_as<int64_t>(out, index, totals);
#pragma unroll
    for (int i = 0; i < count; ++i) store(out, index + i, totals[i], type);
  } else if constexpr (std::is_same_v<T, float>) {
    if (type == DType::kFloat32) return store_as<float>(out, index, totals);
    if (type == DType::kFloat16) return store_as<__half>(out, index, totals);
    store_as<__nv_bfloat16>(out, index, totals);
  } else {
    if (type == DType::kFloat64) return store_as<double>(out, index, totals);
    store_as<float>(out, index, totals);
  }
}

template <typename in_t>
union Vector {
  uint4 bits;
  uint32_t words[4];
  in_t elems[kElems<in_t>];
  __device__ Vector(uint4 bits) : bits(bits) {}
};

// Adds `count` items, `kGroup` at a time, while the loads of the `kInFlight` after them are under way: next() loads
// one, or returns zeros past the end. An item is added just before its place in the ring is loaded again; were a round
// to load and then to add, the compiler would take loads and additions in turns, to spare registers, and each load
// would wait for the one before.
template <int kInFlight, int kGroup, typename Next, typename Add>
__device__ inline void stream_items(int count, Next next, Add add_group) {
  using item_t = decltype(next());
  item_t ring[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) ring[u] = next();
#pragma unroll 1
  for (int left = count - kInFlight; left > 0; left -= kInFlight) {
#pragma unroll
    for (int g = 0; g < kInFlight; g += kGroup) {
      item_t now[kGroup];
#pragma unroll
      for (int u = 0; u < kGroup; ++u) {
        now[u] = ring[g + u];
        ring[g + u] = next();
      }
      add_group(now);
    }
  }
#pragma unroll
  for (int g = 0; g < kInFlight; g += kGroup) {
    item_t now[kGroup];
#pragma unroll
    for (int u = 0; u < kGroup; ++u) now[u] = ring[g + u];
    add_group(now);
  }
}

__device__ inline uint4 load_or_zeros(const uint4* address, bool exists) {
  return exists ? __ldg(address) : make_uint4(0, 0, 0, 0);
}

// A vector past L1. Where much is written beside what is read it can be a tenth slower.
__device__ inline uint4 load_once(const uint4* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

__device__ inline uint4 load_once_or_zeros(const uint4* address, bool exists) {
  return exists ? load_once(address) : make_uint4(0, 0, 0, 0);
}

// 1 for each byte of a word that is not 0.
__device__ inline uint32_t true_bytes(uint32_t word) {
  return ((((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) >> 7) & 0x01010101u;
}

// What one thread adds up of an output that owns whole vectors.
template <typename in_t, typename acc_t>
struct VectorSum {
  // Integers of 1 and 2 bytes: the dot product of a word with ones adds 4 or 2 of them in one instruction. The others:
  // a sum for each place in the vector, which do not wait for each other, and err less.
  static constexpr bool kDotted = sizeof(in_t) <= 2 && std::is_same_v<acc_t, int64_t>;
  static constexpr int kSums = kDotted ? 1 : kElems<in_t>;
  acc_t sums[kSums] = {};

  __device__ void add_vector(const Vector<in_t>& v) {
    if constexpr (kDotted) {
      int32_t dot = 0;  // of at most 16 elements
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (std::is_same_v<in_t, Bool>) dot += __popc(true_bytes(v.words[w]));
        if constexpr (std::is_same_v<in_t, int8_t>) dot = __dp4a(static_cast<int>(v.words[w]), 0x01010101, dot);
        if constexpr (std::is_same_v<in_t, uint8_t>) dot = __dp4a(v.words[w], 0x01010101u, static_cast<uint32_t>(dot));
        if constexpr (std::is_same_v<in_t, int16_t>) dot = __dp2a_lo(static_cast<int>(v.words[w]), 0x0101, dot);
      }
      sums[0] += dot;
    } else {
#pragma unroll
      for (int j = 0; j < kElems<in_t>; ++j) add(sums[j], v.elems[j]);
    }
  }

  __device__ void add_element(in_t x) { add(sums[0], x); }

  __device__ acc_t total() {
#pragma unroll
    for (int half = kSums / 2; half > 0; half /= 2) {
#pragma unroll
      for (int j = 0; j < half; ++j) add(sums[j], sums[j + half]);
    }
    return sums[0];
  }
};

// float32 in float64: a pair is added in float32, and what that rounds away is kept. Half as many conversions to
// float64, which are slow, as to convert each element, and fewer instructions than to compensate each addition.
template <>
struct VectorSum<float, double> {
  double sums[2] = {};
  float lost[2] = {};

  __device__ void add_vector(const Vector<float>& v) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const auto exact = exact_sum(v.elems[2 * pair], v.elems[2 * pair + 1]);
      sums[pair] += exact.sum;
      lost[pair] += exact.lost;
    }
  }

  __device__ void add_element(float x) { sums[0] += x; }

  __device__ double total() const {
    const double sum = sums[0] + sums[1];
    const float rest = lost[0] + lost[1];
    return isfinite(rest) ? sum + rest : sum;
  }
};

template <typename acc_t>
__device__ inline acc_t shuffle_xor(const acc_t& value, int step) {
  if constexpr (kIsCompensated<acc_t>) {
    return {__shfl_xor_sync(kAllLanes, value.sum, step), __shfl_xor_sync(kAllLanes, value.lost, step)};
  } else {
    return __shfl_xor_sync(kAllLanes, value, step);
  }
}

// Every lane ends with the sum of its group of `lanes` neighbours, a power of two: the butterfly of __shfl_xor_sync
// pairs lanes that differ in one bit, so that it never leaves an aligned group. The mask names the lanes that take
// part, and all of them must arrive: lanes without work bring 0 instead of staying away.
template <typename acc_t>
__device__ inline acc_t sum_lanes(acc_t value, int lanes) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    if (step < lanes) add(value, shuffle_xor(value, step));
  }
  return value;
}

// Thread 0 ends with the sum of the block, which is a power of two of warps, or less than one. Once in a kernel.
// kThreads: of the block, where the compiler knows their number, else 0.
template <int kThreads = 0, typename acc_t>
__device__ inline acc_t sum_block(acc_t value) {
  __shared__ acc_t warp_sums[kWarp];
  const int warps = (kThreads > 0 ? kThreads : blockDim.x) / kWarp;
  value = sum_lanes(value, kWarp);
  if (warps <= 1) return value;
  if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x < kWarp) value = sum_lanes(threadIdx.x < warps ? warp_sums[threadIdx.x] : zero<acc_t>(), warps);
  return value;
}

}  // namespace cudamem
