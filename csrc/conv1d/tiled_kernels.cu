// Which tiled kernel takes which problem, cut how.
#include <algorithm>

#include "conv1d/conv1d.h"
#include "conv1d/tiled.cuh"

namespace cudamem {
namespace {

using TiledKernel = void (*)(Conv1dTiles);

struct TiledPlan {
  TiledKernel kernel = nullptr;
  Conv1dTiles tiles;
  unsigned blocks, threads;
  size_t shared_bytes;
};

template <typename scalar_t>
struct TiledKernels {
  static constexpr int kOutputs = sizeof(scalar_t) == 2 ? 8 : 4;  // of a thread; a vector, but for float64
  static constexpr int kManyOutputs = 16, kDenseOutputs = sizeof(scalar_t) == 8 ? 0 : 4;

  static constexpr TiledKernel one = conv1d_tiled_kernel<scalar_t, kOutputs, 1>;
  static constexpr TiledKernel spread = conv1d_spread_kernel<scalar_t>;
  static constexpr TiledKernel many() {
    if constexpr (std::is_same_v<scalar_t, float>) return conv1d_tiled_kernel<scalar_t, kManyOutputs, 1>;
    return nullptr;
  }
  static constexpr TiledKernel dense() {
    if constexpr (kDenseOutputs != 0) return conv1d_tiled_kernel<scalar_t, kDenseOutputs, kManyFilters>;
    return nullptr;
  }
};

template <typename scalar_t>
TiledPlan plan_of(const Conv1dProblem& problem) {
  using Kernels = TiledKernels<scalar_t>;
  const Conv1dPolicy policy;
  TiledPlan plan;
  Conv1dTiles& p = plan.tiles;
  const bool spread = problem.stride != 1 || problem.dilation != 1;
  const bool dense = !spread && problem.channels_per_group * problem.channels_out_per_group > 1 &&
                     problem.channels_out_per_group > 1 && Kernels::dense() != nullptr;
  const bool many = !spread && !dense && problem.taps > policy.short_taps && Kernels::many() != nullptr;
  const TiledKernel kernel = spread ? Kernels::spread : dense ? Kernels::dense() : many ? Kernels::many() : Kernels::one;
  const int filters_at_once = dense ? kManyFilters : 1;
  const int64_t outputs = spread ? kSpreadOutputs
                          : dense ? Kernels::kDenseOutputs
                          : many  ? Kernels::kManyOutputs
                                  : Kernels::kOutputs;

  // Everything in a tile is counted in 32 bits.
  constexpr int64_t kLimit = 1 << 24;
  if (problem.taps > kLimit || problem.stride > kLimit || problem.dilation > kLimit / problem.taps ||
      problem.channels_per_group > kLimit / problem.taps ||
      problem.channels_out_per_group > kLimit / (problem.channels_per_group * problem.taps)) {
    return plan;
  }
  constexpr int kElems = kVectorElems<scalar_t>;
  const auto rounded = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const int64_t sector = kTileAlignBytes / sizeof(scalar_t);
  const bool aligned_rows = problem.out_length % sector == 0;
  const int64_t reach = problem.out_length + (aligned_rows ? 0 : sector - 1);
  const int64_t block_threads = spread ? policy.spread_threads
                                : dense ? policy.dense_threads
                                : many  ? policy.long_threads
                                        : policy.short_threads;
  int64_t threads = 32;
  while (threads < block_threads && threads * outputs < reach) threads *= 2;

  p.padded_taps = static_cast<int>(rounded(problem.taps, 4));
  const auto place_of = [&](int64_t n) { return outputs > 4 && !spread ? n + n / outputs * 4 : n; };
  for (;; threads /= 2) {
    const int64_t tile_outputs = threads * outputs;
    const int64_t samples = spread
                                ? (tile_outputs - 1) * problem.stride + (problem.taps - 1) * problem.dilation + 1
                                : tile_outputs + p.padded_taps;
    const int64_t staged = rounded(samples, kElems), tile = rounded(place_of(staged), 4);
    const int64_t elems = problem.channels_per_group * (tile + p.padded_taps * filters_at_once);
    const int64_t parts_of_block = std::max<int64_t>(block_threads / threads, 1);
    const int64_t bytes = elems * static_cast<int64_t>(sizeof(conv1d_acc_t<scalar_t>));
    if (bytes > kTileMaxBytes) {
      if (threads == 32) return plan;
      continue;
    }
    const int64_t parts_that_fit = std::min(parts_of_block, kTileMaxBytes / bytes);
    const int64_t tiles = (reach + tile_outputs - 1) / tile_outputs;
    const int64_t groups = problem.out_channels / problem.channels_out_per_group;
    const int64_t filter_blocks = (problem.channels_out_per_group + filters_at_once - 1) / filters_at_once;
    if (tiles > kMaxDividend || filter_blocks > kMaxDividend / tiles || groups > kMaxDividend / tiles / filter_blocks ||
        problem.batch > (kMaxDividend - block_threads) / (tiles * filter_blocks * groups)) {
      return plan;
    }
    p.parts = static_cast<uint32_t>(tiles * filter_blocks * groups * problem.batch);
    p.tiles = Divisor(tiles);
    p.filter_blocks = Divisor(filter_blocks);
    p.groups = Divisor(groups);
    p.divide_taps = Divisor(problem.taps);
    p.threads_log2 = 0;
    while ((1 << p.threads_log2) < threads) ++p.threads_log2;
    p.tile_outputs = static_cast<int>(tile_outputs);
    p.staged_elems = static_cast<int>(staged);
    p.tile_elems = static_cast<int>(tile);
    p.part_elems = static_cast<int>(elems);
    plan.threads = static_cast<unsigned>(parts_that_fit * threads);
    plan.blocks = static_cast<unsigned>((p.parts + parts_that_fit - 1) / parts_that_fit);
    plan.shared_bytes = static_cast<size_t>(parts_that_fit * bytes);
    break;
  }
  p.aligned_rows = aligned_rows;
  p.input = problem.input;
  p.weight = problem.weight;
  p.bias = problem.bias;
  p.output = problem.output;
  p.in_length = problem.in_length;
  p.out_length = problem.out_length;
  p.batch_stride = problem.batch_stride;
  p.channel_stride = problem.channel_stride;
  p.length_stride = problem.length_stride;
  p.padding = problem.padding;
  p.stride = static_cast<int>(problem.stride);
  p.dilation = static_cast<int>(problem.dilation);
  p.taps = static_cast<int>(problem.taps);
  p.channels = static_cast<int>(problem.channels_per_group);
  p.filters = static_cast<int>(problem.channels_out_per_group);
  p.filter_stride = problem.transposed ? p.taps : p.channels * p.taps;
  p.filter_channel_stride = problem.transposed ? p.filters * p.taps : p.taps;
  p.flipped = problem.transposed;
  plan.kernel = kernel;
  return plan;
}

TiledPlan plan_tiled(const Conv1dProblem& problem) {
  switch (problem.dtype) {
    case DType::kFloat16:
      return plan_of<__half>(problem);
    case DType::kBFloat16:
      return plan_of<__nv_bfloat16>(problem);
    case DType::kFloat32:
      return plan_of<float>(problem);
    case DType::kFloat64:
      return plan_of<double>(problem);
    default:
      return {};
  }
}

template <typename scalar_t>
void add_entries(std::vector<KernelEntry>& entries, const std::string& dtype) {
  const auto add = [&](const std::string& name, TiledKernel kernel) {
    if (kernel != nullptr) entries.push_back({name, reinterpret_cast<const void*>(kernel), kTileThreads});
  };
  using Kernels = TiledKernels<scalar_t>;
  add("conv1d_tiled<" + dtype + ", " + std::to_string(Kernels::kOutputs) + " outputs>", Kernels::one);
  add("conv1d_tiled<" + dtype + ", 16 outputs>", Kernels::many());
  add("conv1d_tiled<" + dtype + ", 8 filters>", Kernels::dense());
  add("conv1d_spread<" + dtype + ">", Kernels::spread);
}

}  // namespace

bool conv1d_tiled_takes(const Conv1dProblem& problem) { return plan_tiled(problem).kernel != nullptr; }

cudaError_t launch_conv1d_tiled(const Conv1dProblem& problem, cudaStream_t stream) {
  TiledPlan plan = plan_tiled(problem);
  if (plan.kernel == nullptr) return cudaErrorInvalidValue;
  void* arguments[] = {&plan.tiles};
  return cudaLaunchKernel(reinterpret_cast<const void*>(plan.kernel), dim3(plan.blocks), dim3(plan.threads), arguments,
                          plan.shared_bytes, stream);
}

std::vector<KernelEntry> conv1d_tiled_kernel_entries() {
  std::vector<KernelEntry> entries;
  add_entries<__half>(entries, "float16");
  add_entries<__nv_bfloat16>(entries, "bfloat16");
  add_entries<float>(entries, "float32");
  add_entries<double>(entries, "float64");
  return entries;
}

}  // namespace cudamem
