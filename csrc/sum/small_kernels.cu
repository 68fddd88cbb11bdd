#include "sum/kernels.h"
#include "sum/small.cuh"
#include "sum/types.cuh"

namespace cudamem {

namespace {
template <typename F>
bool for_each(F&& visit) {
  return for_each_plain(visit) || visit(Types<float, double>{});
}

template <typename T>
SmallKernels kernels_of(T) {
  using in_t = typename T::in_t;
  using acc_t = typename T::acc_t;
  return {
      {{sum_small_kernel<in_t, acc_t, Sharing::kLanes, false>, sum_small_kernel<in_t, acc_t, Sharing::kLanes, true>},
       {sum_small_kernel<in_t, acc_t, Sharing::kBlock, false>, sum_small_kernel<in_t, acc_t, Sharing::kBlock, true>},
       {sum_small_kernel<in_t, acc_t, Sharing::kWarps, false>, sum_small_kernel<in_t, acc_t, Sharing::kWarps, true>}}};
}

}  // namespace

SmallKernels small_kernels(DType in_type) {
  SmallKernels kernels;
  for_each([&](auto types) {
    if (kDType<typename decltype(types)::in_t> != in_type) return false;
    kernels = kernels_of(types);
    return true;
  });
  return kernels;
}

std::vector<KernelEntry> small_kernel_entries() {
  constexpr const char* kNames[] = {", lanes", ", block", ", warps"};
  std::vector<KernelEntry> entries;
  for_each([&](auto types) {
    const SmallKernels kernels = kernels_of(types);
    for (int sharing = 0; sharing < 3; ++sharing) {
      for (bool one_dim : {false, true}) {
        const std::string names = type_names(types) + kNames[sharing] + (one_dim ? ", one dim" : ", dims");
        entries.push_back({kernel_name("small", names), reinterpret_cast<const void*>(kernels.of[sharing][one_dim]),
                           sharing == 0 ? kSmallThreads : kSmallBlockThreads});
      }
    }
    return false;
  });
  return entries;
}

}  // namespace cudamem
