#include "transpose/transpose.cuh"

namespace cudamem {
namespace {

using Kernel = void (*)(TransposeProblem);

template <typename element_t>
Kernel kernel_of(TransposeVariant variant) {
  switch (variant) {
    case TransposeVariant::kNaive:
      return transpose_naive_kernel<element_t>;
    case TransposeVariant::kShared:
      return transpose_tiled_kernel<element_t, 0>;
    case TransposeVariant::kPadded:
      return transpose_tiled_kernel<element_t, 1>;
  }
  return nullptr;
}

// Only the size of an element matters: its bits are moved, never read.
Kernel kernel_of(TransposeVariant variant, int element_bytes) {
  switch (element_bytes) {
    case 1:
      return kernel_of<uint8_t>(variant);
    case 2:
      return kernel_of<uint16_t>(variant);
    case 4:
      return kernel_of<uint32_t>(variant);
    case 8:
      return kernel_of<uint64_t>(variant);
    case 16:
      return kernel_of<ulonglong2>(variant);
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_transpose(TransposeVariant variant, const TransposeProblem& problem, cudaStream_t stream) {
  const Kernel kernel = kernel_of(variant, problem.element_bytes);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int64_t tiles =
      ceil_div<int64_t>(problem.rows, kTransposeTile) * ceil_div<int64_t>(problem.cols, kTransposeTile);
  kernel<<<grid_of(problem.planes * tiles), dim3(kTransposeTile, kTransposeBlockRows), 0, stream>>>(problem);
  return cudaGetLastError();
}

std::vector<KernelEntry> transpose_kernels() {
  std::vector<KernelEntry> entries;
  for (int element_bytes : {1, 2, 4, 8, 16}) {
    for (auto variant : {TransposeVariant::kNaive, TransposeVariant::kShared, TransposeVariant::kPadded}) {
      entries.push_back({"transpose_" + std::string(kTransposeVariants[static_cast<int>(variant)]) + "<" +
                             std::to_string(element_bytes) + " bytes>",
                         reinterpret_cast<const void*>(kernel_of(variant, element_bytes)), kTransposeBlockThreads});
    }
  }
  return entries;
}

}  // namespace cudamem
