// One output, many blocks, one launch: the blocks of a group mail their partial sums to the group's last block, which
// adds them up.
//
// Hazard: mail must not be read before it is there, nor taken for that of the call before. A letter is one 64-bit word,
// half of it a mark: whoever reads the mark has the rest of the word, without a fence. All marks are 0 when the library
// is loaded, and the reader sets them back to 0: no call has to clear them. What does not fit into letters lies in
// scratch memory, and the letter is written with release and read with acquire semantics.
//
// Hazard: the last block waits for the others, so they must run. Blocks start in the order of their indices, and those
// that it waits for come before it.
//
// The partials are added in their own order, whichever arrived first: the same bits on every run, which atomicAdd on
// floats would not give. Beside a ticket from an atomic counter (write, fence, atomic, read, each a trip to L2 and
// back) it saves 0.5 us of 2.6.
#pragma once

#include "sum/accumulate.cuh"

namespace cudamem {

// Each file of kernels has its own; nobody shares a place in any of them.
static __device__ unsigned long long sum_letters[kSumLetters];

constexpr unsigned long long kMark = 1ull << 32;

template <typename acc_t>
constexpr int kLettersPerPartial = sizeof(acc_t) / 4;

// Mails a partial sum, half a word a letter.
template <typename acc_t>
__device__ inline void mail_partial(int first_letter, unsigned index, const acc_t& partial) {
  union {
    acc_t value;
    uint32_t halves[kLettersPerPartial<acc_t>];
  } both;
  both.value = partial;
#pragma unroll
  for (int h = 0; h < kLettersPerPartial<acc_t>; ++h) {
    asm volatile(
        "st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(sum_letters + first_letter + index * kLettersPerPartial<acc_t> + h),
        "l"(kMark | both.halves[h])
        : "memory");
  }
}

template <typename acc_t>
__device__ inline acc_t receive_partial(int first_letter, unsigned index) {
  union {
    acc_t value;
    uint32_t halves[kLettersPerPartial<acc_t>];
  } both;
  auto* letters = sum_letters + first_letter + index * kLettersPerPartial<acc_t>;
  unsigned long long words[kLettersPerPartial<acc_t>], marks;
  do {
    marks = kMark;
#pragma unroll
    for (int h = 0; h < kLettersPerPartial<acc_t>; ++h) {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(words[h]) : "l"(letters + h) : "memory");
    }
#pragma unroll
    for (int h = 0; h < kLettersPerPartial<acc_t>; ++h) marks &= words[h];
  } while (marks == 0);
#pragma unroll
  for (int h = 0; h < kLettersPerPartial<acc_t>; ++h) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(letters + h), "l"(0ull) : "memory");
    both.halves[h] = static_cast<uint32_t>(words[h]);
  }
  return both.value;
}

// Partials in scratch memory: all threads of the block wrote theirs. True in the group's last block once those of all
// its blocks can be read. `group` is blockIdx.x; all threads call it.
__device__ inline bool is_last_with_all_partials(const SumSplit& split) {
  if (split.first_letter < 0) return false;  // another launch adds them
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  unsigned long long* letters = sum_letters + split.first_letter + blockIdx.x * (split.pieces - 1);
  __syncthreads();
  if (blockIdx.y < split.pieces - 1) {
    if (thread == 0) {  // releases what the whole block wrote, since the barrier came before
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(letters + blockIdx.y), "l"(kMark) : "memory");
    }
    return false;
  }
  for (unsigned i = thread; i < split.pieces - 1; i += threads) {
    unsigned long long word;
    do {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(letters + i) : "memory");
    } while ((word & kMark) == 0);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(letters + i), "l"(0ull) : "memory");
  }
  __syncthreads();
  return true;
}

// The sum of every step-th of an output's partials in scratch memory, past L1, which is not coherent.
template <typename acc_t>
__device__ inline acc_t add_partials(const acc_t* partials, unsigned first, unsigned end, unsigned step) {
  using bits_t = std::conditional_t<sizeof(acc_t) == 4, uint32_t, std::conditional_t<sizeof(acc_t) == 8, uint2, uint4>>;
  acc_t total = zero<acc_t>();
#pragma unroll 8
  for (unsigned i = first; i < end; i += step) {
    union {
      bits_t bits;
      acc_t value;
    } both;
    both.bits = __ldcg(reinterpret_cast<const bits_t*>(partials + i));
    add(total, both.value);
  }
  return total;
}

// The second launch, where letters are not to be had: a block for each output of partials [outputs, pieces].
template <typename acc_t>
__global__ void __launch_bounds__(kFinishThreads) sum_partials_kernel(const __grid_constant__ SumParams p) {
  using sum_t = wide_t<acc_t>;
  const sum_t* partials = static_cast<const sum_t*>(p.split.partials) + int64_t{blockIdx.x} * p.split.pieces;
  const sum_t total = sum_block(add_partials(partials, threadIdx.x, p.split.pieces, blockDim.x));
  int64_t unused, out_offset;
  p.kept.offsets(blockIdx.x, unused, out_offset);
  if (threadIdx.x == 0) store(p.output, out_offset, narrow<acc_t>(total), p.out_type);
}

}  // namespace cudamem
