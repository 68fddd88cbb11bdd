// Index spaces with strides: how a linear index becomes an offset into memory that is not contiguous.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CUDAMEM_HOST_DEVICE __host__ __device__
#else
#define CUDAMEM_HOST_DEVICE
#endif

namespace cudamem {

// torch's own limit, and more than 64-bit sizes can fill: a dim of size 1 is dropped, so 63 remain at most.
constexpr int kMaxDims = 64;

// `count` dims, outermost first, walked by `kOperands` tensors at once, each with its own strides (in elements).
template <int kOperands>
struct StridedDims {
  int count = 0;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims][kOperands] = {};

  // Adds the next inner dim. Size 1 adds nothing; a dim that continues the one before it, in every operand, joins it.
  void append(int64_t size, const int64_t (&stride)[kOperands]) {
    if (size == 1) return;
    bool joins = count > 0;
    for (int k = 0; joins && k < kOperands; ++k) joins = strides[count - 1][k] == stride[k] * size;
    if (joins) {
      sizes[count - 1] *= size;
    } else {
      sizes[count++] = size;
    }
    for (int k = 0; k < kOperands; ++k) strides[count - 1][k] = stride[k];
  }

  void remove(int dim) {
    --count;
    for (int d = dim; d < count; ++d) {
      sizes[d] = sizes[d + 1];
      for (int k = 0; k < kOperands; ++k) strides[d][k] = strides[d + 1][k];
    }
  }

  CUDAMEM_HOST_DEVICE void offsets(int64_t index, int64_t (&result)[kOperands]) const {
    for (int k = 0; k < kOperands; ++k) result[k] = 0;
    for (int d = count - 1; d > 0; --d) {
      const int64_t rest = index / sizes[d];
      const int64_t coordinate = index - rest * sizes[d];
      for (int k = 0; k < kOperands; ++k) result[k] += coordinate * strides[d][k];
      index = rest;
    }
    if (count > 0) {
      for (int k = 0; k < kOperands; ++k) result[k] += index * strides[0][k];
    }
  }
};

}  // namespace cudamem
