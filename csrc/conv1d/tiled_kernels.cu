// Which tiled kernel takes which problem, cut how.
#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "conv1d/conv1d.h"
#include "conv1d/tensor_cores.cuh"

namespace cudamem {
namespace {

using TiledKernel = void (*)(Conv1dTiles);

struct TiledPlan {
  TiledKernel kernel = nullptr;
  Conv1dTiles tiles;
  unsigned blocks;
  size_t shared_bytes;
};

template <typename scalar_t>
constexpr bool kHalf = sizeof(scalar_t) == 2;

template <typename scalar_t>
struct TiledKernels {
  static constexpr int kOutputs = kHalf<scalar_t> ? 8 : sizeof(scalar_t) == 4 ? kFloatOutputs : 4;  // of a thread
  static constexpr int kDenseOutputs = 4;

  static constexpr TiledKernel one = conv1d_tiled_kernel<scalar_t, kOutputs, 1>;
  static constexpr TiledKernel short_rows() {
    if constexpr (std::is_same_v<scalar_t, float>) return conv1d_tiled_kernel<scalar_t, kShortRowOutputs, 1>;
    return nullptr;
  }
  static constexpr TiledKernel spread = conv1d_spread_kernel<scalar_t>;
  static constexpr TiledKernel dense() {
    if constexpr (std::is_same_v<scalar_t, float>) return conv1d_tiled_kernel<scalar_t, kDenseOutputs, kManyFilters>;
    return nullptr;
  }
  template <int kSteps>
  static constexpr TiledKernel tensor() {
    if constexpr (kHalf<scalar_t>) return conv1d_tensor_cores_kernel<scalar_t, kSteps>;
    return nullptr;
  }
};

// Whether the code for the current device multiplies matrices, which that for compute capability 7.5 does not: also
// not where a newer device runs it, from PTX.
template <typename scalar_t>
bool has_tensor_cores() {
  constexpr int kMaxDevices = 64;  // that are remembered
  static std::atomic<int> known[kMaxDevices];
  int device = 0, version = 0;
  cudaGetDevice(&device);
  if (device < kMaxDevices) version = known[device].load(std::memory_order_relaxed);
  if (version == 0) {
    cudaFuncAttributes attributes;
    const auto kernel = reinterpret_cast<const void*>(TiledKernels<scalar_t>::template tensor<kFewSteps>());
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
      cudaGetLastError();  // the launch that follows says what is wrong
      return false;
    }
    version = attributes.ptxVersion;
    if (device < kMaxDevices) known[device].store(version, std::memory_order_relaxed);
  }
  return version >= 80;
}

template <typename scalar_t>
TiledPlan plan_of(const Conv1dProblem& problem) {
  using Kernels = TiledKernels<scalar_t>;
  TiledPlan plan;
  Conv1dTiles& p = plan.tiles;

  // Positions and counts take 32 bits.
  constexpr int64_t kLimit = 1 << 30, kTapLimit = 1 << 15;
  if (problem.in_length > kLimit || problem.out_length > kLimit || std::abs(problem.padding) > kLimit ||
      problem.taps > kTapLimit || problem.stride > kTapLimit || problem.dilation > kTapLimit ||
      problem.out_length > kLimit / problem.stride || problem.channels_per_group > kTapLimit ||
      problem.channels_out_per_group > kLimit / (problem.channels_per_group * problem.taps)) {
    return plan;
  }

  const bool spread = problem.stride != 1 || problem.dilation != 1;
  const bool dense = !spread && problem.channels_out_per_group > 1 && Kernels::dense() != nullptr;
  const bool tensor = !spread && kHalf<scalar_t> && problem.channels_per_group == 1 &&
                      problem.taps <= kTensorTaps<kManySteps> && has_tensor_cores<scalar_t>();
  const int steps = problem.taps <= kTensorTaps<kFewSteps> ? kFewSteps : kManySteps;
  const bool short_rows =
      !spread && !dense && Kernels::short_rows() != nullptr && problem.out_length <= 32 * kShortRowOutputs;
  const TiledKernel kernel =
      spread       ? Kernels::spread
      : dense      ? Kernels::dense()
      : short_rows ? Kernels::short_rows()
      : tensor     ? steps == kFewSteps ? Kernels::template tensor<kFewSteps>() : Kernels::template tensor<kManySteps>()
                   : Kernels::one;
  const int64_t outputs = spread       ? kSpreadOutputs
                          : dense      ? Kernels::kDenseOutputs
                          : short_rows ? kShortRowOutputs
                                       : Kernels::kOutputs;
  const int64_t filters_at_once = dense ? kManyFilters : 1;

  constexpr int64_t kElems = kVectorElems<scalar_t>;
  constexpr int64_t kBytes = sizeof(scalar_t), kAccBytes = sizeof(conv1d_acc_t<scalar_t>);
  const auto rounded = [](int64_t n, int64_t to) { return ceil_div(n, to) * to; };
  // How far a row's first tile may begin before its first output (see Conv1dTile).
  const auto aligned = [&](int64_t stride) { return stride % kElems == 0; };
  const bool of_outputs = spread || kHalf<scalar_t>;
  const int64_t granule = tensor ? kTensorAlignBytes / kBytes : of_outputs ? kTileAlignBytes / kBytes : kElems;
  const bool aligned_rows =
      of_outputs
          ? problem.out_length % granule == 0 && reinterpret_cast<uintptr_t>(problem.output) % (granule * kBytes) == 0
          : reinterpret_cast<uintptr_t>(problem.input) % 16 == 0 && aligned(problem.padding) &&
                aligned(problem.batch_stride) && aligned(problem.channel_stride);
  const int64_t reach = problem.out_length + (aligned_rows ? 0 : granule - 1);
  p.padded_taps = static_cast<int>(rounded(problem.taps, 4));
  const int64_t taps_bytes = rounded(problem.channels_per_group * p.padded_taps * filters_at_once * kAccBytes, 16);

  const int64_t of_warp = tensor ? kTensorOutputs : 32 * outputs, wanted = ceil_div(reach, of_warp);
  const int64_t tiles = ceil_div(wanted, tensor ? kTensorRounds : int64_t{1});
  const int64_t tile_outputs = ceil_div(wanted, tiles) * of_warp;
  const int64_t samples = spread   ? (tile_outputs - 1) * problem.stride + (problem.taps - 1) * problem.dilation + 1
                          : tensor ? tile_outputs + kTensorRow * (steps - 1)
                                   : tile_outputs + p.padded_taps;
  if (samples > kTileMaxBytes) return plan;
  p.tile_outputs = static_cast<int>(tile_outputs);
  p.staged_elems = static_cast<int>(rounded(samples, kElems));
  p.tile_elems = p.staged_elems + (of_outputs ? kElems : 0);
  p.stages_all = tensor;
  const int64_t samples_bytes = problem.channels_per_group * p.tile_elems * kBytes;
  const int64_t beyond_bytes = tensor ? (kTensorTapsBefore + kTensorRow * steps) * kBytes : 0;
  const int64_t warp_bytes = taps_bytes + samples_bytes + rounded(beyond_bytes, 16);
  if (kTileWarps * warp_bytes > kTileMaxBytes) return plan;
  p.taps_bytes = static_cast<int>(taps_bytes);
  p.samples_bytes = static_cast<int>(samples_bytes);
  p.warp_bytes = static_cast<int>(warp_bytes);

  const int64_t groups = problem.out_channels / problem.channels_out_per_group;
  const int64_t filter_blocks = ceil_div(problem.channels_out_per_group, filters_at_once);
  const int64_t signals = groups * filter_blocks;  // of a batch
  if (problem.batch > kLimit / tiles || signals > kLimit / (problem.batch * tiles)) return plan;
  p.all_tiles = static_cast<uint32_t>(problem.batch * signals * tiles);
  p.tiles = Divisor(tiles);
  p.filter_blocks = Divisor(filter_blocks);
  p.groups = Divisor(groups);
  p.divide_taps = Divisor(problem.taps);
  plan.blocks = static_cast<unsigned>(ceil_div<int64_t>(p.all_tiles, kTileWarps));
  plan.shared_bytes = static_cast<size_t>(kTileWarps * warp_bytes);

  p.input = problem.input;
  p.weight = problem.weight;
  p.bias = problem.bias;
  p.output = problem.output;
  p.in_length = static_cast<int>(problem.in_length);
  p.out_length = static_cast<int>(problem.out_length);
  p.batch_stride = problem.batch_stride;
  p.group_stride = problem.channels_per_group * problem.channel_stride;
  p.channel_stride = problem.channel_stride;
  p.length_stride = problem.length_stride;
  p.padding = static_cast<int>(problem.padding);
  p.stride = static_cast<int>(problem.stride);
  p.dilation = static_cast<int>(problem.dilation);
  p.taps = static_cast<int>(problem.taps);
  p.channels = static_cast<int>(problem.channels_per_group);
  p.filters = static_cast<int>(problem.channels_out_per_group);
  p.group_weights = p.filters * p.channels * p.taps;
  p.filter_stride = problem.transposed ? p.taps : p.channels * p.taps;
  p.filter_channel_stride = problem.transposed ? p.filters * p.taps : p.taps;
  p.flipped = problem.transposed;
  plan.kernel = kernel;
  return plan;
}

TiledPlan plan_tiled(const Conv1dProblem& problem) {
  return with_type(problem.dtype, [&](auto type) { return plan_of<decltype(type)>(problem); });
}

template <typename scalar_t>
void add_entries(std::vector<KernelEntry>& entries) {
  const std::string dtype = kTypeName<scalar_t>;
  const auto add = [&](const std::string& name, TiledKernel kernel) {
    if (kernel != nullptr) entries.push_back({name, reinterpret_cast<const void*>(kernel), 32 * kTileWarps});
  };
  using Kernels = TiledKernels<scalar_t>;
  add("conv1d_tiled<" + dtype + ">", Kernels::one);
  add("conv1d_tiled<" + dtype + ", short rows>", Kernels::short_rows());
  add("conv1d_tiled<" + dtype + ", 8 filters>", Kernels::dense());
  add("conv1d_spread<" + dtype + ">", Kernels::spread);
  add("conv1d_tensor_cores<" + dtype + ", few taps>", Kernels::template tensor<kFewSteps>());
  add("conv1d_tensor_cores<" + dtype + ", more taps>", Kernels::template tensor<kManySteps>());
}

}  // namespace

bool conv1d_tiled_takes(const Conv1dProblem& problem) { return plan_tiled(problem).kernel != nullptr; }

cudaError_t launch_conv1d_tiled(const Conv1dProblem& problem, cudaStream_t stream) {
  TiledPlan plan = plan_tiled(problem);
  if (plan.kernel == nullptr) return cudaErrorInvalidValue;
  void* arguments[] = {&plan.tiles};
  return cudaLaunchKernel(reinterpret_cast<const void*>(plan.kernel), dim3(plan.blocks), dim3(32 * kTileWarps),
                          arguments, plan.shared_bytes, stream);
}

std::vector<KernelEntry> conv1d_tiled_kernel_entries() {
  std::vector<KernelEntry> entries;
  for_each_type([&](auto type) { add_entries<decltype(type)>(entries); });
  return entries;
}

}  // namespace cudamem
