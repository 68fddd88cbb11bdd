#include "sum/kernels.h"
#include "sum/packed_rows.cuh"
#include "sum/rows.cuh"
#include "sum/short_rows.cuh"
#include "sum/types.cuh"

namespace cudamem {
namespace {

// float32 is added in float64, which keeps as much.
template <typename F>
bool for_each_compensated(F&& visit) {
  return visit(Types<__half, Compensated<float>>{}) || visit(Types<__nv_bfloat16, Compensated<float>>{}) ||
         visit(Types<float, double>{}) || visit(Types<double, Compensated<double>>{});
}

template <typename T>
RowKernels kernels_of(T) {
  using in_t = typename T::in_t;
  using acc_t = typename T::acc_t;
  RowKernels kernels;
  kernels.whole = sum_whole_kernel<in_t, acc_t, kWholeThreads, kRowLoads>;
  kernels.whole_warps = sum_whole_kernel<in_t, acc_t, kWarp, kWarpLoads>;
  kernels.long_rows = sum_long_rows_kernel<in_t, acc_t>;
  kernels.one_run = sum_rows_kernel<in_t, acc_t, true>;
  if constexpr (!kIsCompensated<acc_t>) {
    kernels.runs = sum_rows_kernel<in_t, acc_t, false>;
    kernels.packed = sum_packed_rows_kernel<in_t, acc_t, kPackedLoads>;
    kernels.packed_few = sum_packed_rows_kernel<in_t, acc_t, 1>;
    kernels.shortest_rows = sum_short_rows_kernel<in_t, acc_t, false>;
    kernels.short_rows = sum_short_rows_kernel<in_t, acc_t, true>;
  }
  return kernels;
}

}  // namespace

RowKernels row_kernels(DType in_type, bool compensated) {
  RowKernels kernels;
  const auto find = [&](auto types) {
    if (kDType<typename decltype(types)::in_t> != in_type) return false;
    kernels = kernels_of(types);
    return true;
  };
  compensated || in_type == DType::kFloat32 ? for_each_compensated(find) : for_each_plain(find);
  if (in_type == DType::kFloat32 &&
      !compensated) {  // a row's elements are added in pairs, the best that float32 can do
    kernels.packed = sum_packed_rows_kernel<float, float, kPackedLoads>;
    kernels.packed_few = sum_packed_rows_kernel<float, float, 1>;
  }
  return kernels;
}

std::vector<KernelEntry> row_kernel_entries() {
  std::vector<KernelEntry> entries;
  const auto add = [&](const char* name, const std::string& types, SumKernel kernel, int threads) {
    if (kernel == nullptr) return;
    entries.push_back({kernel_name(name, types), reinterpret_cast<const void*>(kernel), threads});
  };
  const auto add_all = [&](auto types) {
    const RowKernels kernels = kernels_of(types);
    add("whole", type_names(types), kernels.whole, kWholeThreads);
    add("whole", type_names(types) + ", warps", kernels.whole_warps, kWarp);
    add("long_rows", type_names(types), kernels.long_rows, kLongThreads);
    add("rows", type_names(types) + ", one run", kernels.one_run, kGroupThreads);
    add("rows", type_names(types) + ", runs", kernels.runs, kMaxSumThreads);
    add("packed_rows", type_names(types) + ", many", kernels.packed, kPackedThreads);
    add("packed_rows", type_names(types) + ", few", kernels.packed_few, kPackedThreads);
    add("short_rows", type_names(types) + ", shortest", kernels.shortest_rows, kStageThreads);
    add("short_rows", type_names(types), kernels.short_rows, kStageThreads);
    return false;
  };
  for_each_plain(add_all);
  for_each_compensated(add_all);
  add("packed_rows", "float32, float32, many", sum_packed_rows_kernel<float, float, kPackedLoads>, kPackedThreads);
  add("packed_rows", "float32, float32, few", sum_packed_rows_kernel<float, float, 1>, kPackedThreads);
  return entries;
}

}  // namespace cudamem
