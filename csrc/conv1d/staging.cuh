// A stretch of a row of global memory comes to shared memory: by 16-byte loads however the row is aligned, as zeros
// beyond its ends.
#pragma once

#include "common/device.cuh"

namespace cudamem {

// Half types add up in float32.
template <typename scalar_t>
using conv1d_acc_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

template <typename scalar_t>
constexpr int kVectorElems = 16 / sizeof(scalar_t);

// Four numbers that lie together.
template <typename acc_t>
struct alignas(16) Quad {
  acc_t v[4];
};

// A thread of a tile has `kRun` elements in a row. In shared memory four elements of space follow each run of more than
// four, so that the threads of a warp, which read at the same place of their runs, find it in different banks.
template <int kRun>
CUDAMEM_HOST_DEVICE constexpr int place(int element) {
  return kRun > 4 ? element + element / kRun * 4 : element;
}

template <typename scalar_t>
struct Row {
  const scalar_t* data;
  int64_t size, stride;  // in elements

  __device__ scalar_t at_or_zero(int64_t position) const {
    return position >= 0 && position < size ? __ldg(data + position * stride) : convert<scalar_t>(0.0f);
  }
};

// The 16 bytes that begin `bytes` (less than 16, a multiple of kElemBytes) into two vectors. The branches are the same
// for all threads.
template <int kElemBytes>
__device__ uint4 bytes_of_two(const uint4& lower, const uint4& upper, int bytes) {
  uint32_t w[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
  if (bytes & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
  }
  if constexpr (kElemBytes <= 4) {
    if (bytes & 4) {
#pragma unroll
      for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
    }
  }
  if constexpr (kElemBytes <= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], (bytes & 3) * 8);
  }
  return {w[0], w[1], w[2], w[3]};
}

// A vector of elements, converted, to where its first one belongs.
template <typename scalar_t, typename acc_t>
__device__ void store_converted(acc_t* tile, const uint4& vector) {
  constexpr int kElems = kVectorElems<scalar_t>;
  const auto* elements = reinterpret_cast<const scalar_t*>(&vector);
  if constexpr (kElems < 4) {
    *reinterpret_cast<double2*>(tile) = *reinterpret_cast<const double2*>(&vector);
  } else {
#pragma unroll
    for (int i = 0; i < kElems; i += 4) {
      Quad<acc_t> quad;
#pragma unroll
      for (int j = 0; j < 4; ++j) quad.v[j] = convert<acc_t>(elements[i + j]);
      *reinterpret_cast<Quad<acc_t>*>(tile + i) = quad;
    }
  }
}

// Brings the `count` elements from position `first` of `row` on, converted, to tile[place(0)], tile[place(1)], ... The
// caller is thread `thread` of `threads`, which need a barrier before they read. `count` is a multiple of a vector's
// elements. kBatch loads of a thread are on their way at once.
template <int kRun, int kBatch, typename scalar_t, typename acc_t>
__device__ void stage(acc_t* tile, const Row<scalar_t>& row, int64_t first, int count, int thread, int threads) {
  constexpr int kElems = kVectorElems<scalar_t>;
  // Vectors start at 16-byte boundaries, `shift` elements before what belongs in the tile: two make one of the tile's.
  const int shift = (reinterpret_cast<uintptr_t>(row.data) / sizeof(scalar_t) + first) % kElems;
  const auto* source = reinterpret_cast<const uint4*>(row.data + (first - shift));
  // Those of the tile's vectors whose sources lie within the row.
  int begin = 0, end = 0;
  if (row.stride == 1) {
    const int vectors = count / kElems;
    const int64_t before = first < shift ? (shift - first + kElems - 1) / kElems : 0;
    const int64_t room = row.size - (first - shift) - (shift != 0 ? kElems : 0);
    begin = static_cast<int>(min(before, int64_t{vectors}));
    end = room < kElems ? 0 : static_cast<int>(min(room / kElems, int64_t{vectors}));
    end = max(begin, end);
  }
  const auto put = [&](int vector, const uint4& value) {
    store_converted<scalar_t>(tile + place<kRun>(vector * kElems), value);
  };
  for (int at = begin + thread; at < end; at += kBatch * threads) {
    uint4 lower[kBatch], upper[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (at + i * threads < end) lower[i] = __ldg(source + at + i * threads);
    }
    if (shift == 0) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (at + i * threads < end) put(at + i * threads, lower[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (at + i * threads < end) upper[i] = __ldg(source + at + i * threads + 1);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (at + i * threads < end) {
          put(at + i * threads, bytes_of_two<sizeof(scalar_t)>(lower[i], upper[i], shift * sizeof(scalar_t)));
        }
      }
    }
  }
  const int before = begin * kElems, edges = before + count - end * kElems;
  for (int i = thread; i < edges; i += threads) {
    const int element = i < before ? i : i - before + end * kElems;
    tile[place<kRun>(element)] = convert<acc_t>(row.at_or_zero(first + element));
  }
}

}  // namespace cudamem
