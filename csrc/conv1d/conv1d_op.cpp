// torch.ops.cudamem.conv1d: torch.nn.functional.conv1d, in fresh contiguous memory; and its backward operator.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <limits>
#include <tuple>

#include "common/dispatch.h"
#include "conv1d/conv1d.h"

namespace cudamem {
namespace {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using OptionalTensor = std::optional<Tensor>;
using Variant = std::optional<std::string_view>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of input, weight and bias

void check_variant(Variant variant) {
  if (variant) variant_index("conv1d", kConv1dVariants, *variant);
}

// The arguments after input, weight and bias, one number each.
struct Window {
  SymInt stride, padding, dilation, groups;

  Window(SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups)
      : stride(only("stride", stride)),
        padding(only("padding", padding)),
        dilation(only("dilation", dilation)),
        groups(std::move(groups)) {}

  static SymInt only(const char* name, SymIntArrayRef values) {
    TORCH_CHECK(values.size() == 1, "cudamem::conv1d: expected ", name,
                " to be a single integer value or a list of 1 value, but got ", name, "=", values);
    return values[0];
  }
};

// Checks the weight's own shape and the numbers, so that no product of theirs can overflow.
void check_window(const Window& w, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 3, "cudamem::conv1d: expected a 3D weight, but got weight of size ", weight.sym_sizes());
  TORCH_SYM_CHECK(weight.sym_size(0).sym_gt(0).sym_and(weight.sym_size(2).sym_gt(0)),
                  "cudamem::conv1d: expected weight to be at least 1 at dimensions 0 and 2, but got weight of size ",
                  weight.sym_sizes());
  TORCH_SYM_CHECK(w.stride.sym_gt(0), "cudamem::conv1d: non-positive stride is not supported, got stride=", w.stride);
  TORCH_SYM_CHECK(w.padding.sym_ge(0), "cudamem::conv1d: negative padding is not supported, got padding=", w.padding);
  TORCH_SYM_CHECK(w.dilation.sym_gt(0),
                  "cudamem::conv1d: non-positive dilation is not supported, got dilation=", w.dilation);
  TORCH_SYM_CHECK(w.groups.sym_gt(0), "cudamem::conv1d: non-positive groups is not supported, got groups=", w.groups);
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 4;
  TORCH_SYM_CHECK(w.padding.sym_le(kLimit), "cudamem::conv1d: expected padding to be at most ", kLimit,
                  ", but got padding=", w.padding);
  TORCH_SYM_CHECK(w.dilation.sym_le(SymInt(kLimit) / weight.sym_size(2)),
                  "cudamem::conv1d: expected dilation to be at most ", kLimit, " / ", weight.sym_size(2),
                  ", but got dilation=", w.dilation);
}

// Checks everything that does not depend on data, in torch's words, and gives the sizes of the output.
std::vector<SymInt> check_conv1d(const Tensor& input, const Tensor& weight, const Tensor& bias, const Window& w) {
  check_same_device("conv1d", {{"input", &input}, {"weight", &weight}, {"bias", &bias}});
  TORCH_CHECK(input.dim() == 2 || input.dim() == 3,
              "cudamem::conv1d: expected 2D (unbatched) or 3D (batched) input, but got input of size ",
              input.sym_sizes());
  check_window(w, weight);
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "cudamem::conv1d: input type (", input.scalar_type(),
              ") and weight type (", weight.scalar_type(), ") should be the same");
  const SymInt out_channels = weight.sym_size(0), taps = weight.sym_size(2);
  const SymInt channels = input.sym_size(-2), length = input.sym_size(-1);
  TORCH_SYM_CHECK((out_channels % w.groups).sym_eq(0), "cudamem::conv1d: given groups=", w.groups,
                  ", expected weight to be divisible by ", w.groups, " at dimension 0, but got weight of size ",
                  weight.sym_sizes());
  // Divided rather than multiplied: groups may be any 64-bit number.
  TORCH_SYM_CHECK((channels % w.groups).sym_eq(0).sym_and((channels / w.groups).sym_eq(weight.sym_size(1))),
                  "cudamem::conv1d: given groups=", w.groups, " and weight of size ", weight.sym_sizes(),
                  ", expected input of size ", input.sym_sizes(), " to have ", weight.sym_size(1), " * ", w.groups,
                  " channels, but got ", channels);
  if (bias.defined()) {
    TORCH_CHECK(bias.dim() == 1 && bias.sym_size(0) == out_channels, "cudamem::conv1d: given weight of size ",
                weight.sym_sizes(), ", expected bias to be 1-dimensional with ", out_channels,
                " elements, but got bias of size ", bias.sym_sizes());
    TORCH_CHECK(input.scalar_type() == bias.scalar_type(), "cudamem::conv1d: input type (", input.scalar_type(),
                ") and bias type (", bias.scalar_type(), ") should be the same");
  }

  const SymInt padded = length + w.padding * 2;
  const SymInt reach = w.dilation * (taps - 1) + 1;
  TORCH_SYM_CHECK(padded.sym_ge(reach), "cudamem::conv1d: calculated padded input size per channel: (", padded,
                  "). Kernel size: (", reach, "). Kernel size can't be greater than actual input size");
  std::vector<SymInt> sizes;
  if (input.dim() == 3) sizes.push_back(input.sym_size(0));
  sizes.push_back(out_channels);
  sizes.push_back((padded - reach) / w.stride + 1);
  return sizes;
}

// Contiguous with the strides that a new tensor has: ATen's channels-last convolutions leave others on dims of size 1.
Tensor with_plain_strides(const Tensor& fresh) {
  const Tensor dense = fresh.contiguous();
  const auto strides = c10::contiguous_strides(dense.sizes());
  if (dense.strides() != at::IntArrayRef(strides)) dense.as_strided_(dense.sizes(), strides);
  return dense;
}

// ATen's own operators, with the checks of ours: the formula for transforms that differentiate through it, and for
// vmap. Where no input element contributes, the output is the bias.
Tensor conv1d_aten(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups) {
  const Tensor bias_tensor = bias.value_or(Tensor());
  const auto sizes = check_conv1d(input, weight, bias_tensor, {stride, padding, dilation, groups});
  if (input.sym_numel() == 0) {
    const Tensor zeros = at::zeros_symint(sizes, input.options());
    return bias_tensor.defined() ? zeros + bias_tensor.unsqueeze(-1) : zeros;
  }
  return at::conv1d_symint(input, weight, bias, stride, padding, dilation, std::move(groups)).contiguous();
}

Tensor conv1d_cpu(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                  SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Variant variant) {
  check_variant(variant);
  return with_plain_strides(conv1d_aten(input, weight, bias, stride, padding, dilation, std::move(groups)));
}

Tensor conv1d_meta(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Variant variant) {
  check_variant(variant);
  return at::empty_symint(check_conv1d(input, weight, bias.value_or(Tensor()), {stride, padding, dilation, groups}),
                          input.options());
}

#ifndef CUDAMEM_CPU_ONLY
// Where the kernels here are taken rather than cuDNN: one channel a group (a single filter, a depthwise bank), or few
// coefficients for each output and few outputs that share a sample (4 to 8 channels, 9 taps, float32: 125 us, cuDNN
// 600).
bool is_small_bank(const Conv1dProblem& p) {
  const int64_t most = p.dtype == DType::kFloat32 ? 128 : 32;
  return p.channels_per_group == 1 || (p.channels_out_per_group <= 8 && p.channels_per_group * p.taps <= most);
}

// Where no tile fits, many taps over many outputs are faster without a look at the signal's ends for each of them (one
// filter, 2^26 samples: 4 taps "flat", 9 and more "global").
Conv1dVariant default_variant(const Conv1dProblem& p) {
  constexpr int64_t kManyTaps = 9, kManyOutputs = 1 << 20;
  const Conv1dVariant best = best_conv1d_variant(p);
  const bool much =
      p.channels_per_group == 1 && p.taps >= kManyTaps && p.out_length >= kManyOutputs / p.batch / p.out_channels;
  return best == Conv1dVariant::kFlat && much && !conv1d_tiled_takes(p) ? Conv1dVariant::kGlobal : best;
}

void set_input(Conv1dProblem& p, const Tensor& input) {
  p.input = input.const_data_ptr();  // which kernel runs may depend on its alignment
  p.batch_stride = input.dim() == 3 ? input.stride(0) : 0;
  p.channel_stride = input.stride(-2);
  p.length_stride = input.stride(-1);
}

// All but the dtype and the other pointers.
Conv1dProblem make_problem(const Tensor& input, const Tensor& weight, const Window& window, int64_t out_length) {
  Conv1dProblem p;
  set_input(p, input);
  p.batch = input.dim() == 3 ? input.size(0) : 1;
  p.in_length = input.size(-1);
  p.out_length = out_length;
  p.out_channels = weight.size(0);
  p.channels_per_group = weight.size(1);
  p.taps = weight.size(2);
  p.channels_out_per_group = p.out_channels / window.groups.expect_int();
  p.stride = window.stride.expect_int();
  p.padding = window.padding.expect_int();
  p.dilation = window.dilation.expect_int();
  p.weight_bytes = weight.numel() * weight.element_size();
  return p;
}

// Whether a copy costs less than what is wasted on a signal whose samples lie in a sector each.
bool has_far_samples(const Tensor& input, int64_t taps) {
  constexpr int64_t kSectorBytes = 32, kLeastElements = 1 << 19, kLeastProducts = 1 << 21, kFewTaps = 32;
  const bool much = input.numel() >= kLeastElements || (taps <= kFewTaps && input.numel() * taps >= kLeastProducts);
  return much && input.stride(-1) * input.element_size() >= kSectorBytes;
}

// A contiguous copy, by the transposition of a transposed view.
Tensor copy_of(const Tensor& input) {
  static const auto transpose = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("cudamem::transpose", "")
                                    .typed<Tensor(const Tensor&, int64_t, int64_t)>();
  return transpose.call(input.transpose(-2, -1), -2, -1);
}

// The element type of the kernels, or none where they take no such tensor.
std::optional<DType> conv1d_dtype(const Tensor& input) {
  return at::isFloatingType(input.scalar_type()) ? kernel_dtype(input.scalar_type()) : std::nullopt;
}

Tensor conv1d_cuda(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Variant name) {
  check_variant(name);
  const Window window(stride, padding, dilation, groups);
  const auto sym_sizes = check_conv1d(input, weight, bias.value_or(Tensor()), window);
  const c10::DeviceGuard guard(input.device());
  if (input.numel() == 0) return conv1d_aten(input, weight, bias, stride, padding, dilation, groups);

  const auto sizes = C10_AS_INTARRAYREF_SLOW(sym_sizes);
  Conv1dProblem p = make_problem(input, weight, window, sizes.back());
  const auto dtype = conv1d_dtype(input);
  TORCH_CHECK_NOT_IMPLEMENTED(dtype || !name, "cudamem::conv1d: variant '", *name,
                              "' takes float16, bfloat16, float32 and float64, but got ", input.scalar_type());
  if (dtype) p.dtype = *dtype;
  if (!name && !(dtype && is_small_bank(p))) {
    return with_plain_strides(at::conv1d_symint(input, weight, bias, stride, padding, dilation, groups));
  }
  if (p.out_length == 1) p.stride = 1;  // steps that are never made
  if (p.taps == 1) p.dilation = 1;
  Tensor copy;  // lives until the launch
  if (!name && has_far_samples(input, p.taps)) {
    copy = copy_of(input);
    set_input(p, copy);
  }
  const cudaStream_t stream = current_stream(input.device());
  Conv1dVariant variant;
  if (!name) {
    variant = default_variant(p);
  } else {
    variant = static_cast<Conv1dVariant>(variant_index("conv1d", kConv1dVariants, *name));
    const char* why = conv1d_illegal(variant, p, stream);
    TORCH_CHECK(why == nullptr, "cudamem::conv1d: variant '", *name, "' cannot be used here: ", why);
  }
  const Tensor weight_dense = weight.contiguous();
  const Tensor bias_dense = bias ? bias->contiguous() : Tensor();
  Tensor out = at::empty(sizes, input.options());
  p.weight = weight_dense.const_data_ptr();
  p.bias = bias ? bias_dense.const_data_ptr() : nullptr;
  p.output = out.mutable_data_ptr();
  check_launch("conv1d", launch_conv1d(variant, p, stream));
  return out;
}
#endif

void check_conv1d_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Window& window) {
  check_same_device("conv1d_backward", {{"grad_output", &grad_output}, {"input", &input}, {"weight", &weight}});
  const auto sizes = check_conv1d(input, weight, {}, window);
  const auto fits = [&] {
    c10::SymBool same = grad_output.dim() == static_cast<int64_t>(sizes.size());
    for (size_t d = 0; d < sizes.size() && grad_output.dim() == static_cast<int64_t>(sizes.size()); ++d) {
      same = same.sym_and(grad_output.sym_size(static_cast<int64_t>(d)).sym_eq(sizes[d]));
    }
    return same;
  };
  TORCH_SYM_CHECK(fits(), "cudamem::conv1d_backward: expected grad_output of size ", SymIntArrayRef(sizes),
                  ", but got ", grad_output.sym_sizes());
  TORCH_CHECK(grad_output.scalar_type() == input.scalar_type(), "cudamem::conv1d_backward: grad_output type (",
              grad_output.scalar_type(), ") and input type (", input.scalar_type(), ") should be the same");
}

Tensor bias_gradient(const Tensor& grad_output) {
  return grad_output.dim() == 3 ? grad_output.sum(at::IntArrayRef{0, 2}) : grad_output.sum(1);
}

// The gradients that output_mask asks for; the others are undefined tensors. By ATen's operators, so that transforms
// can differentiate through it.
Gradients conv1d_backward_aten(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                               std::array<bool, 3> output_mask) {
  check_conv1d_backward(grad_output, input, weight, {stride, padding, dilation, groups});
  Gradients grads;
  auto& [grad_input, grad_weight, grad_bias] = grads;
  if (input.sym_numel() == 0) {
    if (output_mask[0]) grad_input = at::zeros_symint(input.sym_sizes(), input.options());
    if (output_mask[1]) grad_weight = at::zeros_symint(weight.sym_sizes(), weight.options());
    if (output_mask[2]) grad_bias = bias_gradient(grad_output);
    return grads;
  }
  const bool batched = input.dim() == 3;
  const auto with_batch = [&](const Tensor& t) { return batched ? t : t.unsqueeze(0); };
  const std::vector<SymInt> bias_sizes = {weight.sym_size(0)}, output_padding = {0};
  grads = at::convolution_backward_symint(with_batch(grad_output), with_batch(input), weight,
                                          SymIntArrayRef(bias_sizes), stride, padding, dilation, /*transposed=*/false,
                                          output_padding, std::move(groups), output_mask);
  if (output_mask[0] && !batched) grad_input = grad_input.squeeze(0);
  return grads;
}

// The same with plain strides: all that runs on the CPU, and on CUDA what has no kernel.
Gradients conv1d_backward_plain(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                                std::array<bool, 3> output_mask) {
  Gradients grads =
      conv1d_backward_aten(grad_output, input, weight, stride, padding, dilation, std::move(groups), output_mask);
  auto& [grad_input, grad_weight, grad_bias] = grads;
  if (output_mask[0]) grad_input = with_plain_strides(grad_input);
  if (output_mask[1]) grad_weight = with_plain_strides(grad_weight);
  return grads;
}

#ifndef CUDAMEM_CPU_ONLY
// The gradients of input and weight by one kernel, where it takes them; false, and nothing done, where not.
bool gradients_in_one_pass(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Conv1dProblem& p,
                           bool wants_input, Gradients& grads) {
  if (p.channels_per_group != 1 || p.channels_out_per_group != 1 || p.stride != 1 || p.dilation != 1) return false;
  Conv1dGradients g;
  g.batch = p.batch;
  g.channels = p.out_channels;
  g.in_length = p.in_length;
  g.out_length = p.out_length;
  g.taps = p.taps;
  g.padding = p.padding;
  g.dtype = p.dtype;
  if (!conv1d_gradients_take(g)) return false;
  const Tensor dense = weight.contiguous();
  // Samples that do not follow each other would be fetched one by one.
  const Tensor outputs = grad_output.stride(-1) == 1 ? grad_output : grad_output.contiguous();
  const Tensor inputs = input.stride(-1) == 1 ? input : input.contiguous();
  const auto set_strides = [](int64_t (&strides)[3], const Tensor& t) {
    strides[0] = t.dim() == 3 ? t.stride(0) : 0;
    strides[1] = t.stride(-2);
    strides[2] = t.stride(-1);
  };
  set_strides(g.input_strides, inputs);
  set_strides(g.grad_output_strides, outputs);
  auto& [grad_input, grad_weight, grad_bias] = grads;
  if (wants_input) grad_input = at::empty(input.sizes(), input.options());
  grad_weight = at::empty(weight.sizes(), weight.options());
  g.grad_output = outputs.const_data_ptr();
  g.input = inputs.const_data_ptr();
  g.weight = dense.const_data_ptr();
  g.grad_input = wants_input ? grad_input.mutable_data_ptr() : nullptr;
  g.grad_weight = grad_weight.mutable_data_ptr();
  Tensor scratch;
  const int64_t bytes = conv1d_gradients_scratch_bytes(g);
  if (bytes > 0) scratch = at::empty({bytes}, input.options().dtype(at::kByte));
  check_launch("conv1d_backward", launch_conv1d_gradients(g, bytes > 0 ? scratch.mutable_data_ptr() : nullptr,
                                                          current_stream(input.device())));
  return true;
}

// The gradient of the input alone: the convolution of grad_output with the weight transposed and its taps reversed.
bool gradient_by_convolution(const Tensor& grad_output, const Tensor& weight, const Conv1dProblem& forward,
                             const Tensor& input, Tensor& grad_input) {
  if (forward.stride != 1) return false;
  Conv1dProblem p = forward;
  set_input(p, grad_output);
  std::swap(p.in_length, p.out_length);
  std::swap(p.channels_per_group, p.channels_out_per_group);
  p.out_channels = input.size(-2);
  p.padding = p.dilation * (p.taps - 1) - p.padding;
  p.transposed = true;
  if (!is_small_bank(p)) return false;
  const Conv1dVariant variant = default_variant(p);
  if (variant == Conv1dVariant::kGlobal) return false;
  const Tensor dense = weight.contiguous();
  grad_input = at::empty(input.sizes(), input.options());
  p.weight = dense.const_data_ptr();
  p.bias = nullptr;
  p.output = grad_input.mutable_data_ptr();
  check_launch("conv1d_backward", launch_conv1d(variant, p, current_stream(input.device())));
  return true;
}

Gradients conv1d_backward_cuda(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                               std::array<bool, 3> output_mask) {
  const c10::DeviceGuard guard(input.device());
  const auto dtype = conv1d_dtype(input);
  Gradients grads;
  auto& [grad_input, grad_weight, grad_bias] = grads;
  std::array<bool, 3> left = output_mask;
  if (dtype && input.numel() > 0) {
    const Window window(stride, padding, dilation, groups);
    check_conv1d_backward(grad_output, input, weight, window);
    Conv1dProblem p = make_problem(input, weight, window, grad_output.size(-1));
    p.dtype = *dtype;
    if (left[1] && gradients_in_one_pass(grad_output, input, weight, p, left[0], grads)) left[0] = left[1] = false;
    if (left[0] && gradient_by_convolution(grad_output, weight, p, input, grad_input)) left[0] = false;
    if (left[2] && !left[0] && !left[1]) {
      grad_bias = bias_gradient(grad_output);
      left[2] = false;
    }
  }
  if (!left[0] && !left[1] && !left[2]) return grads;
  const auto [of_input, of_weight, of_bias] =
      conv1d_backward_plain(grad_output, input, weight, stride, padding, dilation, std::move(groups), left);
  if (left[0]) grad_input = of_input;
  if (left[1]) grad_weight = of_weight;
  if (left[2]) grad_bias = of_bias;
  return grads;
}
#endif

Gradients conv1d_backward_meta(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                               std::array<bool, 3> output_mask) {
  check_conv1d_backward(grad_output, input, weight, {stride, padding, dilation, std::move(groups)});
  Gradients grads;
  if (output_mask[0]) std::get<0>(grads) = at::empty_symint(input.sym_sizes(), input.options());
  if (output_mask[1]) std::get<1>(grads) = at::empty_symint(weight.sym_sizes(), weight.options());
  if (output_mask[2]) std::get<2>(grads) = at::empty_symint({weight.sym_size(0)}, weight.options());
  return grads;
}

// Calls the operators from below the Autograd key.
Tensor conv1d_dispatch(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                       SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Variant variant) {
  static const auto plain = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("cudamem::conv1d", "")
                                .typed<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef,
                                              SymIntArrayRef, SymIntArrayRef, SymInt)>();
  static const auto named = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("cudamem::conv1d", "variant")
                                .typed<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef,
                                              SymIntArrayRef, SymIntArrayRef, SymInt, std::string_view)>();
  return variant ? named.call(input, weight, bias, stride, padding, dilation, groups, *variant)
                 : plain.call(input, weight, bias, stride, padding, dilation, groups);
}

Gradients conv1d_backward_dispatch(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                   SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                                   SymInt groups, std::array<bool, 3> output_mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("cudamem::conv1d_backward", "")
                             .typed<Gradients(const Tensor&, const Tensor&, const Tensor&, SymIntArrayRef,
                                              SymIntArrayRef, SymIntArrayRef, SymInt, std::array<bool, 3>)>();
  return op.call(grad_output, input, weight, stride, padding, dilation, std::move(groups), output_mask);
}

// What both autograd functions save beside their tensors: the window, and flags of their own. One entry, since each
// takes the host half a microsecond.
struct SavedWindow {
  std::vector<SymInt> values;  // stride, padding, dilation, groups, flags

  static void save(torch::autograd::AutogradContext* ctx, const Window& w, std::initializer_list<bool> flags) {
    std::vector<SymInt> values = {w.stride, w.padding, w.dilation, w.groups};
    values.insert(values.end(), flags.begin(), flags.end());
    ctx->saved_data["window"] = SymIntArrayRef(values);
  }
  explicit SavedWindow(torch::autograd::AutogradContext* ctx) : values(ctx->saved_data["window"].toSymIntVector()) {}

  SymIntArrayRef stride() const { return SymIntArrayRef(values).slice(0, 1); }
  SymIntArrayRef padding() const { return SymIntArrayRef(values).slice(1, 1); }
  SymIntArrayRef dilation() const { return SymIntArrayRef(values).slice(2, 1); }
  const SymInt& groups() const { return values[3]; }
  bool flag(size_t i) const { return values[4 + i].expect_int() != 0; }
};

struct Conv1dFunction : torch::autograd::Function<Conv1dFunction> {
  static constexpr bool is_traceable = true;

  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& input, const Tensor& weight,
                        const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                        SymIntArrayRef dilation, SymInt groups, Variant variant) {
    ctx->save_for_backward({input, weight});
    SavedWindow::save(ctx, {stride, padding, dilation, groups}, {bias.has_value() && bias->defined()});
    const at::AutoDispatchBelowADInplaceOrView guard;
    return conv1d_dispatch(input, weight, bias, stride, padding, dilation, groups, variant);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const SavedWindow w(ctx);
    const bool has_bias = w.flag(0);
    const auto [grad_input, grad_weight, grad_bias] = conv1d_backward_dispatch(
        grads[0], saved[0], saved[1], w.stride(), w.padding(), w.dilation(), w.groups(),
        {ctx->needs_input_grad(0), ctx->needs_input_grad(1), has_bias && ctx->needs_input_grad(2)});
    return {grad_input, grad_weight, grad_bias, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// The backward operator is differentiable itself. It is linear in grad_output and in one of the other two, so that its
// derivatives are convolutions and backward convolutions again. A Function returns no undefined tensors: its outputs
// are the gradients that the mask asks for, in order.
struct Conv1dBackwardFunction : torch::autograd::Function<Conv1dBackwardFunction> {
  static constexpr bool is_traceable = true;

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& grad_output,
                                                const Tensor& input, const Tensor& weight, SymIntArrayRef stride,
                                                SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                                                std::array<bool, 3> output_mask) {
    ctx->save_for_backward({grad_output, input, weight});
    SavedWindow::save(ctx, {stride, padding, dilation, groups}, {output_mask[0], output_mask[1], output_mask[2]});
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [grad_input, grad_weight, grad_bias] =
        conv1d_backward_dispatch(grad_output, input, weight, stride, padding, dilation, groups, output_mask);
    torch::autograd::variable_list outputs;
    for (const Tensor& grad : {grad_input, grad_weight, grad_bias}) {
      if (grad.defined()) outputs.push_back(grad);
    }
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    // A convolution here is part of a gradient: an autocast region around it does not lower its precision.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = ctx->get_saved_variables();
    const Tensor &grad_output = saved[0], &input = saved[1], &weight = saved[2];
    const SavedWindow w(ctx);
    std::array<Tensor, 3> of_output;
    for (size_t i = 0, next = 0; i < 3; ++i) {
      if (w.flag(i)) of_output[i] = grads[next++];
    }
    const Tensor &to_input = of_output[0], &to_weight = of_output[1], &to_bias = of_output[2];
    const auto stride = w.stride(), padding = w.padding(), dilation = w.dilation();
    const SymInt& groups = w.groups();

    Tensor grad_grad_output, grad_input, grad_weight;
    const auto add = [&](const Tensor& term) {
      grad_grad_output = grad_grad_output.defined() ? grad_grad_output + term : term;
    };
    if (ctx->needs_input_grad(0)) {
      if (to_input.defined()) add(conv1d_dispatch(to_input, weight, {}, stride, padding, dilation, groups, {}));
      if (to_weight.defined()) add(conv1d_dispatch(input, to_weight, {}, stride, padding, dilation, groups, {}));
      if (to_bias.defined()) add(to_bias.unsqueeze(-1).expand_as(grad_output));
    }
    if (ctx->needs_input_grad(1) && to_weight.defined()) {
      grad_input = std::get<0>(conv1d_backward_dispatch(grad_output, input, to_weight, stride, padding, dilation,
                                                        groups, {true, false, false}));
    }
    if (ctx->needs_input_grad(2) && to_input.defined()) {
      grad_weight = std::get<1>(conv1d_backward_dispatch(grad_output, to_input, weight, stride, padding, dilation,
                                                         groups, {false, true, false}));
    }
    return {grad_grad_output, grad_input, grad_weight, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor conv1d_autograd(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                       SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Variant variant) {
  const Tensor bias_tensor = bias.value_or(Tensor());
  const bool differentiates = at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad() ||
                                                             (bias_tensor.defined() && bias_tensor.requires_grad()));
  // ATen has no backward operator for complex numbers: it composes their convolution of real ones.
  const bool complex = differentiates && input.is_complex() && input.sym_numel() != 0;
  if (complex || needs_composite({&input, &weight, &bias_tensor})) {
    check_variant(variant);
    return conv1d_aten(input, weight, bias, stride, padding, dilation, groups);
  }
  if (differentiates) {
    return Conv1dFunction::apply(input, weight, bias, stride, padding, dilation, groups, variant);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return conv1d_dispatch(input, weight, bias, stride, padding, dilation, groups, variant);
}

Gradients conv1d_backward_autograd(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                   SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                                   SymInt groups, std::array<bool, 3> output_mask) {
  if (needs_composite({&grad_output, &input, &weight})) {
    return conv1d_backward_aten(grad_output, input, weight, stride, padding, dilation, groups, output_mask);
  }
  const bool differentiates =
      at::GradMode::is_enabled() && (grad_output.requires_grad() || input.requires_grad() || weight.requires_grad());
  if (differentiates) {
    const auto grads =
        Conv1dBackwardFunction::apply(grad_output, input, weight, stride, padding, dilation, groups, output_mask);
    std::array<Tensor, 3> all;
    for (size_t i = 0, next = 0; i < 3; ++i) {
      if (output_mask[i]) all[i] = grads[next++];
    }
    return {all[0], all[1], all[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return conv1d_backward_dispatch(grad_output, input, weight, stride, padding, dilation, groups, output_mask);
}

// F.conv1d is on autocast's lower-precision list.
template <c10::DeviceType device, c10::DispatchKey key>
Tensor conv1d_autocast(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                       SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Variant variant) {
  const c10::impl::ExcludeDispatchKeyGuard guard(key);
  const auto type = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const Tensor& t) { return at::autocast::cached_cast(type, t, device); };
  return conv1d_dispatch(cast(input), cast(weight), bias ? OptionalTensor(cast(*bias)) : bias, stride, padding,
                         dilation, groups, variant);
}

// padding="valid" is none, padding="same" keeps the length; an odd total of "same" has one more zero at the end.
Tensor conv1d_padding(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                      std::string_view padding, SymIntArrayRef dilation, SymInt groups) {
  TORCH_CHECK(padding == "same" || padding == "valid", "cudamem::conv1d: invalid padding string: '", padding,
              "'; there are 'same' and 'valid'");
  if (padding == "valid") {
    return conv1d_dispatch(input, weight, bias, stride, {SymInt(0)}, dilation, groups, {});
  }
  const Window w(stride, {SymInt(0)}, dilation, groups);
  check_window(w, weight);
  TORCH_CHECK(w.stride == 1,
              "cudamem::conv1d: padding='same' is not supported for strided convolutions, got stride=", w.stride);
  const SymInt total = w.dilation * (weight.sym_size(2) - 1);
  const SymInt left = total / 2;
  const SymInt extra = total - left * 2;
  const std::vector<SymInt> at_end = {SymInt(0), extra};
  const Tensor padded = extra == 0 ? input : at::constant_pad_nd_symint(input, at_end, 0);
  return conv1d_dispatch(padded, weight, bias, stride, {left}, dilation, groups, {});
}

// torch.ops takes no plain number for a SymInt[1], as F.conv1d does: these overloads do.
Tensor conv1d_int(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymInt stride, SymInt padding,
                  SymInt dilation, SymInt groups) {
  return conv1d_dispatch(input, weight, bias, {stride}, {padding}, {dilation}, groups, {});
}
Tensor conv1d_padding_int(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymInt stride,
                          std::string_view padding, SymInt dilation, SymInt groups) {
  return conv1d_padding(input, weight, bias, {stride}, padding, {dilation}, groups);
}
Tensor conv1d_variant_int(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymInt stride,
                          SymInt padding, SymInt dilation, SymInt groups, std::string_view variant) {
  return conv1d_dispatch(input, weight, bias, {stride}, {padding}, {dilation}, groups, variant);
}

// Each function above as the two overloads.
template <Tensor (*function)(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef, SymIntArrayRef,
                             SymIntArrayRef, SymInt, Variant)>
Tensor plain(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
             SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups) {
  return function(input, weight, bias, stride, padding, dilation, groups, {});
}
template <Tensor (*function)(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef, SymIntArrayRef,
                             SymIntArrayRef, SymInt, Variant)>
Tensor named(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
             SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, std::string_view variant) {
  return function(input, weight, bias, stride, padding, dilation, groups, variant);
}

constexpr auto* conv1d_autocast_cuda = conv1d_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>;
constexpr auto* conv1d_autocast_cpu = conv1d_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>;

}  // namespace

TORCH_LIBRARY_FRAGMENT(cudamem, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, SymInt[1] padding=0, "
      "SymInt[1] dilation=1, SymInt groups=1) -> Tensor",
      tags);
  m.def(
      "conv1d.int(Tensor input, Tensor weight, Tensor? bias=None, SymInt stride=1, SymInt padding=0, "
      "SymInt dilation=1, SymInt groups=1) -> Tensor",
      tags);
  m.def(
      "conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, str padding=\"valid\", "
      "SymInt[1] dilation=1, SymInt groups=1) -> Tensor",
      tags);
  m.def(
      "conv1d.padding_int(Tensor input, Tensor weight, Tensor? bias=None, SymInt stride=1, str padding=\"valid\", "
      "SymInt dilation=1, SymInt groups=1) -> Tensor",
      tags);
  m.def(
      "conv1d.variant(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, SymInt[1] padding=0, "
      "SymInt[1] dilation=1, SymInt groups=1, *, str variant) -> Tensor",
      tags);
  m.def(
      "conv1d.variant_int(Tensor input, Tensor weight, Tensor? bias=None, SymInt stride=1, SymInt padding=0, "
      "SymInt dilation=1, SymInt groups=1, *, str variant) -> Tensor",
      tags);
  m.def(
      "conv1d_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[1] stride, SymInt[1] padding, "
      "SymInt[1] dilation, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
      tags);
}
TORCH_LIBRARY_IMPL(cudamem, CPU, m) {
  m.impl("conv1d", TORCH_FN(plain<conv1d_cpu>));
  m.impl("conv1d.variant", TORCH_FN(named<conv1d_cpu>));
  m.impl("conv1d_backward", TORCH_FN(conv1d_backward_plain));
}
TORCH_LIBRARY_IMPL(cudamem, CUDA, m) {
  m.impl("conv1d", CUDAMEM_CUDA_FN(plain<conv1d_cuda>));
  m.impl("conv1d.variant", CUDAMEM_CUDA_FN(named<conv1d_cuda>));
  m.impl("conv1d_backward", CUDAMEM_CUDA_FN(conv1d_backward_cuda));
}
TORCH_LIBRARY_IMPL(cudamem, Meta, m) {
  m.impl("conv1d", TORCH_FN(plain<conv1d_meta>));
  m.impl("conv1d.variant", TORCH_FN(named<conv1d_meta>));
  m.impl("conv1d_backward", TORCH_FN(conv1d_backward_meta));
}
TORCH_LIBRARY_IMPL(cudamem, Autograd, m) {
  m.impl("conv1d", TORCH_FN(plain<conv1d_autograd>));
  m.impl("conv1d.variant", TORCH_FN(named<conv1d_autograd>));
  m.impl("conv1d_backward", TORCH_FN(conv1d_backward_autograd));
}
TORCH_LIBRARY_IMPL(cudamem, AutocastCUDA, m) {
  m.impl("conv1d", TORCH_FN(plain<*conv1d_autocast_cuda>));
  m.impl("conv1d.variant", TORCH_FN(named<*conv1d_autocast_cuda>));
}
TORCH_LIBRARY_IMPL(cudamem, AutocastCPU, m) {
  m.impl("conv1d", TORCH_FN(plain<*conv1d_autocast_cpu>));
  m.impl("conv1d.variant", TORCH_FN(named<*conv1d_autocast_cpu>));
}
TORCH_LIBRARY_IMPL(cudamem, CompositeImplicitAutograd, m) {
  m.impl("conv1d.int", TORCH_FN(conv1d_int));
  m.impl("conv1d.padding", TORCH_FN(conv1d_padding));
  m.impl("conv1d.padding_int", TORCH_FN(conv1d_padding_int));
  m.impl("conv1d.variant_int", TORCH_FN(conv1d_variant_int));
}
TORCH_LIBRARY_IMPL(cudamem, FuncTorchBatched, m) {
  m.impl("conv1d", TORCH_FN(conv1d_aten));
  m.impl("conv1d.int", TORCH_FN(conv1d_int));
  m.impl("conv1d.padding", TORCH_FN(conv1d_padding));
  m.impl("conv1d.padding_int", TORCH_FN(conv1d_padding_int));
}

}  // namespace cudamem
