#include "sum/sum.cuh"

namespace cudamem {
namespace {

template <typename in_type, typename acc_type, typename out_type>
struct Types {
  using in_t = in_type;
  using acc_t = acc_type;
  using out_t = out_type;
};

// Every combination that is compiled. The accumulators come in their own types too: they add up partial sums.
template <typename F>
bool for_each_types(F&& visit) {
  return visit(Types<Bool, int64_t, int64_t>{}) || visit(Types<uint8_t, int64_t, int64_t>{}) ||
         visit(Types<int8_t, int64_t, int64_t>{}) || visit(Types<int16_t, int64_t, int64_t>{}) ||
         visit(Types<int32_t, int64_t, int64_t>{}) || visit(Types<int64_t, int64_t, int64_t>{}) ||
         visit(Types<__half, float, __half>{}) || visit(Types<__half, float, float>{}) ||
         visit(Types<float, float, __half>{}) || visit(Types<__nv_bfloat16, float, __nv_bfloat16>{}) ||
         visit(Types<__nv_bfloat16, float, float>{}) || visit(Types<float, float, __nv_bfloat16>{}) ||
         visit(Types<float, float, float>{}) || visit(Types<double, double, double>{});
}

using Kernel = void (*)(SumProblem);

template <typename T>
Kernel kernel_of(SumVariant variant, T) {
  using in_t = typename T::in_t;
  using acc_t = typename T::acc_t;
  using out_t = typename T::out_t;
  switch (variant) {
    case SumVariant::kAtomic:
      return sum_atomic_kernel<in_t, acc_t>;
    case SumVariant::kShared:
      return sum_shared_kernel<in_t, acc_t, out_t>;
    case SumVariant::kShuffle:
      return sum_shuffle_kernel<in_t, acc_t, out_t>;
    case SumVariant::kSerial:
      return sum_serial_kernel<in_t, acc_t, out_t>;
  }
  return nullptr;
}

Kernel kernel_of(SumVariant variant, DType in_type, DType out_type) {
  Kernel kernel = nullptr;
  for_each_types([&](auto types) {
    using T = decltype(types);
    if (kDType<typename T::in_t> != in_type || kDType<typename T::out_t> != out_type) return false;
    kernel = kernel_of(variant, types);
    return true;
  });
  return kernel;
}

}  // namespace

bool sum_has_kernel(DType in_type, DType out_type) {
  // float32 into half types exists for partial sums only: an input would be rounded before it is added.
  if (in_type == DType::kFloat32 && out_type != DType::kFloat32) return false;
  return kernel_of(SumVariant::kShuffle, in_type, out_type) != nullptr;
}

DType sum_accumulator(DType in_type) {
  DType result = in_type;
  for_each_types([&](auto types) {
    using T = decltype(types);
    if (kDType<typename T::in_t> != in_type) return false;
    result = kDType<typename T::acc_t>;
    return true;
  });
  return result;
}

int64_t sum_partials(SumVariant variant, int64_t num_reduced) {
  switch (variant) {
    case SumVariant::kAtomic:
      return 1;
    case SumVariant::kSerial:
      return ceil_div<int64_t>(num_reduced, kSumSerial);
    default:
      return ceil_div<int64_t>(num_reduced, kSumChunk);
  }
}

cudaError_t launch_sum(SumVariant variant, const SumProblem& problem, cudaStream_t stream) {
  const Kernel kernel = kernel_of(variant, problem.in_type, problem.out_type);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int64_t results = problem.num_outputs * sum_partials(variant, problem.num_reduced);
  int64_t blocks = results;  // one block each, but for:
  if (variant == SumVariant::kAtomic)
    blocks = ceil_div<int64_t>(problem.num_outputs * problem.num_reduced, kSumThreads);
  if (variant == SumVariant::kSerial) blocks = ceil_div<int64_t>(results, kSumThreads);
  kernel<<<grid_of(blocks), kSumThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

std::vector<KernelEntry> sum_kernels() {
  std::vector<KernelEntry> entries;
  for (auto variant : {SumVariant::kAtomic, SumVariant::kShared, SumVariant::kShuffle, SumVariant::kSerial}) {
    for_each_types([&](auto types) {
      using T = decltype(types);
      if (variant == SumVariant::kAtomic && !std::is_same_v<typename T::acc_t, typename T::out_t>) return false;
      entries.push_back({"sum_" + std::string(kSumVariants[static_cast<int>(variant)]) + "<" +
                             kDTypeNames[static_cast<int>(kDType<typename T::in_t>)] + ", " +
                             kDTypeNames[static_cast<int>(kDType<typename T::out_t>)] + ">",
                         reinterpret_cast<const void*>(kernel_of(variant, types)), kSumThreads});
      return false;
    });
  }
  return entries;
}

}  // namespace cudamem
