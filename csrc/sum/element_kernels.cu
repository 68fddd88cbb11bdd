#include "sum/columns.cuh"
#include "sum/kernels.h"
#include "sum/strided.cuh"
#include "sum/sum.cuh"
#include "sum/types.cuh"

namespace cudamem {
namespace {

template <typename F>
bool for_each_textbook(F&& visit) {
  return for_each_plain(visit) || visit(Types<float, float>{});
}

template <typename T>
TextbookKernel kernel_of(SumVariant variant, T) {
  using in_t = typename T::in_t;
  using acc_t = typename T::acc_t;
  if (variant == SumVariant::kAtomic) return sum_atomic_kernel<in_t, acc_t>;
  if (variant == SumVariant::kShared) return sum_shared_kernel<in_t, acc_t>;
  return sum_shuffle_kernel<in_t, acc_t>;
}

template <typename acc_t, typename elem_acc_t>
PartialKernels kernels_of() {
  return {sum_partials_kernel<acc_t>,
          sum_column_partials_kernel<acc_t>,
          sum_partials_kernel<elem_acc_t>,
          sizeof(wide_t<acc_t>),
          sizeof(acc_t),
          sizeof(wide_t<elem_acc_t>),
          Mail<wide_t<acc_t>>::kLetters};
}

}  // namespace

TextbookKernel textbook_kernel(SumVariant variant, DType in_type) {
  TextbookKernel kernel = nullptr;
  for_each_textbook([&](auto types) {
    if (kDType<typename decltype(types)::in_t> != in_type) return false;
    kernel = kernel_of(variant, types);
    return true;
  });
  return kernel;
}

ElementKernels element_kernels(DType cast_type, bool compensated) {
  if (sum_accumulator(cast_type) == DType::kInt64) {
    return {sum_strided_kernel<int64_t, true>, sum_strided_kernel<int64_t, false>};
  }
  if (compensated && cast_type == DType::kFloat64) {
    return {sum_strided_kernel<Compensated<double>, false>, sum_strided_kernel<Compensated<double>, false>};
  }
  return {sum_strided_kernel<double, true>, sum_strided_kernel<double, false>};
}

PartialKernels partial_kernels(DType cast_type, bool compensated) {
  const DType accumulator = sum_accumulator(cast_type);
  if (accumulator == DType::kInt64) return kernels_of<int64_t, int64_t>();
  if (accumulator == DType::kFloat64) {
    return compensated ? kernels_of<Compensated<double>, Compensated<double>>() : kernels_of<double, double>();
  }
  return compensated ? kernels_of<Compensated<float>, double>() : kernels_of<float, double>();
}

std::vector<KernelEntry> element_kernel_entries() {
  std::vector<KernelEntry> entries;
  const auto add = [&](const char* name, const std::string& types, auto kernel, int threads) {
    entries.push_back({kernel_name(name, types), reinterpret_cast<const void*>(kernel), threads});
  };
  for_each_textbook([&](auto types) {
    for (auto variant : {SumVariant::kAtomic, SumVariant::kShared, SumVariant::kShuffle}) {
      add(kSumVariants[static_cast<int>(variant)], type_names(types), kernel_of(variant, types), kTextbookThreads);
    }
    return false;
  });
  const auto strided = [&](const char* types, auto kernel) { add("strided", types, kernel, kStridedThreads); };
  strided("int64, one dim", sum_strided_kernel<int64_t, true>);
  strided("int64, dims", sum_strided_kernel<int64_t, false>);
  strided("float64, one dim", sum_strided_kernel<double, true>);
  strided("float64, dims", sum_strided_kernel<double, false>);
  strided("compensated float64, dims", sum_strided_kernel<Compensated<double>, false>);
  const auto add_partials = [&](auto acc) {
    add("partials", accumulator_name<decltype(acc)>(), sum_partials_kernel<decltype(acc)>, kFinishThreads);
    add("column_partials", accumulator_name<decltype(acc)>(), sum_column_partials_kernel<decltype(acc)>,
        kFinishThreads);
  };
  add_partials(int64_t{});
  add_partials(float{});
  add_partials(double{});
  add_partials(Compensated<float>{});
  add_partials(Compensated<double>{});
  return entries;
}

}  // namespace cudamem
