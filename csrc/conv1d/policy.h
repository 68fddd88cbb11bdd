// The numbers that the policy chooses by. Measured on an H200; `README.md` has the figures.
#pragma once

#include <cstdint>

#include "common/device.cuh"

namespace cudamem {

// The textbook kernels.
constexpr int kConv1dMaxThreads = 256;
constexpr int kConv1dMinBlocks = 3;  // per multiprocessor: left free, ptxas spills on some architectures to fit more
constexpr int kConv1dStage = 1024;   // coefficients in shared memory at a time

// The tiled kernels.
constexpr int kTileWarps = 2;            // of a block; each works alone
constexpr int kTileMaxBytes = 48 << 10;  // of shared memory, what every GPU gives without being asked
constexpr int kTileAlignBytes = 32;      // where tiles of outputs start: at whole sectors
// Outputs of a float32 thread: odd numbers of quads, so that the threads of a warp meet different banks. More are
// faster (17 taps: 130 us against 144), but in a row that even fewer fill no more than once (rows of 200: 47 us, 40).
constexpr int kFloatOutputs = 20, kShortRowOutputs = 12;
constexpr int kManyFilters = 8;    // that a thread of a dense bank computes at once
constexpr int kSpreadOutputs = 8;  // of a thread, where taps or outputs lie apart

// Blocks of a multiprocessor, for whose sake the compiler saves registers.
template <typename scalar_t, int kOutputs, int kFilters>
constexpr int kTiledMinBlocks = kFilters > 1                ? 10
                                : kOutputs == kFloatOutputs ? 12
                                                            : 16;
template <typename scalar_t>
constexpr int kSpreadMinBlocks = sizeof(scalar_t) == 8 ? 12 : 16;

// Tensor cores: in steps of 16 samples they reach so many taps, since the first 15 samples belong to other outputs of a
// row and up to 7 come early.
template <int kSteps>
constexpr int kTensorTaps = 16 * kSteps - 22;
constexpr int kFewSteps = 2, kManySteps = 4;
constexpr int kTensorTapsBefore = 24;  // zeros
template <int kSteps>
constexpr int kTensorTapsRoom = kTensorTapsBefore + 16 * kSteps;
constexpr int kTensorAlignBytes = 8;  // of a thread's stores
constexpr int kTensorMinBlocks = 16;
constexpr int kTensorLoads = 5;       // of a thread at once, 16 bytes each
constexpr int64_t kTensorRounds = 4;  // of 256 outputs; 2 are a third slower, 8 a fifth (bfloat16, 9 and 31 taps)

// Gradients.
constexpr int kGradientThreads = 128;
constexpr int kFewTaps = 12, kMostTaps = 32;  // whose sums a thread keeps in registers
constexpr int kGradientBlocks = 8192;         // about so many in all, for an even end
constexpr int kChannelBlocks = 1056;          // that share a channel at most
constexpr int kGradientLeastTiles = 4;        // of a block that shares one
constexpr int kFinishThreads = 256;
constexpr int kFinishPieces = 32;  // up to so many, a thread adds them, else a block
template <typename scalar_t, int kTaps>
constexpr int kGradientMinBlocks = sizeof(scalar_t) == 8   ? 3
                                   : kTaps == kFewTaps     ? sizeof(scalar_t) == 4 || kHopperOrNewer ? 6 : 5
                                   : sizeof(scalar_t) == 4 ? 5
                                                           : 4;

}  // namespace cudamem
