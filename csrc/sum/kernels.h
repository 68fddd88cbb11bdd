// What the policy chooses from. The kernels are compiled in four files, since together they take minutes.
#pragma once

#include "sum/sum.h"

namespace cudamem {

using SumKernel = void (*)(SumParams);

// Outputs that own runs of memory. Null where a type has none; compensated ones exist for float32 in all shapes, for
// the other floating types for long runs.
struct RowKernels {
  SumKernel whole = nullptr, whole_warps = nullptr, long_rows = nullptr, one_run = nullptr, runs = nullptr,
            packed = nullptr, packed_few = nullptr, shortest_rows = nullptr, short_rows = nullptr;
};
RowKernels row_kernels(DType in_type, bool compensated);

// Outputs side by side in memory.
struct ColumnKernels {
  SumKernel two_rows = nullptr, few_rows = nullptr, one_dim = nullptr, two_dims = nullptr;
};
ColumnKernels column_kernels(DType in_type, bool compensated);

// Any strides and types.
struct ElementKernels {
  SumKernel one_dim = nullptr, dims = nullptr;
};
ElementKernels element_kernels(DType cast_type, bool compensated);

// Small sums, of any strides.
using SmallSumKernel = void (*)(SmallSumParams);
struct SmallKernels {
  SmallSumKernel of[3][2] = {};  // by Sharing; of dims, of one dim
};
SmallKernels small_kernels(DType in_type);
std::vector<KernelEntry> small_kernel_entries();

// Those that add up partial sums in a second launch, how many bytes one takes, and how many letters one of rows.
struct PartialKernels {
  SumKernel rows = nullptr, columns = nullptr, elements = nullptr;
  int row_bytes = 0, column_bytes = 0, element_bytes = 0, row_letters = 0;
};
PartialKernels partial_kernels(DType cast_type, bool compensated);

using TextbookKernel = void (*)(SumProblem);
TextbookKernel textbook_kernel(SumVariant variant, DType in_type);

std::vector<KernelEntry> row_kernel_entries();
std::vector<KernelEntry> column_kernel_entries();
std::vector<KernelEntry> element_kernel_entries();

}  // namespace cudamem
