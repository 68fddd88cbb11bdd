// The numbers that the policy chooses by. Measured on an H200; `README.md` has the figures.
#pragma once

#include <cstdint>

namespace cudamem {

// The textbook kernels.
constexpr int kConv1dMaxThreads = 256;
constexpr int kConv1dMinBlocks = 3;  // per multiprocessor: left free, ptxas spills on some architectures to fit more
constexpr int kConv1dStage = 1024;   // coefficients in shared memory at a time

// The tiled kernels.
constexpr int kTileWarps = 2;            // of a block
constexpr int kTileMaxBytes = 48 << 10;  // of shared memory, what every GPU gives without being asked
constexpr int kTileAlignBytes = 32;      // tiles of the output start at whole sectors
constexpr int kFloatOutputs = 12, kManyFloatOutputs = 20;  // of a thread: odd numbers of quads, for the sake of banks
constexpr int kManyFilters = 8;          // that a thread of a dense bank computes at once
constexpr int kSpreadOutputs = 8;        // of a thread, where taps or outputs lie apart

// Blocks of a multiprocessor, for whose sake the compiler saves registers.
template <typename scalar_t, int kOutputs, int kFilters>
constexpr int kTiledMinBlocks = sizeof(scalar_t) == 8 ? 16 : kFilters > 1 ? 10 : kOutputs == 20 ? 12 : 16;
template <typename scalar_t>
constexpr int kSpreadMinBlocks = 16;

// Tensor cores: in steps of 16 samples they reach as many taps as this, since the first 15 belong to other outputs of a
// row and up to 7 come early.
template <int kSteps>
constexpr int kTensorTaps = 16 * kSteps - 22;
constexpr int kFewSteps = 2, kManySteps = 4;
constexpr int kTensorTapsBefore = 24;  // zeros
template <int kSteps>
constexpr int kTensorTapsRoom = kTensorTapsBefore + 16 * kSteps;
constexpr int kTensorAlignBytes = 8;  // of a thread's stores
constexpr int kTensorMinBlocks = 16;
constexpr int kTensorLoads = 5;  // of a thread at once, 16 bytes each

struct Conv1dPolicy {
  int64_t tensor_rounds = 4;  // so often a warp computes outputs by tensor cores
};

// Gradients.
constexpr int kGradientThreads = 128;
constexpr int kFewTaps = 12, kMostTaps = 32;  // whose sums a thread keeps in registers
constexpr int kFinishThreads = 256;
template <typename scalar_t, int kTaps>
constexpr int kGradientMinBlocks = sizeof(scalar_t) == 8 ? 3 : kTaps == kFewTaps ? 6 : sizeof(scalar_t) == 4 ? 5 : 4;  // of a multiprocessor

struct Conv1dGradientPolicy {
  int64_t gradient_blocks = 8192;  // about so many in all
  int64_t single_blocks = 1056;    // of one channel at most
  int64_t least_tiles = 4;         // of a block
};

}  // namespace cudamem
