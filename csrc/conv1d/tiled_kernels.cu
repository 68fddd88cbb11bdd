// Which tiled kernel takes which problem, cut how.
#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "conv1d/conv1d.h"
#include "conv1d/split.cuh"
#include "conv1d/tensor_cores.cuh"
#include "conv1d/unrolled.cuh"

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
constexpr bool kFloat = std::is_same_v<scalar_t, float>;

// Null where a kernel is not made for a type.
template <typename scalar_t>
struct TiledKernels {
  static constexpr int kOutputs = kFloat<scalar_t> ? kFloatOutputs : kHalf<scalar_t> ? 8 : 4;  // of a thread
  static constexpr int kDenseOutputs = 4;

  static constexpr TiledKernel any = conv1d_tiled_kernel<scalar_t, kOutputs, 1, false>;
  static constexpr TiledKernel one_channel() {
    if constexpr (kFloat<scalar_t>) return conv1d_tiled_kernel<scalar_t, kOutputs, 1, true>;
    return any;
  }
  template <int kOutputs>
  static TiledKernel unrolled(int64_t taps) {
    return unrolled<kOutputs>(ceil_div<int64_t>(taps, 4) - 1, std::make_integer_sequence<int, kUnrolledQuads>());
  }
  template <int kOutputs, int... kTurns>
  static TiledKernel unrolled(int64_t index, std::integer_sequence<int, kTurns...>) {
    if constexpr (kFloat<scalar_t>) {
      constexpr TiledKernel kernels[] = {conv1d_unrolled_kernel<kOutputs, kTurns + 1>...};
      return kernels[index];
    }
    return nullptr;
  }
  static constexpr TiledKernel dense() {
    if constexpr (kFloat<scalar_t>) return conv1d_tiled_kernel<scalar_t, kDenseOutputs, kManyFilters, false>;
    return nullptr;
  }
  static constexpr TiledKernel split() {
    if constexpr (kFloat<scalar_t>) return conv1d_split_kernel<kSplitBlocks>;
    return nullptr;
  }
  static constexpr TiledKernel tensor(int steps) {
    if constexpr (kHalf<scalar_t>) {
      return steps == 2   ? conv1d_tensor_cores_kernel<scalar_t, 2>
             : steps == 3 ? conv1d_tensor_cores_kernel<scalar_t, 3>
                          : conv1d_tensor_cores_kernel<scalar_t, 4>;
    }
    return nullptr;
  }
  static constexpr TiledKernel spread = conv1d_spread_kernel<scalar_t, kStridedOutputs, false>;
  static constexpr TiledKernel strided = conv1d_spread_kernel<scalar_t, kStridedOutputs, true>;
  static constexpr TiledKernel dilated = conv1d_spread_kernel<scalar_t, kDilatedOutputs, true>;
};

// What the code for the current device may use of tensor cores: of what it was compiled for, which is older where a
// newer device runs it, from PTX.
struct TensorCores {
  bool halves = false, split = false;
};

template <typename scalar_t>
TensorCores tensor_cores() {
  constexpr int kMaxDevices = 64;  // that are remembered
  static std::atomic<int> known[kMaxDevices];
  constexpr int kKnown = 1, kHalves = 2, kSplit = 4;
  int device = 0, bits = 0;
  cudaGetDevice(&device);
  if (device < kMaxDevices) bits = known[device].load(std::memory_order_relaxed);
  if (bits == 0) {
    cudaFuncAttributes attributes;
    int major = 0, minor = 0;
    if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(TiledKernels<scalar_t>::any)) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
      cudaGetLastError();  // the launch that follows says what is wrong
      return {};
    }
    bits = kKnown;
    if (attributes.ptxVersion >= 80) bits |= kHalves;
    if (is_split_version(attributes.ptxVersion) && is_split_version(10 * major + minor)) bits |= kSplit;
    if (device < kMaxDevices) known[device].store(bits, std::memory_order_relaxed);
  }
  return {(bits & kHalves) != 0, (bits & kSplit) != 0};
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
      problem.out_channels > kLimit / (problem.channels_per_group * problem.taps)) {
    return plan;
  }

  constexpr int64_t kElems = kVectorElems<scalar_t>, kBytes = sizeof(scalar_t);
  const auto rounded = [](int64_t n, int64_t to) { return ceil_div(n, to) * to; };
  const bool spread = problem.stride != 1 || problem.dilation != 1, one_channel = problem.channels_per_group == 1;
  const bool tensor =
      kHalf<scalar_t> && !spread && one_channel && problem.taps <= kTensorTaps && tensor_cores<scalar_t>().halves;
  // Where rows are aligned, a row's first tile begins with the row; elsewhere up to so many outputs before it, and its
  // samples up to a vector before the first one that it needs.
  const int64_t granule = (tensor ? kTensorAlignBytes : kTileAlignBytes) / kBytes;
  const auto is_aligned = [](const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0;
  };
  const bool one_row = problem.batch * problem.out_channels == 1;
  const bool aligned_outputs =
      is_aligned(problem.output, granule * kBytes) && (one_row || problem.out_length % granule == 0);
  const bool aligned_inputs = is_aligned(problem.input, 16) &&
                              (one_row || (problem.batch_stride % kElems == 0 && problem.channel_stride % kElems == 0));
  const int64_t reach = problem.out_length + (aligned_outputs ? 0 : granule - 1);
  const int64_t early = aligned_outputs && aligned_inputs ? -problem.padding & (kElems - 1) : kElems - 1;

  TiledKernel kernel;
  int64_t outputs, filters_at_once = 1, taps_room = rounded(problem.taps + kElems - 1, 4);
  int64_t halo = taps_room;  // samples beyond as many as outputs
  if (spread) {
    const bool dilated = one_channel && problem.stride == 1;
    kernel = dilated ? Kernels::dilated : one_channel ? Kernels::strided : Kernels::spread;
    outputs = 32 * (dilated ? kDilatedOutputs : kStridedOutputs);
    halo = (outputs - 1) * (problem.stride - 1) + (problem.taps - 1) * problem.dilation + kElems - 1;
  } else if (tensor) {
    const int64_t steps = std::max<int64_t>(ceil_div<int64_t>(problem.taps + kTensorRow - 1 + early, kTensorRow), 2);
    kernel = Kernels::tensor(static_cast<int>(steps));
    const int64_t rounds = ceil_div(reach, int64_t{kTensorOutputs}), tiles = ceil_div(rounds, kTensorRounds);
    outputs = ceil_div(rounds, tiles) * kTensorOutputs;
    taps_room = kTensorTapsBefore + kTensorRow * steps;
    halo = kTensorRow * (steps - 1);
  } else if (kFloat<scalar_t> && one_channel && problem.taps >= kSplitTaps && problem.length_stride == 1 &&
             tensor_cores<scalar_t>().split) {
    kernel = Kernels::split();
    outputs = 128 * kSplitBlocks;
    halo = rounded(problem.taps + early + 7, 32);
    taps_room = kSplitTapsBefore + halo;
  } else if (problem.channels_out_per_group > 1 && Kernels::dense() != nullptr) {
    kernel = Kernels::dense();
    outputs = 32 * Kernels::kDenseOutputs;
    filters_at_once = kManyFilters;
  } else if (kFloat<scalar_t> && one_channel && problem.taps <= 4 * kUnrolledQuads && problem.length_stride == 1) {
    // A thread's outputs begin early with its samples: so the last ones of a tile are not all stored.
    const int64_t unused = early == 0 ? 0 : granule;
    const bool is_short = reach <= 32 * kShortRowOutputs - unused;
    kernel = is_short ? Kernels::template unrolled<kShortRowOutputs>(problem.taps)
                      : Kernels::template unrolled<kFloatOutputs>(problem.taps);
    outputs = 32 * (is_short ? kShortRowOutputs : kFloatOutputs) - unused;
    taps_room = rounded(problem.taps, 4);
    halo = taps_room + unused;
  } else {
    kernel = one_channel ? Kernels::one_channel() : Kernels::any;
    outputs = 32 * Kernels::kOutputs;
  }

  const int64_t staged = rounded(outputs + halo, kElems);
  const int64_t taps_bytes =
      rounded(problem.channels_per_group * filters_at_once * taps_room * int64_t{sizeof(conv1d_acc_t<scalar_t>)}, 16);
  const int64_t tile_bytes = rounded(staged * kBytes, 128);
  const int64_t warp_bytes = taps_bytes + problem.channels_per_group * tile_bytes;
  if (staged > kTileMaxBytes || kTileWarps * warp_bytes > kTileMaxBytes) return plan;
  const int64_t tiles = ceil_div(reach, outputs);
  p.tile_outputs = static_cast<int>(outputs);
  p.staged_elems = static_cast<int>(staged);
  p.tile_elems = static_cast<int>(tile_bytes / kBytes);
  p.taps_room = static_cast<int>(taps_room);
  p.taps_bytes = static_cast<int>(taps_bytes);
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
  p.first_tap = problem.transposed ? p.taps - 1 : 0;
  p.tap_step = problem.transposed ? -1 : 1;
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
  add("conv1d_tiled<" + dtype + ">", Kernels::any);
  if (Kernels::one_channel() != Kernels::any) add("conv1d_tiled<" + dtype + ", one channel>", Kernels::one_channel());
  for (int quads = 1; quads <= kUnrolledQuads; ++quads) {
    const std::string taps = std::to_string(4 * quads) + " taps>";
    add("conv1d_unrolled<" + dtype + ", " + taps, Kernels::template unrolled<kFloatOutputs>(4 * quads));
    add("conv1d_unrolled<" + dtype + ", short rows, " + taps, Kernels::template unrolled<kShortRowOutputs>(4 * quads));
  }
  add("conv1d_tiled<" + dtype + ", 8 filters>", Kernels::dense());
  add("conv1d_spread<" + dtype + ">", Kernels::spread);
  add("conv1d_spread<" + dtype + ", stride>", Kernels::strided);
  add("conv1d_spread<" + dtype + ", dilation>", Kernels::dilated);
  add("conv1d_split<" + dtype + ">", Kernels::split());
  for (int steps : {2, 3, 4}) {
    add("conv1d_tensor_cores<" + dtype + ", " + std::to_string(steps) + " steps>", Kernels::tensor(steps));
  }
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
