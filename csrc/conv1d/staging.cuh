// A stretch of a row of global memory comes to shared memory, however the row is aligned, with zeros beyond its ends.
#pragma once

#include "common/device.cuh"

namespace cudamem {

// Half types add up in float32.
template <typename scalar_t>
using conv1d_acc_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

template <typename scalar_t>
constexpr int kVectorElems = 16 / sizeof(scalar_t);

// A thread of a tile has `kRun` elements in a row. In shared memory four elements of space follow each run of 16, so that
// the threads of a warp, which read at the same place of their runs, find it in different banks.
template <int kRun>
CUDAMEM_HOST_DEVICE constexpr int place(int element) {
  return kRun > 8 ? element + element / kRun * 4 : element;
}

// Copies that run beside the program, from compute capability 8.0 on. `exists` false: zeros are copied.
template <int kBytes>
__device__ void copy_async(void* shared, const void* global, bool exists) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(exists ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(global), "n"(kBytes),
                 "r"(exists ? kBytes : 0)
                 : "memory");
  }
#else
  using Bits = BitsOf<kBytes>;
  *static_cast<Bits*>(shared) = exists ? __ldg(static_cast<const Bits*>(global)) : Bits{};
#endif
}

// What was copied since the last call makes a group; waits until at most kPending groups are still under way.
__device__ inline void end_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
__device__ void wait_for_groups() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
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

// Starts to bring the `count` elements from `position` of `row` on, and what comes early, to tile[place(0)],
// tile[place(1)], ... The caller is thread `thread` of `threads`. `count` is a multiple of a vector's elements.
template <int kRun, typename scalar_t>
__device__ void stage(scalar_t* tile, const Row<scalar_t>& row, int position, int count, int thread, int threads) {
  constexpr int kElems = kVectorElems<scalar_t>;
  const int early = row.early(position);
  position -= early;
  if (early != 0) count += kElems;
  // The vectors that lie within the row.
  int begin = 0, end = 0;
  if (row.stride == 1 && row.misaligned(position) == 0) {
    const int vectors = count / kElems;
    begin = min(position < 0 ? (kElems - 1 - position) / kElems : 0, vectors);
    end = max(min(max(row.size - position, 0) / kElems, vectors), begin);
    for (int i = begin + thread; i < end; i += threads) {
      copy_async<16>(tile + place<kRun>(i * kElems), row.data + (position + i * kElems), true);
    }
  }
  const int before = begin * kElems, edges = before + count - end * kElems;
#pragma unroll 4
  for (int i = thread; i < edges; i += threads) {
    const int element = i < before ? i : i - before + end * kElems;
    const bool exists = row.has(position + element);
    const scalar_t* source = row.data + (exists ? (position + element) * row.stride : 0);
    if constexpr (sizeof(scalar_t) == 2) {
      tile[place<kRun>(element)] = exists ? __ldg(source) : convert<scalar_t>(0.0f);
    } else {
      copy_async<sizeof(scalar_t)>(tile + place<kRun>(element), source, exists);
    }
  }
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
