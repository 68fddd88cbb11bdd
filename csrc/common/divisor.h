// Division by numbers that are known at launch: a multiplication and a shift instead of a subroutine.
#pragma once

#include <cstdint>

#include "common/strided.h"

namespace cudamem {

constexpr int64_t kMaxDividend = (int64_t{1} << 31) - 1;

// Exact for 0 <= n < 2^31 and 1 <= divisor < 2^31.
// Source: T. Granlund, P. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994.
struct Divisor {
  uint32_t divisor, multiplier, shift = 0;

  explicit Divisor(int64_t d = 1) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor);
  }

#ifdef __CUDACC__
  // n becomes the remainder; returns the quotient.
  __device__ uint32_t divide(uint32_t& n) const {
    const uint32_t q = __umulhi(2 * n, multiplier) >> shift;
    n -= q * divisor;
    return q;
  }
#endif
};

// At most kMax dims of StridedDims<2> as kernels take them: operand 0 is the input, 1 the output.
//
// What a kernel needs of its parameters comes in lines of 64 bytes, of which each multiprocessor fetches each anew:
// 0.03 to 0.07 us a line. So what belongs to a dim lies together.
template <int kMax>
struct DividedDims {
  struct Dim {
    Divisor size;
    int64_t in_stride = 0, out_stride = 0;
  };
  int count = 0;
  uint32_t size = 1;  // the product
  Dim dims[kMax];     // outermost first

  // Strides are multiplied by `scale`. Returns false where the dims are too many or too large.
  bool set(const StridedDims<2>& strided, int64_t scale) {
    int64_t product = 1;
    if (strided.count > kMax) return false;
    for (int d = 0; d < strided.count; ++d) {
      if (strided.sizes[d] > kMaxDividend / product) return false;
      product *= strided.sizes[d];
      dims[d] = {Divisor(strided.sizes[d]), strided.strides[d][0] * scale, strided.strides[d][1] * scale};
    }
    count = strided.count;
    size = static_cast<uint32_t>(product);
    return true;
  }

#ifdef __CUDACC__
  // kUnrolled: for every thread's own index. Else for what a block computes once: a loop, but mostly of no or one dim.
  template <bool kUnrolled = false>
  __device__ void offsets(uint32_t index, int64_t& in, int64_t& out) const {
    in = out = 0;
    auto peel = [&](int d) {
      uint32_t here = index;
      index = d > 0 ? dims[d].size.divide(here) : 0;
      in += here * dims[d].in_stride;
      out += here * dims[d].out_stride;
    };
    if constexpr (kUnrolled) {
#pragma unroll
      for (int d = kMax - 1; d >= 0; --d) {
        if (d < count) peel(d);
      }
    } else if (count == 1) {
      in = index * dims[0].in_stride;
      out = index * dims[0].out_stride;
    } else {
#pragma unroll 1
      for (int d = count - 1; d >= 0; --d) peel(d);
    }
  }
#endif
};

}  // namespace cudamem
