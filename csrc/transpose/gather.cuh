// The `gather`: a thread stores a word of the output, whose elements it collects from wherever they lie. Only divisions
// come before the first load, so that small tensors are done soonest, in any order of dims and with any strides.
//
// Traffic: neighbouring words of the output come from different rows of the input, each a sector of 32 bytes of which
//          one element is used: L2 has the others by the time that they are asked for, as long as they fit.
#pragma once

#include "common/device.cuh"
#include "common/divisor.h"

namespace cudamem {

constexpr int kGatherThreads = 128;
constexpr int kGatherDims = 6;

// Two dims take one line of 64 bytes (DividedDims in common/divisor.h says what a line costs).
struct GatherProblem {
  const void* input;
  void* output;
  uint32_t elems;
  int divided;            // dims: all but the outermost
  uint32_t outer_stride;  // of the input, in elements
  struct Dim {
    Divisor size;
    uint32_t in_stride;
  } dims[kGatherDims - 1];  // innermost first
};

// kElems: of a word.
template <int kBytes, int kElems>
__global__ void __launch_bounds__(kGatherThreads) transpose_gather_kernel(const __grid_constant__ GatherProblem p) {
  using element_t = BitsOf<kBytes>;
  using word_t = BitsOf<kBytes * kElems>;
  const uint32_t first = (blockIdx.x * kGatherThreads + threadIdx.x) * kElems;
  const element_t* in = static_cast<const element_t*>(p.input);
  element_t* out = static_cast<element_t*>(p.output) + first;
  union {
    element_t elements[kElems];
    word_t word;
  } all;
#pragma unroll
  for (int e = 0; e < kElems; ++e) {
    uint32_t index = first + e, from = 0;
    if (index >= p.elems) break;
#pragma unroll
    for (int d = 0; d < kGatherDims - 1; ++d) {
      if (d >= p.divided) break;
      uint32_t here = index;
      index = p.dims[d].size.divide(here);
      from += here * p.dims[d].in_stride;
    }
    all.elements[e] = in[from + index * p.outer_stride];
  }
  if (first + kElems <= p.elems) {
    *reinterpret_cast<word_t*>(out) = all.word;
  } else {
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      if (first + e < p.elems) out[e] = all.elements[e];
    }
  }
}

}  // namespace cudamem
