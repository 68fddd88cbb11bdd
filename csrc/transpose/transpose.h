// The boundary between torch and the transpose kernels.
#pragma once

#include "common/cuda_types.h"
#include "common/strided.h"

namespace cudamem {

enum class TransposeVariant { kNaive, kShared, kPadded };
constexpr const char* kTransposeVariants[] = {"naive", "shared", "padded"};

// A strided input copied into contiguous memory, as a batch of planes.
// `cols` is the dim along which the input runs fastest, `rows` the one along which the output does.
// Strides are in elements.
struct TransposeProblem {
  const void* input;
  void* output;
  int element_bytes;  // 1, 2, 4, 8 or 16
  int64_t rows, cols;
  int64_t in_row_stride, in_col_stride;
  int64_t out_row_stride, out_col_stride;
  StridedDims<2> batch;  // operands: input, output
  int64_t planes;        // the product of the batch sizes
};

// Splits `dims` (operands: input, output; outermost first, the output contiguous) into a plane and its batch.
// Returns false where input and output run fastest along the same dim: a copy, with nothing to transpose.
inline bool choose_transpose_plane(const StridedDims<2>& dims, TransposeProblem& problem) {
  constexpr int kIn = 0, kOut = 1;
  problem.batch = dims;
  problem.rows = problem.cols = problem.planes = 1;
  problem.in_row_stride = problem.in_col_stride = problem.out_row_stride = problem.out_col_stride = 0;
  if (dims.count == 0) return false;

  const int row = dims.count - 1;
  int fastest = row;
  int col = -1;
  auto step = [&](int d) { return dims.strides[d][kIn]; };
  for (int d = 0; d < dims.count; ++d) {
    if (step(d) == 0) continue;  // expanded: every element is the same one, so no direction is the fast one
    if (step(fastest) == 0 || step(d) < step(fastest)) fastest = d;
    if (d != row && (col < 0 || step(d) < step(col))) col = d;
  }
  if (col < 0 && dims.count > 1) col = row - 1;

  problem.rows = dims.sizes[row];
  problem.in_row_stride = dims.strides[row][kIn];
  problem.out_row_stride = dims.strides[row][kOut];
  problem.batch.remove(row);
  if (col >= 0) {
    problem.cols = dims.sizes[col];
    problem.in_col_stride = dims.strides[col][kIn];
    problem.out_col_stride = dims.strides[col][kOut];
    problem.batch.remove(col);
  }
  for (int d = 0; d < problem.batch.count; ++d) problem.planes *= problem.batch.sizes[d];
  return fastest != row;
}

#ifndef CUDAMEM_CPU_ONLY
cudaError_t launch_transpose(TransposeVariant variant, const TransposeProblem& problem, cudaStream_t stream);
std::vector<KernelEntry> transpose_kernels();
#endif

}  // namespace cudamem
