// The boundary between torch and the transpose kernels.
#pragma once

#include "common/cuda_types.h"
#include "common/strided.h"

namespace cudamem {

enum class TransposeVariant { kNaive, kShared, kPadded, kSwizzled, kAligned };
constexpr const char* kTransposeVariants[] = {"naive", "shared", "padded", "swizzled", "aligned"};

// A strided input copied into contiguous memory, as a batch of planes.
// `cols` is the dim along which the input runs fastest, `rows` the one along which the output does; where both are the
// same, `cols` is another one.
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
// What a variant needs of the problem and does not find; nullptr where it can be launched.
const char* transpose_needs(TransposeVariant variant, const TransposeProblem& problem);

cudaError_t launch_transpose(TransposeVariant variant, const TransposeProblem& problem, cudaStream_t stream);

// The fastest kernel for the problem, which is that of `dims`. Returns false where there is none better than ATen's
// copy.
bool launch_best_transpose(const StridedDims<2>& dims, const TransposeProblem& problem, cudaStream_t stream,
                           cudaError_t& error);

// A copy between two orders of dims that run fastest along the same one, the last: input and output strides in
// elements, the output contiguous. Returns false where there is no kernel better than ATen's copy.
bool launch_copy(const StridedDims<2>& dims, const void* input, void* output, int element_bytes, cudaStream_t stream,
                 cudaError_t& error);

// In place: exchanges element (i, j, plane) with (j, i, plane), i and j < size. Strides in elements; no two elements
// share memory.
struct TransposeInPlaceProblem {
  void* data;
  int element_bytes;
  int64_t size;
  int64_t row_stride, col_stride;
  StridedDims<1> batch;
  int64_t planes;
};
cudaError_t launch_transpose_in_place(const TransposeInPlaceProblem& problem, cudaStream_t stream);

std::vector<KernelEntry> transpose_kernels();
#endif

}  // namespace cudamem
