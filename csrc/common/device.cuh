// What every kernel file needs: block numbering beyond a grid's limit in x, and conversions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "common/dtype.h"
#include "common/strided.h"

namespace cudamem {

// A grid takes 2^31 - 1 blocks in x but only 65,535 in y: x is filled first, y holds the overflow.
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;

inline dim3 grid_of(int64_t blocks) {
  const int64_t y = (blocks + kMaxGridX - 1) / kMaxGridX;
  return dim3(static_cast<unsigned>((blocks + y - 1) / y), static_cast<unsigned>(y));
}

// May pass the last block by less than gridDim.y: kernels compare it with their own block count.
__device__ inline int64_t block_index() { return int64_t{blockIdx.y} * gridDim.x + blockIdx.x; }

template <typename T>
CUDAMEM_HOST_DEVICE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// a / b of non-negative numbers. 64-bit division is a subroutine; most sizes fit in 32 bits.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

// Whether this pass compiles for compute capability 9.0 or newer: there some kernels take fewer registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kHopperOrNewer = true;
#else
constexpr bool kHopperOrNewer = false;
#endif

// An element of so many bytes, whose bits are moved and never read.
template <int kBytes>
using BitsOf = std::conditional_t<
    kBytes == 1, uint8_t,
    std::conditional_t<kBytes == 2, uint16_t,
                       std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 8, uint64_t, uint4>>>>;

// torch's bool: one byte, where any value but 0 is true.
struct Bool {
  uint8_t byte;
};

// convert<to>(x): to the accumulator when loading, from it when storing (rounded to nearest even).
template <typename to_t, typename from_t>
__device__ inline to_t convert(from_t x) {
  if constexpr (std::is_same_v<from_t, Bool>) {
    return static_cast<to_t>(x.byte != 0);
  } else if constexpr (std::is_same_v<to_t, from_t>) {
    return x;
  } else if constexpr (std::is_same_v<from_t, __half>) {
    return __half2float(x);
  } else if constexpr (std::is_same_v<from_t, __nv_bfloat16>) {
    return __bfloat162float(x);
  } else if constexpr (std::is_same_v<to_t, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<to_t, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return static_cast<to_t>(x);
  }
}

template <typename T>
constexpr DType kDType = DType::kBool;
template <>
constexpr DType kDType<uint8_t> = DType::kUInt8;
template <>
constexpr DType kDType<int8_t> = DType::kInt8;
template <>
constexpr DType kDType<int16_t> = DType::kInt16;
template <>
constexpr DType kDType<int32_t> = DType::kInt32;
template <>
constexpr DType kDType<int64_t> = DType::kInt64;
template <>
constexpr DType kDType<__half> = DType::kFloat16;
template <>
constexpr DType kDType<__nv_bfloat16> = DType::kBFloat16;
template <>
constexpr DType kDType<float> = DType::kFloat32;
template <>
constexpr DType kDType<double> = DType::kFloat64;

}  // namespace cudamem
