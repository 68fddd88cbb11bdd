// cudamem_ops._C: loading it registers the operators; its functions call them, and tell how it was built and what it
// holds.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "build_info.h"
#include "common/cuda_types.h"
#include "conv1d/conv1d.h"
#include "sum/sum.h"
#include "transpose/transpose.h"

namespace py = pybind11;

namespace {

py::object build_info() { return py::module_::import("json").attr("loads")(CUDAMEM_BUILD_INFO); }

#ifdef CUDAMEM_CPU_ONLY

py::list kernels() {
  throw std::runtime_error("cudamem_ops.kernels(): this build has no CUDA kernels (" CUDAMEM_WHY_CPU_ONLY
                           "). Rebuild it where nvcc is found, with CUDAMEM_CUDA=1: " CUDAMEM_REBUILD);
}

#else

void check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error("cudamem_ops.kernels(): " + what + ": " + cudaGetErrorString(error));
}

py::list kernels() {
  int device = 0, max_threads = 0;
  check(cudaGetDevice(&device), "no CUDA device can be used here");
  check(cudaDeviceGetAttribute(&max_threads, cudaDevAttrMaxThreadsPerMultiProcessor, device),
        "no CUDA device can be used here");
  py::list result;
  for (const auto& room : {cudamem::transpose_kernels(), cudamem::sum_kernels(), cudamem::conv1d_kernels()}) {
    for (const cudamem::KernelEntry& kernel : room) {
      cudaFuncAttributes attributes;
      check(cudaFuncGetAttributes(&attributes, kernel.function),
            kernel.name + " (built for " CUDAMEM_ARCHITECTURES ")");
      int blocks = 0;
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.function, kernel.block_threads,
                                                          kernel.dynamic_shared_bytes),
            kernel.name);
      py::dict row;
      row["name"] = kernel.name;
      row["registers"] = attributes.numRegs;
      row["static_shared_bytes"] = attributes.sharedSizeBytes;
      row["dynamic_shared_bytes"] = kernel.dynamic_shared_bytes;
      row["constant_bytes"] = attributes.constSizeBytes;
      row["local_bytes"] = attributes.localSizeBytes;
      row["max_threads"] = attributes.maxThreadsPerBlock;
      row["block_threads"] = kernel.block_threads;
      row["blocks_per_sm"] = blocks;
      row["occupancy"] = static_cast<double>(blocks * kernel.block_threads) / max_threads;
      result.append(row);
    }
  }
  return result;
}

#endif

template <size_t n>
py::tuple names(const char* const (&variants)[n]) {
  py::list result;
  for (const char* name : variants) result.append(name);
  return py::tuple(result);
}

py::dict variants() {
  py::dict result;
  result["transpose"] = names(cudamem::kTransposeVariants);
  result["sum"] = names(cudamem::kSumVariants);
  result["conv1d"] = names(cudamem::kConv1dVariants);
  return result;
}

template <class Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// The operators without a variant, straight to the dispatcher. torch.ops reaches it through a Python method, torch's
// JIT and a stack of boxed arguments, which adds 2 to 3 us to a call.
void define_operators(py::module_& m) {
  using at::Tensor;
  using Dtype = std::optional<at::ScalarType>;
  using OptionalTensor = std::optional<Tensor>;
  using Ints = at::SymIntArrayRef;
  using IntList = std::vector<c10::SymInt>;  // whose conversion from Python takes every kind of integer, nothing else
  using py::arg;
  const auto define = [&m](const char* name, auto call, auto... arguments) {
    m.def(name, torch::wrap_pybind_function_no_gil(call), arguments...);  // with torch's errors and warnings
  };

  const auto transpose = find_operator<Tensor(const Tensor&, int64_t, int64_t)>("cudamem::transpose");
  const auto call_transpose = [=](const Tensor& input, const c10::SymInt& dim0, const c10::SymInt& dim1) {
    return transpose.call(input, dim0.guard_int(__FILE__, __LINE__), dim1.guard_int(__FILE__, __LINE__));
  };
  define("transpose", call_transpose, arg("input"), arg("dim0"), arg("dim1"));

  const auto sum = find_operator<Tensor(const Tensor&, at::OptionalIntArrayRef, bool, Dtype)>("cudamem::sum");
  const auto call_sum = [=](const Tensor& input, const std::optional<IntList>& dim, bool keepdim, Dtype dtype) {
    return sum.call(input, dim ? at::OptionalIntArrayRef(C10_AS_INTARRAYREF_SLOW(*dim)) : std::nullopt, keepdim, dtype);
  };
  define("sum", call_sum, arg("input"), arg("dim"), arg("keepdim"), arg("dtype"));

  const auto conv1d =
      find_operator<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, Ints, Ints, Ints, c10::SymInt)>(
          "cudamem::conv1d");
  const auto call_conv1d = [=](const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                               const IntList& stride, const IntList& padding, const IntList& dilation,
                               c10::SymInt groups) {
    return conv1d.call(input, weight, bias, stride, padding, dilation, std::move(groups));
  };
  define("conv1d", call_conv1d, arg("input"), arg("weight"), arg("bias"), arg("stride"), arg("padding"),
         arg("dilation"), arg("groups"));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The compiled part of cudamem_ops.";
  define_operators(m);
  m.def("build_info", &build_info,
        "What this build was made with: the versions of torch, CUDA (None without kernels), nvcc and the C++ compiler, "
        "the GPU architectures, the flags.");
  m.def("kernels", &kernels,
        "A list with a dict for each CUDA kernel: registers a thread, shared, constant and local memory in bytes, the "
        "most threads a block may have, and for the largest block that the library launches its threads, the dynamic "
        "shared memory of a typical launch, the blocks that fit on a multiprocessor of the current device and the "
        "occupancy (0 to 1). RuntimeError without a GPU, or in a build without CUDA.");
  m.def("variants", &variants, "The names of the variants of each operator.");
}
