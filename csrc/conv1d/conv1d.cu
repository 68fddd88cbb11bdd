#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "conv1d/conv1d.cuh"

namespace cudamem {
namespace {

#define RETURN_IF_ERROR(call)                             \
  if (cudaError_t error = (call); error != cudaSuccess) { \
    return error;                                         \
  }

// How calls share the one __constant__ bank of a device: it is cut into slots, handed out in turn. A call makes its
// stream wait, on the device, for the events of the last users of its slots; copies its coefficients there; launches;
// and leaves its own event behind. The host waits for nothing. The lock keeps the steps of one call together.
//
// None of this can be captured: a graph's replay would write the slots without waiting for whoever has them by then.
class ConstantBank {
 public:
  template <typename Launch>
  cudaError_t use(const Conv1dProblem& problem, cudaStream_t stream, Launch launch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int count = static_cast<int>(ceil_div(problem.weight_bytes, kSlotBytes));
    if (next_ + count > kSlots) next_ = 0;
    const int first = next_;
    next_ = (first + count) % kSlots;

    for (int slot = first; slot < first + count; ++slot) {
      if (last_use_[slot] == nullptr) {
        RETURN_IF_ERROR(cudaEventCreateWithFlags(&last_use_[slot], cudaEventDisableTiming));
      } else {
        RETURN_IF_ERROR(cudaStreamWaitEvent(stream, last_use_[slot]));
      }
    }
    RETURN_IF_ERROR(cudaMemcpyToSymbolAsync(conv1d_bank, problem.weight, problem.weight_bytes, first * kSlotBytes,
                                            cudaMemcpyDeviceToDevice, stream));
    launch(first * kSlotBytes);
    const cudaError_t launched = cudaGetLastError();
    for (int slot = first; slot < first + count; ++slot) {
      RETURN_IF_ERROR(cudaEventRecord(last_use_[slot], stream));
    }
    return launched;
  }

  static ConstantBank& of_current_device() {
    static std::mutex mutex;
    static std::map<int, ConstantBank>* banks = new std::map<int, ConstantBank>;  // outlives the driver's own exit
    int device = 0;
    cudaGetDevice(&device);
    const std::lock_guard<std::mutex> lock(mutex);
    return (*banks)[device];
  }

 private:
  static constexpr int kSlots = 16;  // so that many streams seldom wait for each other
  static constexpr int64_t kSlotBytes = kConstantBankBytes / kSlots;

  std::mutex mutex_;
  int next_ = 0;
  std::array<cudaEvent_t, kSlots> last_use_{};
};

// A block's threads cover one signal: fewer of them for a short one.
int block_threads(int64_t out_length) {
  int threads = 32;
  while (threads < kConv1dMaxThreads && threads < out_length) threads *= 2;
  return threads;
}

template <typename scalar_t>
cudaError_t launch(Conv1dVariant variant, const Conv1dProblem& problem, cudaStream_t stream) {
  const int threads = block_threads(problem.out_length);
  constexpr int64_t kMaxGridYZ = 65535;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(problem.out_length, threads)),
                  static_cast<unsigned>(std::min(problem.out_channels, kMaxGridYZ)),
                  static_cast<unsigned>(std::min(problem.batch, kMaxGridYZ)));
  const auto* weight = static_cast<const scalar_t*>(problem.weight);
  const auto direct = [&](auto source) {
    conv1d_direct_kernel<scalar_t><<<grid, threads, 0, stream>>>(problem, source);
  };
  switch (variant) {
    case Conv1dVariant::kGlobal:
      direct(FromGlobal<scalar_t>{weight});
      break;
    case Conv1dVariant::kReadonly:
      direct(FromReadonly<scalar_t>{weight});
      break;
    case Conv1dVariant::kShared:
      conv1d_shared_kernel<scalar_t><<<grid, threads, 0, stream>>>(problem);
      break;
    case Conv1dVariant::kConstant:
      return ConstantBank::of_current_device().use(
          problem, stream, [&](int64_t offset_bytes) { direct(FromConstant<scalar_t>{offset_bytes}); });
    case Conv1dVariant::kParameter: {
      FromParameter<scalar_t> source;
      RETURN_IF_ERROR(cudaMemcpyAsync(source.bytes, weight, problem.weight_bytes, cudaMemcpyDeviceToHost, stream));
      RETURN_IF_ERROR(cudaStreamSynchronize(stream));
      direct(source);
      break;
    }
    case Conv1dVariant::kRegisters: {
      dim3 few = grid;
      few.x = static_cast<unsigned>(ceil_div<int64_t>(problem.out_length, threads * kRegisterOutputs));
      conv1d_registers_kernel<scalar_t><<<few, threads, 0, stream>>>(problem);
      break;
    }
    case Conv1dVariant::kFlat:
      return launch_conv1d_flat(problem, stream);
    case Conv1dVariant::kTiled:
      return launch_conv1d_tiled(problem, stream);
  }
  return cudaGetLastError();
}

template <typename scalar_t>
void add_entries(std::vector<KernelEntry>& entries) {
  auto add = [&](const char* variant, const void* kernel) {
    entries.push_back({std::string("conv1d_") + variant + "<" + kTypeName<scalar_t> + ">", kernel, kConv1dMaxThreads});
  };
  add("global", reinterpret_cast<const void*>(conv1d_direct_kernel<scalar_t, FromGlobal<scalar_t>>));
  add("readonly", reinterpret_cast<const void*>(conv1d_direct_kernel<scalar_t, FromReadonly<scalar_t>>));
  add("shared", reinterpret_cast<const void*>(conv1d_shared_kernel<scalar_t>));
  add("constant", reinterpret_cast<const void*>(conv1d_direct_kernel<scalar_t, FromConstant<scalar_t>>));
  add("parameter", reinterpret_cast<const void*>(conv1d_direct_kernel<scalar_t, FromParameter<scalar_t>>));
  add("registers", reinterpret_cast<const void*>(conv1d_registers_kernel<scalar_t>));
}

}  // namespace

const char* conv1d_illegal(Conv1dVariant variant, const Conv1dProblem& problem, cudaStream_t stream) {
  if (variant == Conv1dVariant::kTiled && !conv1d_tiled_takes(problem)) {
    return "a tile and its coefficients are larger than 49,152 bytes, or their numbers beyond 32 bits";
  }
  if (variant == Conv1dVariant::kFlat && !conv1d_flat_takes(problem)) {
    return "its sizes are beyond 2^30, or its taps, stride or dilation beyond 2^15";
  }
  if (variant == Conv1dVariant::kRegisters && (problem.channels_per_group != 1 || problem.taps > kRegisterTaps)) {
    return "a thread keeps one channel's coefficients, of up to 32 taps";
  }
  const bool is_parameter = variant == Conv1dVariant::kParameter;
  if (variant != Conv1dVariant::kConstant && !is_parameter) return nullptr;
  if (is_parameter && problem.weight_bytes > kParameterBytes) {
    return "the weight is larger than the 2048 bytes that go into a kernel's arguments";
  }
  if (problem.weight_bytes > kConstantBankBytes) return "the weight is larger than the 65,536 bytes of constant memory";
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) cudaGetLastError();
  if (status != cudaStreamCaptureStatusNone) {
    return is_parameter ? "the stream is being captured into a CUDA graph, and the host cannot wait for the weight"
                        : "the stream is being captured into a CUDA graph, whose replays could not share constant "
                          "memory safely";
  }
  return nullptr;
}

cudaError_t launch_conv1d(Conv1dVariant variant, const Conv1dProblem& problem, cudaStream_t stream) {
  return with_type(problem.dtype, [&](auto type) { return launch<decltype(type)>(variant, problem, stream); });
}

std::vector<KernelEntry> conv1d_kernels() {
  std::vector<KernelEntry> entries;
  for_each_type([&](auto type) { add_entries<decltype(type)>(entries); });
  for (const auto& more : {conv1d_tiled_kernel_entries(), conv1d_gradient_kernel_entries()}) {
    entries.insert(entries.end(), more.begin(), more.end());
  }
  return entries;
}

}  // namespace cudamem
