// The `chunk` transpose: many small matrices, contiguous in both tensors.
//
// A thread block copies a run of whole matrices into shared memory as it lies, 16 bytes an access. Then each thread
// collects the elements of an output word from wherever they are. Divisions instead of tile edges: no thread is idle,
// whatever the sizes. Neither end of the run need be aligned: in shared memory it begins as far behind a boundary of 16
// bytes as in the input.
#pragma once

#include "transpose/tiles.cuh"

namespace cudamem {

constexpr int kChunkThreads = 256;
constexpr int kChunkBytes = 16384;  // of a thread block, where a matrix is no larger
constexpr int kMaxChunkBytes = 32768;
constexpr int kChunkEnds = 32;  // bytes more of shared memory, where a run begins and ends within a vector
constexpr int kChunkLoads = 4;  // of a thread, in flight

struct ChunkProblem {
  const char* input;
  char* output;
  int64_t bytes;    // of the whole tensor
  int chunk_bytes;  // of a thread block's matrices: at most kMaxChunkBytes
  Divisor plane, rows;
  int cols;
};

template <int kBytes>
__global__ void __launch_bounds__(kChunkThreads) transpose_chunk_kernel(const __grid_constant__ ChunkProblem p) {
  using element_t = BitsOf<kBytes>;
  constexpr int kPerWord = kBytes < 4 ? 4 / kBytes : 1;
  using word_t = BitsOf<kPerWord * kBytes>;
  extern __shared__ uint4 chunk[];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * p.chunk_bytes;
  const int bytes = static_cast<int>(min(p.bytes - base, static_cast<int64_t>(p.chunk_bytes)));
  const char* in = p.input + base;
  const int phase = static_cast<int>(reinterpret_cast<uintptr_t>(in) % 16);
  const uint4* vectors = reinterpret_cast<const uint4*>(in - phase);
  // Whole vectors: the first and the last may hold strangers, but only of this tensor.
  const int begin = base > 0 ? 0 : (phase + 15) / 16;
  const int64_t of_tensor = (phase + p.bytes - base) / 16;
  const int end = static_cast<int>(min(int64_t{phase + bytes + 15} / 16, of_tensor));
  for (int i = begin + threadIdx.x; i < end; i += kChunkThreads * kChunkLoads) {
    uint4 value[kChunkLoads];
#pragma unroll
    for (int k = 0; k < kChunkLoads; ++k) {
      if (i + k * kChunkThreads < end) value[k] = vectors[i + k * kChunkThreads];
    }
#pragma unroll
    for (int k = 0; k < kChunkLoads; ++k) {
      if (i + k * kChunkThreads < end) chunk[i + k * kChunkThreads] = value[k];
    }
  }
  element_t* elements = reinterpret_cast<element_t*>(reinterpret_cast<char*>(chunk) + phase);
  const int head = min(bytes, max(begin * 16 - phase, 0)), tail = max(end * 16 - phase, head);  // in bytes
  for (int i = threadIdx.x; i < head / kBytes; i += kChunkThreads) {
    elements[i] = reinterpret_cast<const element_t*>(in)[i];
  }
  for (int i = tail / kBytes + threadIdx.x; i < bytes / kBytes; i += kChunkThreads) {
    elements[i] = reinterpret_cast<const element_t*>(in)[i];
  }
  __syncthreads();

  const int rows = static_cast<int>(p.rows.divisor), plane_elems = static_cast<int>(p.plane.divisor);
  const int elems = bytes / kBytes;
  auto source = [&](int index, int& row, int& col) {  // of an element of the output: where it lies in the input
    uint32_t rest = index;
    const int plane = static_cast<int>(p.plane.divide(rest));
    col = static_cast<int>(p.rows.divide(rest));
    row = static_cast<int>(rest);
    return plane * plane_elems + row * p.cols + col;
  };
  element_t* out = reinterpret_cast<element_t*>(p.output + base);
  // The first word of the output may begin before the run, the last end behind it.
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(out) % sizeof(word_t)) / kBytes;
#pragma unroll 4
  for (int first = static_cast<int>(threadIdx.x) * kPerWord - before; first < elems;
       first += kChunkThreads * kPerWord) {
    int row, col;
    if constexpr (kPerWord == 1) {
      out[first] = elements[source(first, row, col)];
    } else if (first >= 0 && first + kPerWord <= elems) {
      int from = source(first, row, col);
      word_t word = elements[from];
#pragma unroll
      for (int b = 1; b < kPerWord; ++b) {
        from += p.cols;
        if (++row == rows) {  // the next column, or the first one of the next matrix
          row = 0;
          from -= plane_elems - 1;
          if (++col == p.cols) {
            col = 0;
            from += plane_elems - p.cols;
          }
        }
        word |= static_cast<word_t>(elements[from]) << (8 * kBytes * b);
      }
      *reinterpret_cast<word_t*>(out + first) = word;
    } else {
      for (int b = max(first, 0); b < min(first + kPerWord, elems); ++b) out[b] = elements[source(b, row, col)];
    }
  }
}

}  // namespace cudamem
