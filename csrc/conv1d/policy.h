// The numbers that the policy chooses by. Measured on an H200; `README.md` has the figures.
#pragma once

#include <cstdint>

namespace cudamem {

// The textbook kernels.
constexpr int kConv1dMaxThreads = 256;
constexpr int kConv1dMinBlocks = 3;  // per multiprocessor: left free, ptxas spills on some architectures to fit more
constexpr int kConv1dStage = 1024;   // coefficients in shared memory at a time

// The tiled kernels.
constexpr int kTileThreads = 256;       // at most
constexpr int kTileMaxBytes = 48 << 10;  // of shared memory, what every GPU gives without being asked
constexpr int kTileAlignBytes = 32;     // tiles of the output start at whole sectors
constexpr int kManyFilters = 8;         // that a thread of a dense bank computes at once
constexpr int kSpreadOutputs = 4;       // of a thread, where taps or outputs lie apart

// Blocks of a multiprocessor, for whose sake the compiler saves registers.
template <typename scalar_t, int kOutputs, int kFilters>
constexpr int kTiledMinBlocks = sizeof(scalar_t) == 8 ? 4 : kFilters > 1 ? 3 : kOutputs == 16 ? 3 : sizeof(scalar_t) == 2 ? 4 : 5;
template <typename scalar_t>
constexpr int kSpreadMinBlocks = sizeof(scalar_t) == 8 ? 3 : 4;

struct Conv1dPolicy {
  int64_t short_taps = 20;      // up to so many, a float32 thread has 4 outputs, else 16
  int64_t short_threads = 128;  // of a block then
  int64_t long_threads = 128;
  int64_t dense_threads = 128;
  int64_t spread_threads = 256;
};

// Gradients.
constexpr int kGradientThreads = 256;
constexpr int kFewTaps = 12, kMostTaps = 32;  // whose sums a thread keeps in registers
constexpr int kFinishThreads = 256;
template <typename scalar_t, int kTaps>
constexpr int kGradientMinBlocks = sizeof(scalar_t) == 8 ? 1 : kTaps == kFewTaps ? 3 : 2;  // on a multiprocessor

struct Conv1dGradientPolicy {
  int64_t blocks = 8192;    // about so many in all
  int64_t least_tiles = 4;  // of a thread
};

}  // namespace cudamem
