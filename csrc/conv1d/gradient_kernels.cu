// Which gradient kernel takes which problem, and how many blocks share a channel.
#include <algorithm>

#include "conv1d/conv1d.h"
#include "conv1d/gradients.cuh"

namespace cudamem {
namespace {

using GradientKernel = void (*)(Conv1dGradientTiles);

struct GradientPlan {
  Conv1dGradientTiles tiles;
  unsigned blocks;
  size_t shared_bytes;
};

template <typename scalar_t>
GradientPlan plan_of(const Conv1dGradients& problem) {
  constexpr int64_t kRun = kGradientRun<scalar_t>;
  GradientPlan plan;
  auto& p = plan.tiles;
  p.grad_output = problem.grad_output;
  p.input = problem.input;
  p.weight = problem.weight;
  p.grad_input = problem.grad_input;
  p.grad_weight = problem.grad_weight;
  p.in_length = static_cast<int>(problem.in_length);
  p.out_length = static_cast<int>(problem.out_length);
  std::copy_n(problem.input_strides, 3, p.input_strides);
  std::copy_n(problem.grad_output_strides, 3, p.grad_output_strides);
  p.padding = static_cast<int>(problem.taps - 1 - problem.padding);
  p.channels = problem.channels;
  p.taps = static_cast<int>(problem.taps);

  // A row's first tile starts at a sector (see GradientWalk::first).
  constexpr int64_t kSector = kTileAlignBytes / sizeof(scalar_t);
  const auto at_sector = [&](const void* data, int64_t batch_stride, int64_t channel_stride) {
    return reinterpret_cast<uintptr_t>(data) % kTileAlignBytes == 0 && batch_stride % kSector == 0 &&
           channel_stride % kSector == 0;
  };
  const bool aligned_rows = problem.grad_input != nullptr
                                ? at_sector(problem.grad_input, 0, problem.in_length)
                                : at_sector(problem.input, problem.input_strides[0], problem.input_strides[1]);
  const int64_t reach = problem.in_length + (aligned_rows ? 0 : kSector - 1);
  int64_t threads = 32;
  while (threads < kGradientThreads && threads * kRun < reach) threads *= 2;
  p.threads_log2 = 0;
  while ((1 << p.threads_log2) < threads) ++p.threads_log2;
  const int64_t outputs = threads * kRun, tiles = ceil_div(reach, outputs);
  const int64_t groups = kGradientThreads / threads, all_tiles = problem.batch * tiles;
  p.tiles = Divisor(tiles);
  p.all_tiles = static_cast<uint32_t>(all_tiles);
  p.tile_outputs = static_cast<int>(outputs);
  p.staged_elems = static_cast<int>(outputs + ceil_div<int64_t>(problem.taps, 8) * 8);
  p.tile_elems = p.staged_elems + kVectorElems<scalar_t>;
  // Enough blocks to keep all multiprocessors busy up to the end, each with some tiles.
  const int64_t wanted = std::clamp<int64_t>(kGradientBlocks / problem.channels, 1, kChannelBlocks);
  const int64_t most = std::max<int64_t>(all_tiles / (groups * kGradientLeastTiles), 1);
  p.tiles_of_group = static_cast<uint32_t>(ceil_div(all_tiles, groups * std::min(wanted, most)));
  p.pieces = static_cast<uint32_t>(ceil_div<int64_t>(all_tiles, groups * p.tiles_of_group));
  plan.blocks = static_cast<unsigned>(problem.channels * p.pieces);
  plan.shared_bytes = groups * 2 * p.tile_elems * sizeof(scalar_t);
  return plan;
}

int64_t partial_bytes(const Conv1dGradientTiles& p, size_t elem_bytes) {
  return p.pieces == 1 ? 0 : int64_t{p.pieces} * p.channels * p.taps * static_cast<int64_t>(elem_bytes);
}

template <typename scalar_t>
GradientKernel kernel_for(int taps) {
  return taps <= kFewTaps ? conv1d_gradients_kernel<scalar_t, kFewTaps> : conv1d_gradients_kernel<scalar_t, kMostTaps>;
}

template <typename scalar_t>
cudaError_t launch(const Conv1dGradients& problem, void* scratch, cudaStream_t stream) {
  GradientPlan plan = plan_of<scalar_t>(problem);
  auto& p = plan.tiles;
  p.partials = scratch;
  kernel_for<scalar_t>(p.taps)<<<plan.blocks, kGradientThreads, plan.shared_bytes, stream>>>(p);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || p.pieces == 1) return error;
  const int64_t count = int64_t{p.channels} * p.taps;
  const bool by_block = p.pieces > kFinishPieces;
  const int64_t blocks = by_block ? count : ceil_div<int64_t>(count, kFinishThreads);
  conv1d_finish_kernel<scalar_t><<<static_cast<unsigned>(blocks), kFinishThreads, 0, stream>>>(
      scratch, p.grad_weight, count, static_cast<int>(p.pieces), by_block);
  return cudaGetLastError();
}

template <typename scalar_t>
void add_entries(std::vector<KernelEntry>& entries) {
  const std::string dtype = kTypeName<scalar_t>;
  for (int taps : {kFewTaps, kMostTaps}) {
    Conv1dGradients signal{};  // one long one
    signal.batch = signal.channels = 1;
    signal.in_length = signal.out_length = 1 << 20;
    signal.taps = taps;
    entries.push_back({"conv1d_gradients<" + dtype + ", " + std::to_string(taps) + " taps>",
                       reinterpret_cast<const void*>(kernel_for<scalar_t>(taps)), kGradientThreads,
                       plan_of<scalar_t>(signal).shared_bytes});
  }
  entries.push_back(
      {"conv1d_finish<" + dtype + ">", reinterpret_cast<const void*>(conv1d_finish_kernel<scalar_t>), kFinishThreads});
}

}  // namespace

bool conv1d_gradients_take(const Conv1dGradients& problem) {
  constexpr int64_t kLimit = 1 << 30;  // positions and counts take 32 bits
  return problem.taps <= kMostTaps && problem.in_length < kLimit && problem.out_length < kLimit &&
         problem.channels < kLimit && problem.padding < kLimit &&
         problem.batch < kLimit / (problem.in_length / 128 + 2);
}

int64_t conv1d_gradients_scratch_bytes(const Conv1dGradients& problem) {
  return with_type(problem.dtype, [&](auto type) {
    return partial_bytes(plan_of<decltype(type)>(problem).tiles, sizeof(conv1d_acc_t<decltype(type)>));
  });
}

cudaError_t launch_conv1d_gradients(const Conv1dGradients& problem, void* scratch, cudaStream_t stream) {
  return with_type(problem.dtype, [&](auto type) { return launch<decltype(type)>(problem, scratch, stream); });
}

std::vector<KernelEntry> conv1d_gradient_kernel_entries() {
  std::vector<KernelEntry> entries;
  for_each_type([&](auto type) { add_entries<decltype(type)>(entries); });
  return entries;
}

}  // namespace cudamem
