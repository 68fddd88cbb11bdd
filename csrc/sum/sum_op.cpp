// torch.ops.cudamem.sum: torch.sum, in fresh memory.
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/real.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bitset>
#include <numeric>
#include <vector>

#include "common/dispatch.h"
#include "sum/sum.h"

namespace cudamem {
namespace {

using at::Tensor;
using Dims = at::OptionalIntArrayRef;
using Dtype = std::optional<at::ScalarType>;
using Variant = std::optional<std::string_view>;

void check_variant(Variant variant) {
  if (variant) variant_index("sum", kSumVariants, *variant);
}

// Which dims are summed: all of them for None and for [].
std::bitset<kMaxDims> reduced_dims(const Tensor& self, Dims dim) {
  TORCH_CHECK(self.dim() <= kMaxDims, "cudamem::sum: only tensors with up to ", kMaxDims,
              " dims are supported, but got ", self.dim());
  std::bitset<kMaxDims> reduced;
  if (!dim || dim->empty()) return reduced.set();
  std::vector<int64_t> wrapped;
  for (const int64_t d : *dim) wrapped.push_back(c10::maybe_wrap_dim(d, self.dim()));
  for (const int64_t d : wrapped) {
    TORCH_CHECK(!reduced[d], "cudamem::sum: dim ", d, " appears multiple times in the list of dims");
    reduced.set(d);
  }
  return reduced;
}

template <typename Sizes>  // IntArrayRef or SymIntArrayRef
auto output_sizes(Sizes sizes, const std::bitset<kMaxDims>& reduced, bool keepdim) {
  std::vector<std::decay_t<decltype(sizes[0])>> result;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!reduced[d]) result.push_back(sizes[d]);
    if (reduced[d] && keepdim) result.push_back(1);
  }
  return result;
}

// Integers and bool add up in int64, unless dtype says otherwise.
at::ScalarType output_dtype(const Tensor& self, Dtype dtype) {
  return dtype.value_or(at::isIntegralType(self.scalar_type(), /*includeBool=*/true) ? at::kLong : self.scalar_type());
}

// ATen's own operator: the CPU kernel, and the formula for transforms that differentiate through it. torch.sum never
// returns its input. Dims are spelt out, since under vmap "all" would take in the batch.
Tensor sum_aten(const Tensor& self, Dims dim, bool keepdim, Dtype dtype) {
  if (dim && !dim->empty()) return at::sum(self, dim, keepdim, dtype);
  std::vector<int64_t> all(self.dim());
  std::iota(all.begin(), all.end(), 0);
  return all.empty() ? at::sum(self, dtype) : at::sum(self, all, keepdim, dtype);
}

Tensor sum_cpu(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  check_variant(variant);
  return sum_aten(self, dim, keepdim, dtype);
}

Tensor sum_meta(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  check_variant(variant);
  return at::empty_symint(output_sizes(self.sym_sizes(), reduced_dims(self, dim), keepdim),
                          self.options().dtype(output_dtype(self, dtype)));
}

#ifndef CUDAMEM_CPU_ONLY
// A thread for each output where there are many outputs, but for long rows; or where there is too little for a block.
// On an H200, 2^27 float32: rows of 64: serial 536 us, shuffle 3514; of 512: 579, 627; of 1024: 578, 258; columns: 200,
// 900.
SumVariant best_variant(const SumProblem& p) {
  const bool outputs_adjacent = p.outputs.count > 0 && p.outputs.strides[p.outputs.count - 1][0] == 1;
  const bool many_outputs = p.num_outputs >= 8192;
  const bool serial = p.num_reduced <= 32 || (many_outputs && (p.num_reduced <= 512 || outputs_adjacent));
  return serial ? SumVariant::kSerial : SumVariant::kShuffle;
}

// Passes until one value is left for each output. `out` is contiguous, of a type that has a kernel for self's.
void sum_into(const Tensor& out, const Tensor& self, const std::bitset<kMaxDims + 1>& reduced, Variant variant) {
  SumProblem p;
  p.num_outputs = out.numel();
  p.num_reduced = self.numel() / out.numel();
  std::vector<int64_t> order;  // of the reduced dims: the memory's, so that as many as possible join
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (reduced[d]) {
      order.push_back(d);
    } else {
      p.outputs.append(self.size(d), {self.stride(d)});
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  for (const int64_t d : order) p.reduced.append(self.size(d), {self.stride(d)});

  const auto chosen = variant ? static_cast<SumVariant>(variant_index("sum", kSumVariants, *variant)) : best_variant(p);
  const cudaStream_t stream = current_stream(self.device());
  const DType out_type = *kernel_dtype(out.scalar_type());
  p.in_type = *kernel_dtype(self.scalar_type());
  p.input = self.const_data_ptr();

  const DType accumulator = sum_accumulator(p.in_type);
  if (chosen == SumVariant::kAtomic) {
    const Tensor total = at::zeros(out.sizes(), out.options().dtype(scalar_type(accumulator)));
    p.output = total.mutable_data_ptr();
    p.out_type = accumulator;
    check_launch("sum", launch_sum(chosen, p, stream));
    out.copy_(total);
    return;
  }
  Tensor scratch;  // what the last pass wrote; memory that is replaced stays valid in stream order
  while (true) {
    const int64_t partials = sum_partials(chosen, p.num_reduced);
    if (partials == 1) break;
    const Tensor next = at::empty({p.num_outputs, partials}, out.options().dtype(scalar_type(accumulator)));
    p.output = next.mutable_data_ptr();
    p.out_type = accumulator;
    check_launch("sum", launch_sum(chosen, p, stream));

    scratch = next;
    p.input = scratch.const_data_ptr();
    p.in_type = accumulator;
    p.num_reduced = partials;
    p.outputs = p.reduced = {};
    p.outputs.append(p.num_outputs, {partials});
    p.reduced.append(partials, {1});
  }
  p.output = out.mutable_data_ptr();
  p.out_type = out_type;
  check_launch("sum", launch_sum(chosen, p, stream));
}

Tensor sum_cuda(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  check_variant(variant);
  const auto reduced = reduced_dims(self, dim);
  const at::ScalarType out_dtype = output_dtype(self, dtype);
  const c10::DeviceGuard guard(self.device());
  const auto sizes = output_sizes(self.sizes(), reduced, keepdim);
  const auto options = self.options();
  const std::bitset<kMaxDims + 1> of_input(reduced.to_ullong());  // one more: view_as_real adds a dim
  if (variant == "atomic" && !at::isIntegralType(out_dtype, /*includeBool=*/true)) {
    at::globalContext().alertNotDeterministic("cudamem::sum with variant 'atomic'");
  }

  if (at::isComplexType(out_dtype)) {  // two sums, of the real and of the imaginary parts, which lie side by side
    Tensor out = at::empty(sizes, options.dtype(out_dtype));
    if (self.numel() == 0) return out.zero_();
    auto of_parts = of_input;
    of_parts.reset(self.dim());
    sum_into(at::view_as_real(out), at::view_as_real(self.to(out_dtype)), of_parts, variant);
    return out;
  }
  // Each element is cast before it is added, but for one case where the cast can wait until after the sum: integers
  // wrap alike, so that a narrower one is cut from the int64 sum.
  const bool to_integer = at::isIntegralType(out_dtype, /*includeBool=*/true);
  const bool cast_later = to_integer && out_dtype != at::kBool && at::isIntegralType(self.scalar_type(), true);
  const at::ScalarType sum_dtype = to_integer ? at::kLong : out_dtype;
  const auto has_kernel = [&](at::ScalarType type) {
    const auto in = kernel_dtype(type), out = kernel_dtype(sum_dtype);
    return in && out && sum_has_kernel(*in, *out);
  };
  const bool in_place =
      has_kernel(self.scalar_type()) && (cast_later || !to_integer || self.scalar_type() == out_dtype);
  const Tensor input = in_place ? self : self.to(out_dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(has_kernel(input.scalar_type()), "\"cudamem::sum\" not implemented for '",
                              input.scalar_type(), "'");
  Tensor out = at::empty(sizes, options.dtype(sum_dtype));
  if (self.numel() == 0) {
    out.zero_();
  } else {
    sum_into(out, input, of_input, variant);
  }
  return out.to(out_dtype);
}
#endif

// Calls the operator from below the Autograd key.
Tensor sum_dispatch(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  static const auto plain = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("cudamem::sum", "")
                                .typed<Tensor(const Tensor&, Dims, bool, Dtype)>();
  static const auto named = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("cudamem::sum", "variant")
                                .typed<Tensor(const Tensor&, Dims, bool, Dtype, std::string_view)>();
  return variant ? named.call(self, dim, keepdim, dtype, *variant) : plain.call(self, dim, keepdim, dtype);
}

// The gradient of each element is that of the sum it went into: a view with strides of zero, no memory.
struct SumFunction : torch::autograd::Function<SumFunction> {
  static constexpr bool is_traceable = true;

  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& self, Dims dim, bool keepdim, Dtype dtype,
                        Variant variant) {
    const auto reduced = reduced_dims(self, dim);
    ctx->saved_data["sizes"] = self.sym_sizes();
    ctx->saved_data["reduced"] = static_cast<int64_t>(reduced.to_ullong());
    ctx->saved_data["keepdim"] = keepdim;
    ctx->saved_data["dtype"] = self.scalar_type();
    const at::AutoDispatchBelowADInplaceOrView guard;
    return sum_dispatch(self, dim, keepdim, dtype, variant);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto sizes = ctx->saved_data["sizes"].toSymIntVector();
    const std::bitset<kMaxDims> reduced(ctx->saved_data["reduced"].toInt());
    const at::ScalarType dtype = ctx->saved_data["dtype"].toScalarType();
    Tensor grad = grads[0];
    if (!ctx->saved_data["keepdim"].toBool()) {
      for (size_t d = 0; d < sizes.size(); ++d) {
        if (reduced[d]) grad = grad.unsqueeze(static_cast<int64_t>(d));
      }
    }
    if (grad.is_complex() && !at::isComplexType(dtype)) grad = at::real(grad);
    return {grad.expand_symint(sizes).to(dtype), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor sum_autograd(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  if (needs_composite({&self})) {
    check_variant(variant);
    return sum_aten(self, dim, keepdim, dtype);
  }
  const bool differentiable =
      at::isFloatingType(output_dtype(self, dtype)) || at::isComplexType(output_dtype(self, dtype));
  if (at::GradMode::is_enabled() && self.requires_grad() && differentiable) {
    return SumFunction::apply(self, dim, keepdim, dtype, variant);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return sum_dispatch(self, dim, keepdim, dtype, variant);
}

// torch.sum is on CUDA autocast's float32 list: half types are added up into float32, unless dtype says otherwise.
Tensor sum_autocast(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCUDA);
  const auto type = self.scalar_type();
  if (!dtype && (type == at::kHalf || type == at::kBFloat16)) dtype = at::kFloat;
  return sum_dispatch(self, dim, keepdim, dtype, variant);
}

// Each function above as the two overloads.
template <Tensor (*function)(const Tensor&, Dims, bool, Dtype, Variant)>
Tensor plain(const Tensor& self, Dims dim, bool keepdim, Dtype dtype) {
  return function(self, dim, keepdim, dtype, {});
}
template <Tensor (*function)(const Tensor&, Dims, bool, Dtype, Variant)>
Tensor named(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, std::string_view variant) {
  return function(self, dim, keepdim, dtype, variant);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cudamem, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("sum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", tags);
  m.def(
      "sum.variant(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None, str variant) "
      "-> Tensor",
      tags);
}
TORCH_LIBRARY_IMPL(cudamem, CPU, m) {
  m.impl("sum", TORCH_FN(plain<sum_cpu>));
  m.impl("sum.variant", TORCH_FN(named<sum_cpu>));
}
TORCH_LIBRARY_IMPL(cudamem, CUDA, m) {
  m.impl("sum", CUDAMEM_CUDA_FN(plain<sum_cuda>));
  m.impl("sum.variant", CUDAMEM_CUDA_FN(named<sum_cuda>));
}
TORCH_LIBRARY_IMPL(cudamem, Meta, m) {
  m.impl("sum", TORCH_FN(plain<sum_meta>));
  m.impl("sum.variant", TORCH_FN(named<sum_meta>));
}
TORCH_LIBRARY_IMPL(cudamem, Autograd, m) {
  m.impl("sum", TORCH_FN(plain<sum_autograd>));
  m.impl("sum.variant", TORCH_FN(named<sum_autograd>));
}
TORCH_LIBRARY_IMPL(cudamem, AutocastCUDA, m) {
  m.impl("sum", TORCH_FN(plain<sum_autocast>));
  m.impl("sum.variant", TORCH_FN(named<sum_autocast>));
}
TORCH_LIBRARY_IMPL(cudamem, FuncTorchBatched, m) { m.impl("sum", TORCH_FN(sum_aten)); }

}  // namespace cudamem
