// The copy that is left where input and output run fastest along the same dim: rows change places, nothing turns.
#pragma once

#include "transpose/tiles.cuh"

namespace cudamem {

constexpr int kCopyThreads = 256;

// ---------------------------------------------------------------------------------------------------------------------
// Vectors: as wide as sizes, strides and addresses allow. kVectors of them a thread.
// ---------------------------------------------------------------------------------------------------------------------

struct CopyProblem {
  const void* input;
  void* output;
  int tail_bytes;       // after the last vector, where all is one row
  DividedDims<6> dims;  // in the order in which threads walk them, outermost first; sizes and strides in vectors
};

template <int kVectorBytes, int kVectors>
__global__ void __launch_bounds__(kCopyThreads) transpose_copy_kernel(const __grid_constant__ CopyProblem p) {
  using vector_t = BitsOf<kVectorBytes>;
  const vector_t* in = static_cast<const vector_t*>(p.input);
  vector_t* out = static_cast<vector_t*>(p.output);
  const uint32_t first = blockIdx.x * (kCopyThreads * kVectors) + threadIdx.x;
  vector_t value[kVectors];
  int64_t to[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (first + k * kCopyThreads < p.dims.size) {
      int64_t from;
      p.dims.offsets<true>(first + k * kCopyThreads, from, to[k]);
      value[k] = in[from];
    }
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (first + k * kCopyThreads < p.dims.size) out[to[k]] = value[k];
  }
  if (blockIdx.x == 0 && threadIdx.x < p.tail_bytes) {
    const int64_t at = static_cast<int64_t>(p.dims.size) * kVectorBytes + threadIdx.x;
    static_cast<char*>(p.output)[at] = static_cast<const char*>(p.input)[at];
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows of any length and alignment: a thread stores 16 bytes of the output, which is contiguous, and gathers them from
// the words that hold them in the input, shifted into place.
// ---------------------------------------------------------------------------------------------------------------------

struct ShiftedCopyProblem {
  const char* input;
  char* output;
  uint32_t elems;
  Divisor row_elems;
  DividedDims<4> rows;  // their places in the input; strides in bytes
};

template <int kBytes>
__global__ void __launch_bounds__(kCopyThreads)
    transpose_shifted_copy_kernel(const __grid_constant__ ShiftedCopyProblem p) {
  using element_t = BitsOf<kBytes>;
  constexpr uint32_t V = 16 / kBytes;
  const uint32_t first = (blockIdx.x * kCopyThreads + threadIdx.x) * V;
  if (first >= p.elems) return;
  uint32_t place = first;
  uint32_t row = p.row_elems.divide(place);
  int64_t offset, unused;
  p.rows.offsets<true>(row, offset, unused);
  const char* from = p.input + offset + static_cast<int64_t>(place) * kBytes;
  const unsigned shift = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from) % 4);
  // All of the words must lie in the row: what lies behind it may be no memory of the tensor's.
  if (place + V + (shift ? 3 / kBytes : 0) <= p.row_elems.divisor) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from - shift);
    uint32_t word[5];
#pragma unroll
    for (int w = 0; w < 4; ++w) word[w] = words[w];
    word[4] = shift ? words[4] : 0;
    uint4 out;
    out.x = __funnelshift_r(word[0], word[1], 8 * shift);
    out.y = __funnelshift_r(word[1], word[2], 8 * shift);
    out.z = __funnelshift_r(word[2], word[3], 8 * shift);
    out.w = __funnelshift_r(word[3], word[4], 8 * shift);
    *reinterpret_cast<uint4*>(p.output + static_cast<int64_t>(first) * kBytes) = out;
    return;
  }
  element_t* out = reinterpret_cast<element_t*>(p.output) + first;
  for (uint32_t i = 0; i < V && first + i < p.elems; ++i) {  // at the end of a row, and across it
    out[i] = *reinterpret_cast<const element_t*>(from);
    from += kBytes;
    if (++place == p.row_elems.divisor) {
      place = 0;
      p.rows.offsets(++row, offset, unused);
      from = p.input + offset;
    }
  }
}

}  // namespace cudamem
