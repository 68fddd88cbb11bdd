// The CUDA types that cross from the torch side to the kernels, and what a kernel tells about itself.
// CUDAMEM_CPU_ONLY is defined by builds without nvcc: they compile no kernel and see no CUDA header.
#pragma once

#ifndef CUDAMEM_CPU_ONLY
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace cudamem {

// One compiled kernel with the launch that the library gives it.
struct KernelEntry {
  std::string name;
  const void* function;
  int block_threads;
  size_t dynamic_shared_bytes = 0;  // where that depends on the problem, of a typical one
};

}  // namespace cudamem
#endif
