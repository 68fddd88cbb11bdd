// The numbers that the policy chooses by. Measured on an H200; `README.md` has the figures.
#pragma once

#include <cstdint>

#include "common/device.cuh"

namespace cudamem {

// The textbook kernels.
constexpr int kConv1dMaxThreads = 256;
constexpr int kConv1dMinBlocks = 3;  // per multiprocessor: left free, ptxas spills on some architectures to fit more
constexpr int kConv1dStage = 1024;   // coefficients in shared memory at a time
constexpr int kRegisterOutputs = 8;  // of a thread whose coefficients are in registers
constexpr int kRegistersMinBlocks = 2;

// The tiled kernels.
constexpr int kTileWarps = 2;            // of a block; each works alone
constexpr int kTileMaxBytes = 48 << 10;  // of shared memory, what every GPU gives without being asked
constexpr int kTileAlignBytes = 32;      // where tiles of outputs start: at whole sectors
// Outputs of a float32 thread: an odd number of quads, so that the threads of a warp meet different banks. 17 taps: 130
// us, 144 with 12.
constexpr int kFloatOutputs = 20;
constexpr int kUnrolledQuads = 8;                         // of taps, at most
constexpr int kManyFilters = 8;                           // that a thread of a dense bank computes at once
constexpr int kStridedLoads = 4;                          // of a thread at once, where samples lie apart
constexpr int kDilatedOutputs = 16, kStridedOutputs = 8;  // of a thread, where taps or outputs lie apart

// Blocks of a multiprocessor, for whose sake the compiler saves registers: as many as do not make it spill.
constexpr int kManyBlocks = kHopperOrNewer ? 20 : 16;
template <typename scalar_t, int kOutputs, int kFilters>
constexpr int kTiledMinBlocks = kFilters > 1                ? 10
                                : kOutputs == kFloatOutputs ? 12
                                                            : 16;
template <int kQuads>
constexpr int kUnrolledMinBlocks = kQuads == 1 ? 14 : 16;
template <typename scalar_t, int kOutputs>
constexpr int kSpreadMinBlocks = sizeof(scalar_t) == 8         ? kOutputs == kDilatedOutputs ? 6 : 12
                                 : kOutputs == kDilatedOutputs ? 14
                                                               : kManyBlocks;

// About how long a kernel takes, in microseconds: until its first warps are done, more for each coefficient of a
// filter; then for each warp, and for each of its products of a coefficient and 32 samples. Fitted to 370 random
// problems on an H200, where choosing by it took 1% longer than choosing right; kFlatChannelsCost and kFlatFiltersCost
// to fewer. It serves to choose between a tile a warp and the flat kernels.
struct KernelCost {
  double start, coefficient, warp, product;
  constexpr double of(double warps, double coefficients, double products) const {
    return start + coefficient * coefficients + warps * (warp + product * products);
  }
};
constexpr KernelCost kSplitCost{2.5, 0.04, 390e-6, 1.7e-6}, kTensorCost{2.5, 0.001, 490e-6, 0.6e-6},
    kUnrolledCost{2.3, 0.01, 1020e-6, 0.3e-6}, kShortRowsCost{2.5, 0.05, 1080e-6, 1.4e-6},
    kTiledCost{2.6, 0.006, 770e-6, 1.1e-6}, kDenseCost{2.5, 0.06, 540e-6, 23e-6},
    kSpreadCost{3.0, 0.05, 930e-6, 4.3e-6}, kStridedCost{2.3, 0.04, 400e-6, 5.2e-6},
    kDilatedCost{2.2, 0.06, 590e-6, 3.1e-6};
constexpr double kRoundCost = 0.4;  // more, each time a warp waits for samples again: of another channel, or many
// Here `coefficient` counts kFlatLoads of them at once. The last one is of a thread that computes several filters.
constexpr KernelCost kFlatCost{1.4, 0.77, 139e-6, 15e-6}, kFlatChannelsCost{1.6, 0.8, 250e-6, 20e-6},
    kFlatFiltersCost{1.8, 2.1, 200e-6, 30e-6};

// The flat kernels.
constexpr int kFlatThreads = 128;
constexpr int kFlatLoads = 16;   // of a thread at once
constexpr int kFlatStage = 256;  // places and coefficients in shared memory at a time

// Tensor cores, halves.
constexpr int kTensorTaps = 42;        // at most: four steps of 16 samples, less 15 of a row and 7 that come early
constexpr int kTensorTapsBefore = 24;  // zeros
constexpr int kTensorAlignBytes = 8;   // of a thread's stores
constexpr int kTensorMinBlocks = 16;
constexpr int kTensorLoads = 5;       // of a thread at once, 16 bytes each
constexpr int64_t kTensorRounds = 4;  // of 256 outputs; 2 are a third slower, 8 a fifth (bfloat16, 9 and 31 taps)
constexpr int64_t kFewRounds = 1024;  // in all: then one a warp, for more warps

// Tensor cores, float32: on compute capability 8.0 and 9.0, where they multiply TF32 numbers 8 and 7 times as fast as
// other units multiply float32. On others it is twice or less, and three products for one do not pay.
constexpr bool is_split_version(int version) { return version == 80 || version == 90; }
#if defined(__CUDA_ARCH__)
constexpr bool kSplitHere = is_split_version(__CUDA_ARCH__ / 10);
#else
constexpr bool kSplitHere = false;
#endif
constexpr int kSplitTaps = 64;        // from so many on: 129 take 310 us, 380 without tensor cores; 31 178, 130 without
constexpr int kSplitTapsBefore = 12;  // zeros
constexpr int kSplitBlocks = 8;       // of 8 outputs, in a row of the left factor
constexpr int kSplitMinBlocks = kHopperOrNewer ? 8 : 6;
// Parts of a float32 that lie below its least normal number are lost. Of a tap no less than kSplitTiny, none is; and a
// sample's, times taps up to kSplitHuge, do not show in a result of kSplitLeast.
constexpr float kSplitTiny = 0x1p-102f, kSplitHuge = 0x1p30f, kSplitLeast = 0x1p-60f;

// Gradients.
constexpr int kGradientThreads = 128;
constexpr int kFewTaps = 12, kMostTaps = 32;  // whose sums a thread keeps in registers
constexpr int kGradientBlocks = 8192;         // about so many in all, so that all multiprocessors end at one time
constexpr int kChannelBlocks = 1056;    // that share a channel at most: 8 for each of an H200's 132 multiprocessors
constexpr int kGradientLeastTiles = 4;  // of a block that shares one
constexpr int kFinishThreads = 256;
constexpr int kFinishPieces = 32;  // up to so many, a thread adds them, else a block
template <typename scalar_t, int kTaps>
constexpr int kGradientMinBlocks = sizeof(scalar_t) == 8   ? 3
                                   : kTaps == kFewTaps     ? sizeof(scalar_t) == 4 || kHopperOrNewer ? 6 : 5
                                   : sizeof(scalar_t) == 4 ? 5
                                                           : 4;

}  // namespace cudamem
