#include <algorithm>

#include "sum/columns.cuh"
#include "sum/kernels.h"
#include "sum/types.cuh"

namespace cudamem {
namespace {

using CompensatedFloat32 = Types<float, Compensated<float>>;

template <typename T>
ColumnKernels kernels_of(T) {
  using in_t = typename T::in_t;
  using acc_t = typename T::acc_t;
  // The sum of two is rounded once, whatever it is added in.
  using once_t = std::conditional_t<std::is_same_v<acc_t, Compensated<float>>, float, acc_t>;
  return {sum_few_rows_kernel<in_t, once_t, std::max(2, kColumnGroup<in_t, acc_t>)>,
          sum_few_rows_kernel<in_t, acc_t, 4>, sum_columns_kernel<in_t, acc_t, true>,
          sum_columns_kernel<in_t, acc_t, false>};
}

}  // namespace

ColumnKernels column_kernels(DType in_type, bool compensated) {
  if (in_type == DType::kFloat32) return kernels_of(CompensatedFloat32{});
  ColumnKernels kernels;
  if (compensated) return kernels;
  for_each_plain([&](auto types) {
    if (kDType<typename decltype(types)::in_t> != in_type) return false;
    kernels = kernels_of(types);
    return true;
  });
  return kernels;
}

std::vector<KernelEntry> column_kernel_entries() {
  std::vector<KernelEntry> entries;
  const auto add = [&](auto types) {
    const ColumnKernels kernels = kernels_of(types);
    constexpr int kThreads = kColumnThreads<sizeof(typename decltype(types)::in_t)>;
    const auto add_one = [&](const char* name, const std::string& names, SumKernel kernel, int threads) {
      entries.push_back({kernel_name(name, names), reinterpret_cast<const void*>(kernel), threads});
    };
    add_one("few_rows", type_names(types) + ", two", kernels.two_rows, kFewRowsThreads);
    add_one("few_rows", type_names(types), kernels.few_rows, kFewRowsThreads);
    add_one("columns", type_names(types) + ", one dim", kernels.one_dim, kThreads);
    add_one("columns", type_names(types) + ", two dims", kernels.two_dims, kThreads);
    return false;
  };
  for_each_plain(add);
  add(CompensatedFloat32{});
  return entries;
}

}  // namespace cudamem
