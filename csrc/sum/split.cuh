// One output, many blocks, one launch: the blocks of a group mail their partial sums to the group's last block, which
// adds them up.
//
// Hazard: mail must not be read before it is there, nor taken for that of the call before. A letter is one 64-bit word
// that is not 0: whoever reads it has all of it, without a fence. All are 0 when the library is loaded, and the reader
// sets them back to 0: no call has to clear them. What does not fit into letters lies in scratch memory, and the letter
// is written with release and read with acquire semantics.
//
// Hazard: the last block waits for the others, so they must run. Blocks start in the order of their indices, and those
// that it waits for come before it.
//
// The partials are added in their own order, whichever arrived first: the same bits on every run, which atomicAdd on
// floats would not give. Beside a ticket from an atomic counter (write, fence, atomic, read, each a trip to L2 and
// back) it saves 0.5 us of 2.6 in a bare kernel.
#pragma once

#include "sum/accumulate.cuh"

namespace cudamem {

// Each file of kernels has its own; nobody shares a place in any of them.
static __device__ unsigned long long sum_letters[kSumLetters];

using Letter = unsigned long long;
constexpr Letter kMark = 1ull << 32, kNaN = 0x7ff8000000000000;

// How a partial sum becomes letters, none of which is 0. A double needs no mark: its bits are inverted, and only a NaN
// of all ones would become 0, in whose place another one is mailed.
template <typename sum_t>
struct Mail;
template <>
struct Mail<double> {
  static constexpr int kLetters = 1;
  __device__ static void write(double sum, Letter (&letters)[1]) {
    letters[0] = ~(sum != sum ? kNaN : static_cast<Letter>(__double_as_longlong(sum)));
  }
  __device__ static double read(const Letter (&letters)[1]) {
    return __longlong_as_double(static_cast<long long>(~letters[0]));
  }
};
template <>
struct Mail<Compensated<double>> {
  static constexpr int kLetters = 2;
  __device__ static void write(const Compensated<double>& sum, Letter (&letters)[2]) {
    Letter one[1];
    Mail<double>::write(sum.sum, one);
    letters[0] = one[0];
    Mail<double>::write(sum.lost, one);
    letters[1] = one[0];
  }
  __device__ static Compensated<double> read(const Letter (&letters)[2]) {
    return {Mail<double>::read({letters[0]}), Mail<double>::read({letters[1]})};
  }
};
template <>
struct Mail<int64_t> {  // half a number and a mark a letter
  static constexpr int kLetters = 2;
  __device__ static void write(int64_t sum, Letter (&letters)[2]) {
    letters[0] = kMark | static_cast<uint32_t>(sum);
    letters[1] = kMark | static_cast<uint32_t>(sum >> 32);
  }
  __device__ static int64_t read(const Letter (&letters)[2]) {
    return static_cast<int64_t>(letters[1] << 32 | static_cast<uint32_t>(letters[0]));
  }
};

template <typename sum_t>
__device__ inline void mail_partial(int first_letter, unsigned index, const sum_t& partial) {
  constexpr int kLetters = Mail<sum_t>::kLetters;
  Letter letters[kLetters];
  Mail<sum_t>::write(partial, letters);
#pragma unroll
  for (int i = 0; i < kLetters; ++i) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(sum_letters + first_letter + index * kLetters + i),
                 "l"(letters[i])
                 : "memory");
  }
}

// Adds every step-th of the partials from `index` to `end`: the letters of kAtOnce of them are read together, since
// each look costs a trip to L2.
template <typename sum_t>
__device__ inline void add_mailed(sum_t& total, int first_letter, unsigned index, unsigned end, unsigned step) {
  constexpr int kAtOnce = 4, kLetters = Mail<sum_t>::kLetters;
  for (; index < end; index += kAtOnce * step) {
    Letter letters[kAtOnce][kLetters];
    const auto each = [&](auto visit) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (index + u * step >= end) continue;
#pragma unroll
        for (int i = 0; i < kLetters; ++i) {
          visit(letters[u][i], sum_letters + first_letter + (index + u * step) * kLetters + i);
        }
      }
    };
    bool all;
    do {
      all = true;
      each([](Letter& letter, Letter* from) {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(letter) : "l"(from) : "memory");
      });
      each([&](Letter letter, Letter*) { all &= letter != 0; });
    } while (!all);
    each([](Letter, Letter* from) {
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(from), "l"(0ull) : "memory");
    });
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (index + u * step < end) add(total, Mail<sum_t>::read(letters[u]));
    }
  }
}

// Adds up what the threads of all blocks have that share an output. True in the one thread that ends with the sum.
template <int kThreads = 0, typename sum_t>
__device__ inline bool sum_of_blocks(const SumSplit& split, unsigned output, sum_t& total) {
  const unsigned others = split.pieces - 1;
  const bool by_mail = others > 0 && split.first_letter >= 0, is_last = blockIdx.y == others;
  if (by_mail && is_last) {
    const unsigned first = output * others, step = kThreads > 0 ? kThreads : blockDim.x;
    add_mailed(total, split.first_letter, first + threadIdx.x, first + others, step);
  }
  total = sum_block<kThreads>(total);
  if (threadIdx.x != 0) return false;
  if (others == 0 || (by_mail && is_last)) return true;
  if (by_mail) {
    mail_partial(split.first_letter, output * others + blockIdx.y, total);
  } else {  // another launch adds the partials
    static_cast<sum_t*>(split.partials)[output * split.pieces + blockIdx.y] = total;
  }
  return false;
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
  const sum_t total = sum_block<kFinishThreads>(add_partials(partials, threadIdx.x, p.split.pieces, kFinishThreads));
  int64_t unused, out_offset;
  p.kept.offsets(blockIdx.x, unused, out_offset);
  if (threadIdx.x == 0) store(p.output, out_offset, narrow<acc_t>(total), p.out_type);
}

}  // namespace cudamem
