// The boundary between torch and the sum kernels.
#pragma once

#include "common/cuda_types.h"
#include "common/divisor.h"
#include "common/dtype.h"
#include "common/strided.h"
#include "sum/policy.h"

namespace cudamem {

enum class SumVariant { kAtomic, kShared, kShuffle, kTwoLaunches, kOneLaunch, kCompensated };
constexpr const char* kSumVariants[] = {"atomic", "shared", "shuffle", "two_launches", "one_launch", "compensated"};

// output[o] = sum over r of input[kept(o) + reduced(r)], in elements, each cast to cast_type first.
struct SumProblem {
  const void* input;
  void* output;
  DType in_type;
  DType cast_type;         // what each element is cast to: torch's dtype=
  DType out_type;          // what the sum is stored as
  StridedDims<2> kept;     // strides in the input and the output
  StridedDims<2> reduced;  // strides in the input and 0; both in the order of the input's strides, largest first
  int64_t num_outputs;
  int64_t num_reduced;
};

#ifndef CUDAMEM_CPU_ONLY

constexpr int kWarp = 32;
constexpr int kSumMaxDims = 8;  // of kernels that divide by multiplication; the textbook kernels take any

// How several blocks share an output.
struct SumSplit {
  unsigned pieces = 1;    // partial sums of an output
  int first_letter = -1;  // of the first block's; -1: a second launch adds the partials
  void* partials = nullptr;
};

// What the kernels take. `inner`, the innermost dim, is none of `kept` and `reduced` in rows (where it is reduced) and
// columns (where it is kept). What every kernel needs comes first (DividedDims says why).
struct SumParams {
  const void* input;
  void* output;
  int64_t inner;  // elements of a run or short row, columns, or vectors in all of packed rows or the whole
  int64_t piece;  // of each block in y: vectors, runs, rows or elements; of each block in x: short rows
  SumSplit split;
  int head = 0, tail = 0;  // the whole: elements before and after its vectors
  DType in_type, cast_type, out_type;
  bool guarded = false;            // columns: vectors reach beyond a row; rows: runs have ends
  bool lanes_side_by_side = true;  // strided
  bool adds_plainly = true;        // strided: elements need no cast
  int lanes = 1, lanes_log2 = 0;   // threads that share an output
  DividedDims<kSumMaxDims> kept, reduced;
  int run_lanes = 1, run_lanes_log2 = 0;  // rows: of `lanes`, side by side on a run
  int rows_per_vector = 1;                // packed rows
  Divisor windows;                        // columns: blocks side by side
  int window;                             // columns: of a block
  int fold;                               // columns: how many rows of the tensor make one of the kernel's
  int64_t last_inner, inner_out_stride;   // columns: of the last row; from one output to the next
};

// Which threads share an output of a small sum.
enum class Sharing { kLanes, kBlock, kWarps };

// What small sums take instead: what all of them read is one line.
constexpr int kSmallDims = 4;
struct SmallSumParams {
  struct Dim {
    Divisor size;
    uint32_t in_stride, out_stride;
  };
  const void* input;
  void* output;
  uint32_t outputs, length;                                  // elements of each output
  uint32_t kept_in_stride, kept_out_stride, reduced_stride;  // of the outermost dims, by which nothing is divided
  int8_t kept_divided, reduced_divided, lanes_log2;          // the other dims; threads that share an output
  DType out_type;
  Dim kept[kSmallDims - 1], reduced[kSmallDims - 1];  // innermost first

  // Returns false where the dims are too many or too large for 32 bits.
  bool set(const SumProblem& problem);
};

// The launch that the policy chose.
struct SumPlan {
  const void* kernel = nullptr;         // null: the textbook kernels take it
  const void* finish_kernel = nullptr;  // adds the partials where letters are not to be had
  dim3 grid, block, finish_grid;
  bool is_small = false;
  SmallSumParams small;  // then the kernel takes these,
  SumParams params;      // else these
  int64_t scratch_bytes = 0;
  int64_t letters = 0;
  bool mails_partials = false;  // and needs no scratch memory for them
};

// may_be_small: the kernel of small sums is none of the variants.
SumPlan plan_sum(const SumProblem& problem, SumVariant variant, bool may_be_small);

// For one launch, where blocks share outputs: they mail their partial sums (split.cuh). Without letters, or where none
// are left, a second launch adds them.
void take_letters(SumPlan& plan, cudaStream_t stream);
cudaError_t launch_sum(SumPlan& plan, void* scratch, cudaStream_t stream);

// What a sum of this cast type is accumulated in: int64, float32 or float64.
DType sum_accumulator(DType cast_type);

// Whether elements are cast by being added, or can be cast after the sum.
bool adds_plainly(DType in_type, DType cast_type);

// The textbook kernels, where that is so. `atomic` and `shared` add to what the output holds, in the accumulator's
// type; `shuffle` writes textbook_partials values for each output, one after the other: a last pass has one.
int64_t textbook_partials(SumVariant variant, int64_t num_reduced);
cudaError_t launch_textbook_sum(SumVariant variant, const SumProblem& problem, cudaStream_t stream);

std::vector<KernelEntry> sum_kernels();
#endif

}  // namespace cudamem
