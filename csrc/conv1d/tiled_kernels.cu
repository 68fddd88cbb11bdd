// Which tiled kernel takes which problem, cut how.
#include <algorithm>
#include <cstdlib>

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
  static constexpr int kManyOutputs = 16, kDenseOutputs = 4;

  static constexpr TiledKernel one = conv1d_tiled_kernel<scalar_t, kOutputs, 1>;
  static constexpr TiledKernel spread = conv1d_spread_kernel<scalar_t>;
  static constexpr TiledKernel many() {
    if constexpr (std::is_same_v<scalar_t, float>) return conv1d_tiled_kernel<scalar_t, kManyOutputs, 1>;
    return nullptr;
  }
  static constexpr TiledKernel dense() {
    if constexpr (std::is_same_v<scalar_t, float>) return conv1d_tiled_kernel<scalar_t, kDenseOutputs, kManyFilters>;
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
  const bool dense = !spread && problem.channels_out_per_group > 1 && Kernels::dense() != nullptr;
  const bool many = !spread && !dense && problem.taps > policy.short_taps && Kernels::many() != nullptr;
  const auto choose = [&](auto of_spread, auto of_dense, auto of_many, auto otherwise) {
    return spread ? of_spread : dense ? of_dense : many ? of_many : otherwise;
  };
  const TiledKernel kernel = choose(Kernels::spread, Kernels::dense(), Kernels::many(), Kernels::one);
  const int64_t outputs = choose(kSpreadOutputs, Kernels::kDenseOutputs, Kernels::kManyOutputs, Kernels::kOutputs);
  const int64_t block_threads =
      choose(policy.spread_threads, policy.dense_threads, policy.many_threads, policy.tiled_threads);
  const int64_t filters_at_once = dense ? kManyFilters : 1;

  // Positions and counts take 32 bits.
  constexpr int64_t kLimit = 1 << 30, kTapLimit = 1 << 15;
  if (problem.in_length > kLimit || problem.out_length > kLimit || std::abs(problem.padding) > kLimit ||
      problem.taps > kTapLimit || problem.stride > kTapLimit || problem.dilation > kTapLimit ||
      problem.out_length > kLimit / problem.stride || problem.channels_per_group > kTapLimit ||
      problem.channels_out_per_group > kLimit / (problem.channels_per_group * problem.taps)) {
    return plan;
  }
  const auto rounded = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  constexpr int64_t kElems = kVectorElems<scalar_t>, kSector = kTileAlignBytes / sizeof(scalar_t);
  constexpr int64_t kBytes = sizeof(scalar_t);
  p.aligned_rows = problem.out_length % kSector == 0;
  const int64_t reach = problem.out_length + (p.aligned_rows ? 0 : kSector - 1);
  p.padded_taps = static_cast<int>(rounded(problem.taps, 4));

  int64_t threads = 32;
  while (threads < block_threads && threads * outputs < reach) threads *= 2;
  const auto lay_out = [&] {  // a part of so many threads
    const int64_t tile_outputs = threads * outputs;
    const int64_t samples = spread ? (tile_outputs - 1) * problem.stride + (problem.taps - 1) * problem.dilation + 1
                                   : tile_outputs + p.padded_taps;
    if (samples > kTileMaxBytes) return false;
    p.tile_outputs = static_cast<int>(tile_outputs);
    p.staged_elems = static_cast<int>(rounded(samples, kElems));
    const int elems = p.staged_elems + (sizeof(scalar_t) == 2 ? kElems : 0);
    p.tile_elems = static_cast<int>(rounded(many ? place<Kernels::kManyOutputs>(elems) : elems, kElems));
    const int64_t taps = problem.channels_per_group * p.padded_taps * filters_at_once;
    const int64_t taps_bytes = taps * static_cast<int64_t>(sizeof(conv1d_acc_t<scalar_t>));
    const int64_t buffer_bytes = problem.channels_per_group * p.tile_elems * kBytes;
    const int64_t exchange = many ? place<Kernels::kManyOutputs>(p.tile_outputs) * kBytes : 0;
    const int64_t bytes = rounded(taps_bytes, 16) + kTileBuffers * buffer_bytes + exchange;
    if (bytes > kTileMaxBytes) return false;
    p.taps_bytes = static_cast<int>(rounded(taps_bytes, 16));
    p.buffer_bytes = static_cast<int>(buffer_bytes);
    p.part_bytes = static_cast<int>(bytes);
    return true;
  };
  while (!lay_out()) {
    if (threads == 32) return plan;
    threads /= 2;
  }
  p.threads_log2 = 0;
  while ((1 << p.threads_log2) < threads) ++p.threads_log2;

  const int64_t tiles = (reach + p.tile_outputs - 1) / p.tile_outputs;
  const int64_t groups = problem.out_channels / problem.channels_out_per_group;
  const int64_t filter_blocks = (problem.channels_out_per_group + filters_at_once - 1) / filters_at_once;
  const int64_t signals = groups * filter_blocks;  // of a batch
  if (problem.batch > kLimit / tiles || signals > kLimit / (problem.batch * tiles)) return plan;
  const int64_t all_tiles = problem.batch * tiles;
  const int64_t parts_of_block = std::clamp<int64_t>(block_threads / threads, 1, kTileMaxBytes / p.part_bytes);
  const int64_t wanted_parts = policy.tiled_blocks * parts_of_block;
  const int64_t tiles_of_part = std::clamp<int64_t>(all_tiles * signals / wanted_parts, 1, all_tiles);
  const int64_t parts = (all_tiles + tiles_of_part - 1) / tiles_of_part * signals;
  p.all_tiles = static_cast<uint32_t>(all_tiles);
  p.tiles_of_part = static_cast<uint32_t>(tiles_of_part);
  p.parts = static_cast<uint32_t>(parts);
  p.tiles = Divisor(tiles);
  p.filter_blocks = Divisor(filter_blocks);
  p.groups = Divisor(groups);
  p.divide_taps = Divisor(problem.taps);
  plan.threads = static_cast<unsigned>(parts_of_block * threads);
  plan.blocks = static_cast<unsigned>((parts + parts_of_block - 1) / parts_of_block);
  plan.shared_bytes = static_cast<size_t>(parts_of_block * p.part_bytes);

  p.input = problem.input;
  p.weight = problem.weight;
  p.bias = problem.bias;
  p.output = problem.output;
  p.in_length = static_cast<int>(problem.in_length);
  p.out_length = static_cast<int>(problem.out_length);
  p.batch_stride = problem.batch_stride;
  p.channel_stride = problem.channel_stride;
  p.length_stride = problem.length_stride;
  p.padding = static_cast<int>(problem.padding);
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
