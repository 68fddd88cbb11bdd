// Which tiled or flat kernel takes which problem, cut how.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>

#include "conv1d/conv1d.h"
#include "conv1d/flat.cuh"
#include "conv1d/short_rows.cuh"
#include "conv1d/split.cuh"
#include "conv1d/tensor_cores.cuh"

namespace cudamem {
namespace {

using TiledKernel = void (*)(Conv1dTiles);

struct TiledPlan {
  TiledKernel kernel = nullptr;
  Conv1dTiles tiles;
  dim3 blocks;
  unsigned threads = 32 * kTileWarps;
  size_t shared_bytes = 0;
  double estimate = 0;  // by KernelCost
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
  static TiledKernel unrolled(int64_t taps, bool short_rows) {
    return unrolled(ceil_div<int64_t>(taps, 4) - 1, short_rows, std::make_integer_sequence<int, kUnrolledQuads>());
  }
  template <int... kTurns>
  static TiledKernel unrolled(int64_t index, bool short_rows, std::integer_sequence<int, kTurns...>) {
    if constexpr (kFloat<scalar_t>) {
      constexpr TiledKernel long_rows[] = {conv1d_unrolled_kernel<kTurns + 1>...};
      constexpr TiledKernel short_ones[] = {conv1d_short_rows_kernel<kTurns + 1>...};
      return (short_rows ? short_ones : long_rows)[index];
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
  static constexpr TiledKernel flat = conv1d_flat_kernel<scalar_t>;
  static constexpr TiledKernel flat_channels = conv1d_flat_bank_kernel<scalar_t, 1>;
  static constexpr TiledKernel flat_filters = conv1d_flat_bank_kernel<scalar_t, kManyFilters>;
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

template <typename T>
constexpr T round_up(T n, T to) {
  return ceil_div(n, to) * to;
}

// Positions and counts take 32 bits.
constexpr int64_t kLimit = 1 << 30;

bool fits_in_32_bits(const Conv1dProblem& problem) {
  constexpr int64_t kTapLimit = 1 << 15;
  return problem.in_length <= kLimit && problem.out_length <= kLimit && std::abs(problem.padding) <= kLimit &&
         problem.taps <= kTapLimit && problem.stride <= kTapLimit && problem.dilation <= kTapLimit &&
         problem.out_length <= kLimit / problem.stride && problem.channels_per_group <= kTapLimit &&
         problem.out_channels <= kLimit / (problem.channels_per_group * problem.taps);
}

// What does not depend on how a problem is cut.
Conv1dTiles describe(const Conv1dProblem& problem) {
  Conv1dTiles p;
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
  p.groups = Divisor(problem.out_channels / problem.channels_out_per_group);
  p.divide_taps = Divisor(problem.taps);
  return p;
}

// Sets how many tiles of so many outputs there are; false where they are too many.
bool count_tiles(const Conv1dProblem& problem, int64_t reach, int64_t outputs, int64_t filters_at_once,
                 Conv1dTiles& p) {
  const int64_t tiles = ceil_div(reach, outputs);
  const int64_t filter_blocks = ceil_div(problem.channels_out_per_group, filters_at_once);
  const int64_t signals = p.groups.divisor * filter_blocks;  // of a batch
  if (problem.batch > kLimit / tiles || signals > kLimit / (problem.batch * tiles)) return false;
  p.all_tiles = static_cast<uint32_t>(problem.batch * signals * tiles);
  p.tile_outputs = static_cast<int>(outputs);
  p.tiles = Divisor(tiles);
  p.filter_blocks = Divisor(filter_blocks);
  return true;
}

// How long the flat kernels take, and whether a thread computes several filters.
struct FlatEstimate {
  double us;
  bool filters;
};

FlatEstimate estimate_flat(const Conv1dProblem& problem) {
  constexpr int64_t kMaxGridY = 65535;
  const int64_t coefficients = problem.channels_per_group * problem.taps, filters = problem.channels_out_per_group;
  const auto estimate = [&](const KernelCost& cost, int64_t positions, int64_t sets) {
    return cost.of(static_cast<double>(sets) * ceil_div<int64_t>(positions, 32),
                   ceil_div<int64_t>(coefficients, kFlatLoads), coefficients);
  };
  const int64_t positions = problem.batch * problem.out_length;  // of a filter
  const double one =
      estimate(problem.channels_per_group == 1 ? kFlatCost : kFlatChannelsCost, positions * problem.out_channels, 1);
  if (filters == 1 || problem.out_channels > kMaxGridY) return {one, false};
  const double several =
      estimate(kFlatFiltersCost, positions, problem.out_channels / filters * ceil_div<int64_t>(filters, kManyFilters));
  return {std::min(one, several), several < one};
}

template <typename scalar_t>
TiledPlan plan_flat(const Conv1dProblem& problem) {
  using Kernels = TiledKernels<scalar_t>;
  TiledPlan plan{nullptr, describe(problem)};
  Conv1dTiles& p = plan.tiles;
  const bool filters = estimate_flat(problem).filters;
  if (!count_tiles(problem, problem.out_length, 1, filters ? kManyFilters : 1, p)) return plan;
  plan.kernel = filters                           ? Kernels::flat_filters
                : problem.channels_per_group == 1 ? Kernels::flat
                                                  : Kernels::flat_channels;
  plan.threads = kFlatThreads;
  unsigned sets = 1;
  if (filters) {
    p.all_tiles = static_cast<uint32_t>(problem.batch * problem.out_length);
    sets = p.groups.divisor * p.filter_blocks.divisor;
  }
  plan.blocks = dim3(ceil_div<unsigned>(p.all_tiles, kFlatThreads), sets);
  return plan;
}

template <typename scalar_t>
TiledPlan plan_short_rows(const Conv1dProblem& problem, int64_t lanes) {
  TiledPlan plan{nullptr, describe(problem)};
  Conv1dTiles& p = plan.tiles;
  if (!count_tiles(problem, problem.out_length, kLimit, 1, p)) return plan;
  p.tile_outputs = static_cast<int>(lanes * kFloatOutputs);
  p.rows = static_cast<uint32_t>(32 / lanes);
  p.lanes = Divisor(lanes);
  p.taps_room = static_cast<int>(round_up<int64_t>(problem.taps, 4));
  p.staged_elems = static_cast<int>(lanes * kFloatOutputs) + p.taps_room;
  p.taps_bytes = static_cast<int>(p.rows * p.taps_room * sizeof(float));
  p.warp_bytes = p.taps_bytes + static_cast<int>(round_up<int64_t>(p.rows * p.staged_elems * sizeof(float), 128));
  plan.kernel = TiledKernels<scalar_t>::unrolled(problem.taps, true);
  plan.estimate = kShortRowsCost.of(ceil_div(p.all_tiles, p.rows), problem.taps, problem.taps * p.tile_outputs / 32.0);
  plan.blocks = dim3(ceil_div<unsigned>(p.all_tiles, p.rows * kTileWarps));
  plan.shared_bytes = static_cast<size_t>(kTileWarps * p.warp_bytes);
  return plan;
}

// A tile a warp.
template <typename scalar_t>
TiledPlan plan_tiles(const Conv1dProblem& problem) {
  using Kernels = TiledKernels<scalar_t>;
  TiledPlan plan{nullptr, describe(problem)};
  Conv1dTiles& p = plan.tiles;

  constexpr int64_t kElems = kVectorElems<scalar_t>, kBytes = sizeof(scalar_t);
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
  KernelCost cost;
  int64_t outputs, filters_at_once = 1, taps_room = round_up<int64_t>(problem.taps + kElems - 1, 4);
  int64_t halo = taps_room;  // samples beyond as many as outputs
  if (spread) {
    const bool dilated = one_channel && problem.stride == 1;
    kernel = dilated ? Kernels::dilated : one_channel ? Kernels::strided : Kernels::spread;
    cost = dilated ? kDilatedCost : one_channel ? kStridedCost : kSpreadCost;
    outputs = 32 * (dilated ? kDilatedOutputs : kStridedOutputs);
    halo = (outputs - 1) * (problem.stride - 1) + (problem.taps - 1) * problem.dilation + kElems - 1;
  } else if (tensor) {
    const int64_t steps = std::max<int64_t>(ceil_div<int64_t>(problem.taps + kTensorRow - 1 + early, kTensorRow), 2);
    kernel = Kernels::tensor(static_cast<int>(steps));
    cost = kTensorCost;
    const int64_t rounds = ceil_div(reach, int64_t{kTensorOutputs});
    const bool few = problem.batch * problem.out_channels * rounds <= kFewRounds;
    const int64_t tiles = few ? rounds : ceil_div(rounds, kTensorRounds);
    outputs = ceil_div(rounds, tiles) * kTensorOutputs;
    taps_room = kTensorTapsBefore + kTensorRow * steps;
    halo = kTensorRow * (steps - 1);
  } else if (kFloat<scalar_t> && one_channel && problem.taps >= kSplitTaps && problem.length_stride == 1 &&
             tensor_cores<scalar_t>().split) {
    kernel = Kernels::split();
    cost = kSplitCost;
    outputs = 128 * kSplitBlocks;
    halo = round_up<int64_t>(problem.taps + early + 7, 32);
    taps_room = kSplitTapsBefore + halo;
  } else if (problem.channels_out_per_group > 1 && Kernels::dense() != nullptr) {
    kernel = Kernels::dense();
    cost = kDenseCost;
    outputs = 32 * Kernels::kDenseOutputs;
    filters_at_once = kManyFilters;
  } else if (kFloat<scalar_t> && one_channel && problem.taps <= 4 * kUnrolledQuads && problem.length_stride == 1) {
    const int64_t early_at_most = aligned_inputs ? -problem.padding & (kElems - 1) : kElems - 1;
    const int64_t lanes = ceil_div<int64_t>(problem.out_length + early_at_most, kFloatOutputs);
    if (lanes <= 16) return plan_short_rows<scalar_t>(problem, lanes);
    // A thread's outputs begin early with its samples: so the last ones of a tile are not all stored.
    const int64_t unused = early == 0 ? 0 : granule;
    kernel = Kernels::unrolled(problem.taps, false);
    cost = kUnrolledCost;
    outputs = 32 * kFloatOutputs - unused;
    taps_room = round_up<int64_t>(problem.taps, 4);
    halo = taps_room + unused;
  } else {
    kernel = one_channel ? Kernels::one_channel() : Kernels::any;
    cost = kTiledCost;
    outputs = 32 * Kernels::kOutputs;
  }

  const int64_t staged = round_up(outputs + halo, kElems);
  const int64_t taps_bytes = round_up<int64_t>(
      problem.channels_per_group * filters_at_once * taps_room * int64_t{sizeof(conv1d_acc_t<scalar_t>)}, 16);
  const int64_t tile_bytes = round_up<int64_t>(staged * kBytes, 128);
  const int64_t warp_bytes = taps_bytes + problem.channels_per_group * tile_bytes;
  if (staged > kTileMaxBytes || kTileWarps * warp_bytes > kTileMaxBytes ||
      !count_tiles(problem, reach, outputs, filters_at_once, p)) {
    return plan;
  }
  p.staged_elems = static_cast<int>(staged);
  p.tile_elems = static_cast<int>(tile_bytes / kBytes);
  p.taps_room = static_cast<int>(taps_room);
  p.taps_bytes = static_cast<int>(taps_bytes);
  p.warp_bytes = static_cast<int>(warp_bytes);
  plan.kernel = kernel;
  const int64_t coefficients = problem.channels_per_group * problem.taps;
  const int64_t staged_at_once = problem.length_stride == 1 ? outputs + 32 * kElems : 32 * kStridedLoads;
  const int64_t rounds = problem.channels_per_group * ceil_div(staged, staged_at_once);
  plan.estimate = cost.of(p.all_tiles, coefficients, coefficients * outputs / 32.0) + kRoundCost * (rounds - 1);
  plan.blocks = dim3(ceil_div<unsigned>(p.all_tiles, kTileWarps));
  plan.shared_bytes = static_cast<size_t>(kTileWarps * warp_bytes);
  return plan;
}

TiledPlan plan_tiles(const Conv1dProblem& problem) {
  TiledPlan plan;
  if (!fits_in_32_bits(problem)) return plan;
  return with_type(problem.dtype, [&](auto type) { return plan_tiles<decltype(type)>(problem); });
}

TiledPlan plan_flat(const Conv1dProblem& problem) {
  TiledPlan plan;
  if (!fits_in_32_bits(problem)) return plan;
  return with_type(problem.dtype, [&](auto type) { return plan_flat<decltype(type)>(problem); });
}

cudaError_t launch(TiledPlan plan, cudaStream_t stream) {
  if (plan.kernel == nullptr) return cudaErrorInvalidValue;
  void* arguments[] = {&plan.tiles};
  return cudaLaunchKernel(reinterpret_cast<const void*>(plan.kernel), plan.blocks, dim3(plan.threads), arguments,
                          plan.shared_bytes, stream);
}

// What kernels take of shared memory for the first of some problems that they are chosen for.
template <typename scalar_t>
std::map<TiledKernel, size_t> typical_shared_bytes() {
  std::map<TiledKernel, size_t> bytes;
  Conv1dProblem p;
  p.batch = p.batch_stride = p.length_stride = 1;
  p.padding = p.weight_bytes = 0;
  for (const int64_t channels : {1, 4}) {
    for (const int64_t filters : {1, kManyFilters}) {
      for (const auto& [stride, dilation] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
        for (const int64_t length : {1 << 20, 200}) {
          for (const int64_t taps : {4, 8, 12, 16, 20, 24, 28, 32, 42, 129}) {
            p.channels_per_group = channels;
            p.out_channels = p.channels_out_per_group = filters;
            p.stride = stride;
            p.dilation = dilation;
            p.out_length = p.in_length = p.channel_stride = length;
            p.taps = taps;
            const TiledPlan plan = plan_tiles<scalar_t>(p);
            bytes.emplace(plan.kernel, plan.shared_bytes);
          }
        }
      }
    }
  }
  return bytes;
}

template <typename scalar_t>
void add_entries(std::vector<KernelEntry>& entries) {
  const std::string dtype = kTypeName<scalar_t>;
  auto shared_bytes = typical_shared_bytes<scalar_t>();
  const auto add = [&](const std::string& name, TiledKernel kernel, int threads = 32 * kTileWarps) {
    if (kernel == nullptr) return;
    entries.push_back({name, reinterpret_cast<const void*>(kernel), threads, shared_bytes[kernel]});
  };
  using Kernels = TiledKernels<scalar_t>;
  add("conv1d_tiled<" + dtype + ">", Kernels::any);
  if (Kernels::one_channel() != Kernels::any) add("conv1d_tiled<" + dtype + ", one channel>", Kernels::one_channel());
  for (int taps = 4; taps <= 4 * kUnrolledQuads; taps += 4) {
    const std::string name = "<" + dtype + ", " + std::to_string(taps) + " taps>";
    add("conv1d_unrolled" + name, Kernels::unrolled(taps, false));
    add("conv1d_short_rows" + name, Kernels::unrolled(taps, true));
  }
  add("conv1d_tiled<" + dtype + ", 8 filters>", Kernels::dense());
  add("conv1d_spread<" + dtype + ">", Kernels::spread);
  add("conv1d_spread<" + dtype + ", stride>", Kernels::strided);
  add("conv1d_spread<" + dtype + ", dilation>", Kernels::dilated);
  add("conv1d_split<" + dtype + ">", Kernels::split());
  add("conv1d_flat<" + dtype + ">", Kernels::flat, kFlatThreads);
  add("conv1d_flat_bank<" + dtype + ">", Kernels::flat_channels, kFlatThreads);
  add("conv1d_flat_bank<" + dtype + ", 8 filters>", Kernels::flat_filters, kFlatThreads);
  for (int steps : {2, 3, 4}) {
    add("conv1d_tensor_cores<" + dtype + ", " + std::to_string(steps) + " steps>", Kernels::tensor(steps));
  }
}

}  // namespace

bool conv1d_tiled_takes(const Conv1dProblem& problem) { return plan_tiles(problem).kernel != nullptr; }

cudaError_t launch_conv1d_tiled(const Conv1dProblem& problem, cudaStream_t stream) {
  return launch(plan_tiles(problem), stream);
}

bool conv1d_flat_takes(const Conv1dProblem& problem) { return plan_flat(problem).kernel != nullptr; }

cudaError_t launch_conv1d_flat(const Conv1dProblem& problem, cudaStream_t stream) {
  return launch(plan_flat(problem), stream);
}

Conv1dVariant best_conv1d_variant(const Conv1dProblem& problem) {
  const TiledPlan tiles = plan_tiles(problem);
  const bool tiled = tiles.kernel != nullptr;
  if (tiled && tiles.estimate <= estimate_flat(problem).us) return Conv1dVariant::kTiled;
  if (conv1d_flat_takes(problem)) return Conv1dVariant::kFlat;
  return tiled ? Conv1dVariant::kTiled : Conv1dVariant::kGlobal;
}

std::vector<KernelEntry> conv1d_tiled_kernel_entries() {
  std::vector<KernelEntry> entries;
  for_each_type([&](auto type) { add_entries<decltype(type)>(entries); });
  return entries;
}

}  // namespace cudamem
