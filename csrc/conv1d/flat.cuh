// conv1d straight from global memory, one position of the output a thread, whatever the stride, dilation and layout.
//
// For signals so short, or so few, that a warp's tiles would be mostly empty. Threads are numbered over all outputs, so
// that a warp goes on in the next row where one ends. In groups of several filters a thread computes its position for
// up to 8 of them, so that a sample is loaded once for all; then a block stays in one group.
//
// Traffic: as in tiled.cuh, but that windows overlap in the L1 cache: a load for each multiplication, or for 8.
// Hazard:  where little runs, what counts is how often a thread waits for memory: it asks for 16 samples at once, of
//          one channel or several.
#pragma once

#include "conv1d/tiled.cuh"

namespace cudamem {

// The window of a thread's outputs.
template <typename scalar_t>
struct FlatWindow {
  const scalar_t* samples;  // where the first tap falls, in the group's first channel
  uint32_t at;              // its place in the signal; beyond the end, too, where it is negative

  __device__ FlatWindow(const Conv1dTiles& p, uint32_t batch, uint32_t group, uint32_t position) {
    const int start = static_cast<int>(position) * p.stride - p.padding;
    samples = static_cast<const scalar_t*>(p.input) + batch * p.batch_stride + group * p.group_stride +
              start * p.length_stride;
    at = start;
  }
};

// Loads kFlatLoads of `count` samples at once, from `first` on, and then adds them: load(i), add(i), both of which the
// compiler knows.
template <typename Load, typename Add>
__device__ void load_and_add(int first, int count, Load load, Add add) {
#pragma unroll
  for (int i = 0; i < kFlatLoads; ++i) {
    if (i % 4 == 0 && i > 0 && first + i >= count) break;
    load(i);
  }
#pragma unroll
  for (int i = 0; i < kFlatLoads; ++i) {
    if (i % 4 == 0 && i > 0 && first + i >= count) break;
    add(i);
  }
}

template <typename scalar_t>
__device__ const scalar_t* coefficients_of(const Conv1dTiles& p, uint32_t group, uint32_t filter) {
  return static_cast<const scalar_t*>(p.weight) + (group * p.group_weights + filter * p.filter_stride + p.first_tap);
}

template <typename scalar_t>
__device__ conv1d_acc_t<scalar_t> bias_of(const Conv1dTiles& p, uint32_t filter) {
  using acc_t = conv1d_acc_t<scalar_t>;
  return p.bias == nullptr ? acc_t{0} : convert<acc_t>(__ldg(static_cast<const scalar_t*>(p.bias) + filter));
}

// One channel a group.
template <typename scalar_t>
__global__ void __launch_bounds__(kFlatThreads) conv1d_flat_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  const uint32_t output = blockIdx.x * kFlatThreads + threadIdx.x;
  if (output >= p.all_tiles) return;
  uint32_t position = output;
  uint32_t filter = p.tiles.divide(position);
  uint32_t group = p.filter_blocks.divide(filter);
  const uint32_t batch = p.groups.divide(group);
  FlatWindow<scalar_t> window(p, batch, group, position);
  const scalar_t* weight = coefficients_of<scalar_t>(p, group, filter);
  const int64_t step = p.dilation * p.length_stride;
  acc_t sum = bias_of<scalar_t>(p, group * p.filters + filter);
  for (int first = 0; first < p.taps; first += kFlatLoads) {
    scalar_t samples[kFlatLoads], coefficients[kFlatLoads];
    const auto load = [&](int i) {
      samples[i] = coefficients[i] = convert<scalar_t>(0.0f);
      if (first + i < p.taps) {
        if (window.at < static_cast<uint32_t>(p.in_length)) samples[i] = __ldg(window.samples);
        coefficients[i] = __ldg(weight);
      }
      window.at += p.dilation;
      window.samples += step;
      weight += p.tap_step;
    };
    load_and_add(first, p.taps, load,
                 [&](int i) { sum += convert<acc_t>(samples[i]) * convert<acc_t>(coefficients[i]); });
  }
  static_cast<scalar_t*>(p.output)[output] = convert<scalar_t>(sum);
}

// Where the sample of a coefficient lies in a window, and where the coefficient lies in its filter's.
struct alignas(16) FlatPlace {
  int64_t offset;
  uint32_t at;
  int coefficient;
};

// Several channels, or several filters. kFilters: 1, or as many as blockIdx.y counts blocks of in all groups; then
// p.all_tiles are the positions of all batches.
template <typename scalar_t, int kFilters>
__global__ void __launch_bounds__(kFlatThreads) conv1d_flat_bank_kernel(const __grid_constant__ Conv1dTiles p) {
  using acc_t = conv1d_acc_t<scalar_t>;
  constexpr bool kMany = kFilters > 1;
  __shared__ FlatPlace places[kFlatStage];
  __shared__ __align__(16) acc_t taps[kMany ? kFlatStage : 1][kFilters];  // zeros up to a multiple of four
  const uint32_t index = blockIdx.x * kFlatThreads + threadIdx.x;
  const bool exists = index < p.all_tiles;
  uint32_t position = exists ? index : 0, filter = kMany ? blockIdx.y : p.tiles.divide(position);
  uint32_t group = p.filter_blocks.divide(filter);
  const uint32_t batch = kMany ? p.tiles.divide(position) : p.groups.divide(group);
  filter *= kFilters;
  const int filters = min(static_cast<int>(p.filters - filter), kFilters);
  const FlatWindow<scalar_t> window(p, batch, group, position);
  const scalar_t* const weight = coefficients_of<scalar_t>(p, group, filter);

  acc_t sums[kFilters] = {};
  for (int begin = 0; begin < p.channels * p.taps; begin += kFlatStage) {
    const int count = min(p.channels * p.taps - begin, kFlatStage), room = ceil_div(count, 4) * 4;
    const auto place = [&](int i) {
      uint32_t tap = begin + i;
      const uint32_t channel = p.divide_taps.divide(tap);
      return FlatPlace{channel * p.channel_stride + tap * (p.dilation * p.length_stride), tap * p.dilation,
                       static_cast<int>(channel) * p.filter_channel_stride + static_cast<int>(tap) * p.tap_step};
    };
    if (begin > 0) __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < room; i += kFlatThreads) places[i] = place(i);
    if constexpr (kMany) {
#pragma unroll 1
      for (int i = threadIdx.x; i < room * kFilters; i += kFlatThreads) {
        const int f = i % kFilters, tap = i / kFilters;
        const bool used = f < filters && tap < count;
        taps[tap][f] = used ? convert<acc_t>(__ldg(weight + (f * p.filter_stride + place(tap).coefficient))) : acc_t{0};
      }
    }
    __syncthreads();
    for (int first = 0; first < count; first += kFlatLoads) {
      scalar_t samples[kFlatLoads], coefficients[kFlatLoads];
      const auto load = [&](int i) {
        const FlatPlace place = places[first + i];
        const bool used = first + i < count;
        samples[i] = coefficients[i] = convert<scalar_t>(0.0f);
        if (used && window.at + place.at < static_cast<uint32_t>(p.in_length)) {
          samples[i] = __ldg(window.samples + place.offset);
        }
        if (!kMany && used) coefficients[i] = __ldg(weight + place.coefficient);
      };
      load_and_add(first, count, load, [&](int i) {
        const acc_t sample = convert<acc_t>(samples[i]);
#pragma unroll
        for (int f = 0; f < kFilters; ++f) {
          sums[f] += sample * (kMany ? taps[first + i][f] : convert<acc_t>(coefficients[i]));
        }
      });
    }
  }
  if (!exists) return;
  const uint32_t first = group * p.filters + filter;  // of all filters
  auto* output = static_cast<scalar_t*>(p.output) +
                 ((uint64_t{batch} * p.groups.divisor * p.filters + first) * p.out_length + position);
#pragma unroll
  for (int f = 0; f < kFilters; ++f, output += p.out_length) {
    if (f < filters) *output = convert<scalar_t>(sums[f] + bias_of<scalar_t>(p, first + f));
  }
}

}  // namespace cudamem
