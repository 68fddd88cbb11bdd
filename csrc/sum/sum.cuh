// Sum as textbooks teach it: many values become one, and the threads that hold them must meet somewhere.
//
// Traffic: each element is read once, elements * element_bytes; what is written is small beside it.
// Hazard:  where the threads meet. One address for all of them serialises; a tree takes log2(n) steps, each of
//          which costs a barrier in shared memory and one instruction in registers.
//
//   atomic   one atomicAdd per element: the additions to one output queue up behind each other, in an order that
//            changes from run to run (so float results change too)
//   shared   a tree in shared memory, a barrier at each of its 8 levels; then one atomicAdd per block
//   shuffle  a tree in registers, inside each warp, by __shfl_down_sync; then one value per warp. A block writes its
//            value into scratch where an output has more than one; further passes of the same kernel add those up, in
//            an order that depends on the shape alone: the same bits on every run.
// Source: M. Harris, "Optimizing Parallel Reduction in CUDA", NVIDIA, 2007.
#pragma once

#include "sum/accumulate.cuh"

namespace cudamem {

// atomicAdd knows no signed 64-bit integer; two's complement adds alike.
template <typename acc_t>
__device__ void sum_atomic_add(acc_t* address, acc_t value) {
  if constexpr (std::is_same_v<acc_t, int64_t>) {
    atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
  } else {
    atomicAdd(address, value);
  }
}

template <typename in_t>
__device__ const in_t* sum_input(const SumProblem& p, int64_t output) {
  int64_t offsets[2];
  p.kept.offsets(output, offsets);
  return static_cast<const in_t*>(p.input) + offsets[0];
}

__device__ inline int64_t sum_output_offset(const SumProblem& p, int64_t output) {
  int64_t offsets[2];
  p.kept.offsets(output, offsets);
  return offsets[1];
}

template <typename in_t, typename acc_t>
__global__ void __launch_bounds__(kTextbookThreads) sum_atomic_kernel(const __grid_constant__ SumProblem p) {
  const int64_t index = block_index() * kTextbookThreads + threadIdx.x;
  const int64_t output = quotient(index, p.num_reduced);
  if (output >= p.num_outputs) return;
  int64_t offsets[2];
  p.reduced.offsets(index - output * p.num_reduced, offsets);
  sum_atomic_add(static_cast<acc_t*>(p.output) + sum_output_offset(p, output),
                 convert<acc_t>(sum_input<in_t>(p, output)[offsets[0]]));
}

// The part of one output's elements that this block adds.
struct SumChunk {
  int64_t output, first, partials;

  __device__ explicit SumChunk(const SumProblem& p) {
    partials = ceil_div<int64_t>(p.num_reduced, kTextbookChunk);
    const int64_t block = block_index();
    output = quotient(block, partials);
    first = (block - output * partials) * kTextbookChunk;
  }
};

// This thread's share of the chunk. Neighbouring threads read neighbouring elements in every step.
template <typename in_t, typename acc_t>
__device__ acc_t sum_items(const SumProblem& p, const SumChunk& chunk) {
  const int64_t end = min(chunk.first + kTextbookChunk, p.num_reduced);
  const in_t* in = sum_input<in_t>(p, chunk.output);
  acc_t total = 0;
  if (p.reduced.count <= 1) {  // the common case, without the divisions that further dims cost
    const int64_t stride = p.reduced.strides[0][0];
#pragma unroll 4
    for (int64_t e = chunk.first + threadIdx.x; e < end; e += kTextbookThreads) total += convert<acc_t>(in[e * stride]);
  } else {
#pragma unroll 1
    for (int64_t e = chunk.first + threadIdx.x; e < end; e += kTextbookThreads) {
      int64_t offsets[2];
      p.reduced.offsets(e, offsets);
      total += convert<acc_t>(in[offsets[0]]);
    }
  }
  return total;
}

template <typename in_t, typename acc_t>
__global__ void __launch_bounds__(kTextbookThreads) sum_shared_kernel(const __grid_constant__ SumProblem p) {
  __shared__ acc_t values[kTextbookThreads];
  const SumChunk chunk(p);
  if (chunk.output >= p.num_outputs) return;

  values[threadIdx.x] = sum_items<in_t, acc_t>(p, chunk);
  __syncthreads();
  for (int half = kTextbookThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];  // neighbours: no bank conflict
    __syncthreads();
  }
  if (threadIdx.x == 0) sum_atomic_add(static_cast<acc_t*>(p.output) + sum_output_offset(p, chunk.output), values[0]);
}

// Lane 0 ends with the sum of its warp. __shfl_down_sync hands each lane the value of the lane `step` above it; the
// mask names the lanes that take part, which must all be there: here the whole warp, always.
template <typename acc_t>
__device__ acc_t sum_warp(acc_t value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_down_sync(kAllLanes, value, step);
  return value;
}

// Writes `partials` values for each output, one after the other; a last pass has one.
template <typename in_t, typename acc_t>
__global__ void __launch_bounds__(kTextbookThreads) sum_shuffle_kernel(const __grid_constant__ SumProblem p) {
  constexpr int kWarps = kTextbookThreads / kWarp;
  __shared__ acc_t warp_sums[kWarps];
  const SumChunk chunk(p);
  if (chunk.output >= p.num_outputs) return;

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const acc_t of_warp = sum_warp(sum_items<in_t, acc_t>(p, chunk));
  if (lane == 0) warp_sums[warp] = of_warp;
  __syncthreads();
  if (warp == 0) {
    const acc_t total = sum_warp(lane < kWarps ? warp_sums[lane] : acc_t{0});
    if (lane == 0) {
      const int64_t index = sum_output_offset(p, chunk.output) * chunk.partials + chunk.first / kTextbookChunk;
      store(p.output, index, total, p.out_type);
    }
  }
}

}  // namespace cudamem
