// The boundary between torch and the sum kernels.
#pragma once

#include "common/cuda_types.h"
#include "common/dtype.h"
#include "common/strided.h"

namespace cudamem {

enum class SumVariant { kAtomic, kShared, kShuffle, kSerial };
constexpr const char* kSumVariants[] = {"atomic", "shared", "shuffle", "serial"};

// output[o] = sum over r of input[outputs.offset(o) + reduced.offset(r)], in elements.
struct SumProblem {
  const void* input;
  void* output;  // [num_outputs], contiguous
  DType in_type, out_type;
  StridedDims<1> outputs;
  StridedDims<1> reduced;
  int64_t num_outputs;
  int64_t num_reduced;
};

#ifndef CUDAMEM_CPU_ONLY
// The pairs of types that have a kernel: integers and bool into int64, half types and float32 through a float32
// accumulator into themselves or float32, float64 into float64.
bool sum_has_kernel(DType in_type, DType out_type);

// What a type is accumulated in, and so the type of the partial sums: int64, float32 or float64.
DType sum_accumulator(DType in_type);

// How many partial sums one pass leaves for each output; 1 means that it is the last pass.
int64_t sum_partials(SumVariant variant, int64_t num_reduced);

// One pass: num_outputs * sum_partials values, in order, of out_type. `atomic` adds to what the output holds, in the
// accumulator's type.
cudaError_t launch_sum(SumVariant variant, const SumProblem& problem, cudaStream_t stream);
std::vector<KernelEntry> sum_kernels();
#endif

}  // namespace cudamem
