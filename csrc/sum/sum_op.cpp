// torch.ops.cudamem.sum: torch.sum, in fresh memory.
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/version.h>

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
// The dims of the tensor and of its contiguous sum, in the order of the tensor's strides, so that as many as possible
// join. An expanded dim comes first: it brings nothing to read side by side.
SumProblem make_problem(const Tensor& out, const Tensor& self, const std::bitset<kMaxDims + 1>& reduced) {
  SumProblem p;
  std::vector<int64_t> order(self.dim()), out_strides(self.dim());
  std::iota(order.begin(), order.end(), 0);
  int64_t elems = 1;
  for (int64_t d = self.dim() - 1; d >= 0; --d) {
    out_strides[d] = reduced[d] ? 0 : elems;
    if (!reduced[d]) elems *= self.size(d);
  }
  const auto before = [&](int64_t a, int64_t b) {
    if ((self.stride(a) == 0) != (self.stride(b) == 0)) return self.stride(a) == 0;
    return self.stride(a) > self.stride(b);
  };
  std::stable_sort(order.begin(), order.end(), before);
  for (const int64_t d : order)
    (reduced[d] ? p.reduced : p.kept).append(self.size(d), {self.stride(d), out_strides[d]});
  p.num_outputs = out.numel();
  p.num_reduced = self.numel() / p.num_outputs;
  p.input = self.const_data_ptr();
  p.output = out.mutable_data_ptr();
  p.in_type = *kernel_dtype(self.scalar_type());
  p.out_type = *kernel_dtype(out.scalar_type());
  p.cast_type = p.out_type;
  return p;
}

bool is_textbook(SumVariant variant) { return variant <= SumVariant::kShuffle; }

// The textbook kernels, which take every shape, but elements only in the type that they are added in.
void sum_by_textbook(const Tensor& out, const Tensor& self, const std::bitset<kMaxDims + 1>& reduced,
                     SumVariant variant) {
  SumProblem p = make_problem(out, self, reduced);
  const cudaStream_t stream = current_stream(self.device());
  const auto accumulator = out.options().dtype(scalar_type(sum_accumulator(p.out_type)));
  if (variant != SumVariant::kShuffle) {
    const Tensor total = at::zeros(out.sizes(), accumulator);
    p.output = total.mutable_data_ptr();
    check_launch("sum", launch_textbook_sum(variant, p, stream));
    out.copy_(total);
    return;
  }
  Tensor scratch;  // what the last pass wrote; memory that is replaced stays valid in stream order
  const DType out_type = p.out_type;
  while (true) {
    const int64_t partials = textbook_partials(variant, p.num_reduced);
    if (partials == 1) break;
    const Tensor next = at::empty({p.num_outputs, partials}, accumulator);
    p.output = next.mutable_data_ptr();
    p.out_type = sum_accumulator(out_type);
    check_launch("sum", launch_textbook_sum(variant, p, stream));

    scratch = next;
    p.input = scratch.const_data_ptr();
    p.in_type = p.out_type;
    p.num_reduced = partials;
    p.kept = p.reduced = {};
    p.kept.append(p.num_outputs, {partials, 1});
    p.reduced.append(partials, {1, 0});
  }
  p.output = out.mutable_data_ptr();
  p.out_type = out_type;
  check_launch("sum", launch_textbook_sum(variant, p, stream));
}

// `out` is contiguous; both are of types that the kernels know. Each element is cast to out's type before it is added.
void sum_into(const Tensor& out, const Tensor& self, const std::bitset<kMaxDims + 1>& reduced, Variant name) {
  if (out.numel() > kMaxDividend) {  // in halves, since the kernels count outputs in 31 bits
    int64_t d = 0;
    while (reduced[d] || self.size(d) == 1) ++d;
    const int64_t size = self.size(d), half = size / 2, outputs = out.numel() / size * half;
    const Tensor flat = out.view({-1});
    sum_into(flat.narrow(0, 0, outputs), self.narrow(d, 0, half), reduced, name);
    return sum_into(flat.narrow(0, outputs, out.numel() - outputs), self.narrow(d, half, size - half), reduced, name);
  }
  auto variant = name ? static_cast<SumVariant>(variant_index("sum", kSumVariants, *name)) : SumVariant::kOneLaunch;
  const SumProblem problem = make_problem(out, self, reduced);
  const bool exact = problem.cast_type <= DType::kInt64;  // nothing to compensate
  if (exact && variant == SumVariant::kCompensated) variant = SumVariant::kOneLaunch;
  SumPlan plan;
  if (!is_textbook(variant)) plan = plan_sum(problem, variant, /*may_be_small=*/!name);
  if (plan.kernel == nullptr) {
    TORCH_CHECK(!name || is_textbook(variant), "cudamem::sum: variant '", *name,
                "' takes up to 8 kept and 8 summed dims that do not join, and fewer than 2^31 rows of each");
    const bool plain = adds_plainly(problem.in_type, problem.cast_type);
    return sum_by_textbook(out, plain ? self : self.to(out.scalar_type()), reduced,
                           is_textbook(variant) ? variant : SumVariant::kShuffle);
  }
  const cudaStream_t stream = current_stream(self.device());
  if (variant != SumVariant::kTwoLaunches) take_letters(plan, stream);
  Tensor scratch;
  if (plan.scratch_bytes > 0) scratch = at::empty({plan.scratch_bytes}, self.options().dtype(at::kByte));
  check_launch("sum", launch_sum(plan, scratch.defined() ? scratch.mutable_data_ptr() : nullptr, stream));
}

Tensor sum_cuda(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  check_variant(variant);
  const auto reduced = reduced_dims(self, dim);
  const at::ScalarType out_dtype = output_dtype(self, dtype);
  const c10::DeviceGuard guard(self.device());
  const bool to_integer = at::isIntegralType(out_dtype, /*includeBool=*/true);
  if ((variant == "atomic" || variant == "shared") && !to_integer) {
    at::globalContext().alertNotDeterministic("cudamem::sum with variant '" + std::string(*variant) + "'");
  }
  if (self.is_complex() && !at::isComplexType(out_dtype)) {
    return sum_cuda(self.to(out_dtype), dim, keepdim, out_dtype, variant);
  }
  if (at::isComplexType(out_dtype) && !self.is_complex()) {
    return sum_cuda(self, dim, keepdim, c10::toRealValueType(out_dtype), variant).to(out_dtype);
  }
  // Types without a kernel are added as int64, which wraps as they do.
  const at::ScalarType real = c10::toRealValueType(out_dtype), sum_dtype = kernel_dtype(real) ? out_dtype : at::kLong;
  TORCH_CHECK_NOT_IMPLEMENTED(kernel_dtype(real) || to_integer, "\"cudamem::sum\" not implemented for '", out_dtype,
                              "'");
  Tensor input = self;
  if (!kernel_dtype(c10::toRealValueType(self.scalar_type())) ||
      (sum_dtype != out_dtype && !at::isIntegralType(self.scalar_type(), /*includeBool=*/true))) {
    input = self.to(out_dtype).to(sum_dtype);
  }
  Tensor out = at::empty(output_sizes(self.sizes(), reduced, keepdim), self.options().dtype(sum_dtype));
  std::bitset<kMaxDims + 1> of_input(reduced.to_ullong());  // one more: view_as_real adds a dim
  if (self.numel() == 0) {
    out.zero_();
  } else if (self.is_complex()) {  // two sums, of the real and of the imaginary parts, which lie side by side
    of_input.reset(self.dim());
    sum_into(at::view_as_real(out), at::view_as_real(input), of_input, variant);
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

// Nodes of the graph are made as torch makes them: since 2.13 they count their references themselves.
auto make_node() {
  using Node = torch::autograd::generated::SumBackward1;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return std::shared_ptr<Node>(new Node(), torch::autograd::deleteNode);
#else
  return c10::make_intrusive<Node>();
#endif
}

// The gradient of each element is that of the sum it went into: a view with strides of zero, which takes memory only
// where autograd casts it. That is torch.sum's gradient, by torch.sum's node; an autograd::Function would take the host
// half as long again.
Tensor sum_recorded(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  const auto node = make_node();
  node->dim = dim;
  node->keepdim = keepdim;
  node->self_sym_sizes = self.sym_sizes().vec();
  node->set_next_edges(torch::autograd::collect_next_edges(self));
  Tensor out;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    out = sum_dispatch(self, dim, keepdim, dtype, variant);
  }
  torch::autograd::set_history(out, node);
  return out;
}

Tensor sum_autograd(const Tensor& self, Dims dim, bool keepdim, Dtype dtype, Variant variant) {
  if (needs_composite({&self})) {
    check_variant(variant);
    return sum_aten(self, dim, keepdim, dtype);
  }
  const at::ScalarType out_dtype = output_dtype(self, dtype);
  if (at::GradMode::is_enabled() && self.requires_grad() && torch::autograd::isDifferentiableType(out_dtype)) {
    if (at::isComplexType(out_dtype) && !self.is_complex()) {  // the conversion's node takes the gradient's real part
      return sum_recorded(self, dim, keepdim, c10::toRealValueType(out_dtype), variant).to(out_dtype);
    }
    return sum_recorded(self, dim, keepdim, dtype, variant);
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
