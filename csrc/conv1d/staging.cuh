// A stretch of a row of global memory comes to shared memory, however the row is aligned, with zeros beyond its ends.
#pragma once

#include "common/device.cuh"
#include "conv1d/policy.h"
#include "conv1d/types.cuh"

namespace cudamem {

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

  __device__ scalar_t at(int position) const { return __ldg(data + position * stride); }

  // How far `position` is beyond a 16-byte boundary, in elements.
  __device__ int misaligned(int position) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(data) / sizeof(scalar_t) + position) &
           (kVectorElems<scalar_t> - 1);
  }
  // How many elements a tile that is staged from a boundary holds before the one at `position`.
  __device__ int early(int position) const { return stride == 1 ? misaligned(position) : 0; }
};

template <typename scalar_t>
__device__ void copy_one(scalar_t* to, const scalar_t* from) {
  if constexpr (sizeof(scalar_t) == 2) {
    *to = __ldg(from);  // too small for an asynchronous copy
  } else {
    copy_async<sizeof(scalar_t)>(to, from);
  }
}

// The general case of `stage`, out of the way of the common one.
template <typename scalar_t>
__device__ __noinline__ void stage_any(scalar_t* tile, Row<scalar_t> row, int position, int count, int thread,
                                       int threads) {
  constexpr int kElems = kVectorElems<scalar_t>;
  if (row.stride == 1 && row.misaligned(position) == 0) {  // vectors that lie within the row, and the rest one by one
    for (int i = thread * kElems; i < count; i += threads * kElems) {
      const scalar_t* source = row.data + (position + i);
      if (position + i >= 0 && position + i <= row.size - kElems) {
        copy_async<16>(tile + i, source);
      } else {
#pragma unroll
        for (int j = 0; j < kElems; ++j) {
          tile[i + j] = row.has(position + i + j) ? __ldg(source + j) : convert<scalar_t>(0.0f);
        }
      }
    }
    return;
  }
  const scalar_t* from = row.data + (position + thread) * row.stride;
  const int64_t step = threads * row.stride;
#pragma unroll 4
  for (int i = thread; i < count; i += threads, from += step) {
    if (row.has(position + i)) {
      copy_one(tile + i, from);
    } else {
      tile[i] = convert<scalar_t>(0.0f);
    }
  }
}

// Starts to bring the `count` elements from `position` of `row` on to `tile`, zeros for those beyond the row's ends.
// The caller is thread `thread` of `threads`, at least as many as a vector's elements. kFromBoundary: begins at the
// 16-byte boundary before `position`, and brings so many elements more, where the row has unit stride. Otherwise, from
// a position off the boundaries, elements are copied one by one.
template <bool kFromBoundary, typename scalar_t>
__device__ void stage(scalar_t* tile, const Row<scalar_t>& row, int position, int count, int thread, int threads) {
  constexpr int kElems = kVectorElems<scalar_t>;
  if constexpr (kFromBoundary) {
    const int early = row.early(position);
    position -= early;
    count += early;
  }
  if (row.stride != 1 || position < 0 || position > row.size - count) {
    stage_any(tile, row, position, count, thread, threads);
    return;
  }
  const scalar_t* from = row.data + (position + thread);
  if (row.misaligned(position) == 0) {
    const int vectors = count & -kElems;
    const scalar_t* source = from + thread * (kElems - 1);
    scalar_t* target = tile + thread * kElems;
    const int step = threads * kElems;
#pragma unroll 2
    for (; target < tile + vectors; target += step, source += step) copy_async<16>(target, source);
    if (vectors + thread < count) copy_one(tile + vectors + thread, from + vectors);
  } else if (threads == kGradientThreads) {
#pragma unroll 4
    for (int i = 0; i < count - thread; i += kGradientThreads) copy_one(tile + thread + i, from + i);
  } else {
    for (int i = 0; i < count - thread; i += threads) copy_one(tile + thread + i, from + i);
  }
}

// Kept in a register as it is, so that accesses near it differ by constants in their instructions.
template <typename T>
__device__ T* opaque(T* global) {
  asm("" : "+l"(global));
  __builtin_assume(__isGlobal(global));
  return global;
}
__device__ inline int opaque(int value) {
  asm("" : "+r"(value));
  return value;
}

// The elements of a row's two ends that fill no 16-byte vector.
template <typename scalar_t>
struct RowEnds {
  static constexpr int kElems = kVectorElems<scalar_t>, kMost = 2 * kElems;
  const int head, tail, size;  // head, tail: how many

  __device__ explicit RowEnds(const Row<scalar_t>& row)
      : head(-row.misaligned(0) & (kElems - 1)), tail(row.misaligned(row.size)), size(row.size) {}
  __device__ bool any() const { return (head | tail) != 0; }
  // The i-th of kMost, or a negative number: the first kElems lie at the row's beginning, the others at its end.
  __device__ int element(int i) const {
    const int element = i < kElems ? i : size - kMost + i;
    const bool wanted = i < kElems ? i < head : i >= kMost - tail && element >= head;
    return wanted && element < size ? element : -1;
  }
};

// function(element of the row, of the tile) for the row's ends, of a tile of `count` that begins at a boundary, at
// `position`.
template <typename scalar_t, typename Function>
__device__ void for_each_end(const Row<scalar_t>& row, int position, int count, int lane, Function function) {
  const RowEnds<scalar_t> ends(row);
  if (!ends.any()) return;
  __syncwarp();
  const int element = lane < ends.kMost ? ends.element(lane) : -1, i = element - position;
  if (element >= 0 && i >= 0 && i < count) function(element, i);
}

// Where the 16-byte vectors of a tile lie: as they come.
struct InOrder {
  __device__ static uint32_t place(uint32_t vector) { return vector; }
};

// As `stage`, but by one warp, from a position at a boundary, and without asynchronous copies: kLoads of a lane's
// vectors are under way at once, in registers. `count`: whole vectors. kCount: the same where it is known to the
// compiler, else 0.
template <int kLoads, typename Place, int kCount, typename scalar_t>
__device__ void stage_by_warp(scalar_t* tile, const Row<scalar_t>& row, int position, int count, int lane) {
  constexpr int kElems = kVectorElems<scalar_t>;
  if (row.stride != 1) {
#pragma unroll kStridedLoads
    for (int i = lane; i < count; i += 32) {
      tile[i] = row.has(position + i) ? row.at(position + i) : convert<scalar_t>(0.0f);
    }
    return;
  }
  const int at = position + lane * kElems;
  const auto* from = opaque(reinterpret_cast<const uint4*>(row.data + at));
  auto* const to = reinterpret_cast<uint4*>(tile);
  const int left = count / kElems - lane;
  const auto wanted = [&](int i) { return i + 32 <= kCount / kElems || i < left; };
  if (position >= 0 && position <= row.size - count) {
    uint4 vectors[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (wanted(32 * i)) vectors[i] = __ldg(from + 32 * i);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (wanted(32 * i)) to[Place::place(lane + 32 * i)] = vectors[i];
    }
    if constexpr (kCount == 0) {
#pragma unroll 1
      for (int i = 32 * kLoads; i < left; i += 32) to[Place::place(lane + i)] = __ldg(from + i);
    }
    return;
  }
  // Zeros for what lies beyond the row's ends.
  const auto within = [&](int i) { return at + i * kElems >= 0 && at + i * kElems <= row.size - kElems; };
  uint4 vectors[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    vectors[i] = {};
    if (within(32 * i)) vectors[i] = __ldg(from + 32 * i);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (wanted(32 * i)) to[Place::place(lane + 32 * i)] = vectors[i];
  }
  if constexpr (kCount == 0) {
#pragma unroll 1
    for (int i = 32 * kLoads; i < left; i += 32) to[Place::place(lane + i)] = within(i) ? __ldg(from + i) : uint4{};
  }
  for_each_end(row, position, count, lane, [&](int element, int i) {
    const uint32_t place = Place::place(static_cast<uint32_t>(i) / kElems) * kElems + i % kElems;
    tile[place] = __ldg(row.data + element);
  });
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
