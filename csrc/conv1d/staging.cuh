// A stretch of a row of global memory comes to shared memory, however the row is aligned, with zeros beyond its ends.
#pragma once

#include "common/device.cuh"

namespace cudamem {

// Half types add up in float32.
template <typename scalar_t>
using conv1d_acc_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

template <typename scalar_t>
constexpr int kVectorElems = 16 / sizeof(scalar_t);

// Copies that run beside the program, from compute capability 8.0 on.
template <int kBytes>
__device__ void copy_async(void* shared, const void* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(kBytes) : "memory");
  }
#else
  using Bits = BitsOf<kBytes>;
  *static_cast<Bits*>(shared) = __ldg(static_cast<const Bits*>(global));
#endif
}

// Waits for the copies that this thread has started.
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

template <typename scalar_t>
struct Row {
  const scalar_t* data;
  int size;
  int64_t stride;  // in elements

  __device__ bool has(int position) const { return static_cast<unsigned>(position) < static_cast<unsigned>(size); }

  // How far `position` is beyond a 16-byte boundary, in elements.
  __device__ int misaligned(int position) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(data) / sizeof(scalar_t) + position) & (kVectorElems<scalar_t> - 1);
  }

  // Elements of two bytes cannot be copied one by one: their tiles start at a 16-byte boundary, as many elements early.
  __device__ int early(int position) const {
    return sizeof(scalar_t) == 2 && stride == 1 ? misaligned(position) : 0;
  }
};

// Starts to bring the `count` elements from `position` of `row` on to `tile`, with what comes early before them. The
// caller is thread `thread` of `threads`. `count` is a multiple of a vector's elements.
template <typename scalar_t>
__device__ void stage(scalar_t* tile, const Row<scalar_t>& row, int position, int count, int thread, int threads) {
  constexpr int kElems = kVectorElems<scalar_t>;
  const int early = row.early(position);
  position -= early;
  if (early != 0) count += kElems;
  // The elements that lie within the row, and among these the whole vectors.
  const int begin = min(max(-position, 0), count), end = max(min(row.size - position, count), begin);
  const scalar_t* const source = row.data + position * row.stride;
  const auto copy = [](scalar_t* to, const scalar_t* from) {
    if constexpr (sizeof(scalar_t) == 2) {
      *to = __ldg(from);
    } else {
      copy_async<sizeof(scalar_t)>(to, from);
    }
  };
  if (row.stride == 1 && row.misaligned(position) == 0) {
    const int first = (begin + kElems - 1) / kElems, last = end / kElems;
    for (int i = first + thread; i < last; i += threads) copy_async<16>(tile + i * kElems, source + i * kElems);
    const int before = min(first * kElems, end), after = max(last * kElems, before);
    if (begin + thread < before) copy(tile + begin + thread, source + begin + thread);
    if (after + thread < end) copy(tile + after + thread, source + after + thread);
  } else {
    scalar_t* to = tile + begin + thread;
    const scalar_t* from = source + (begin + thread) * row.stride;
    const int64_t step = threads * row.stride;
#pragma unroll 4
    for (; to < tile + end; to += threads, from += step) copy(to, from);
  }
  for (int i = thread; i < begin; i += threads) tile[i] = convert<scalar_t>(0.0f);
  for (int i = end + thread; i < count; i += threads) tile[i] = convert<scalar_t>(0.0f);
}

// The 16 bytes that begin `bytes` (less than 16, even) into two vectors. The branches are the same for all threads.
__device__ inline uint4 bytes_of_two(const uint4& lower, const uint4& upper, int bytes) {
  uint32_t w[7] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z};
  if (bytes & 8) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 2];
    w[5] = upper.w;
  }
  if (bytes & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], (bytes & 2) * 8);
  return {w[0], w[1], w[2], w[3]};
}

}  // namespace cudamem
