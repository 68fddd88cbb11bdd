// torch.ops.cudamem.transpose: x.transpose(dim0, dim1).contiguous(), in fresh memory; and transpose_, in place.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/custom_function.h>

#include "common/dispatch.h"
#include "transpose/transpose.h"

namespace cudamem {
namespace {

using at::Tensor;
using Variant = std::optional<std::string_view>;

void check_variant(Variant variant) {
  if (variant) variant_index("transpose", kTransposeVariants, *variant);
}

// ATen's own operators: the CPU kernel, and the formula for transforms that differentiate through it.
Tensor transpose_aten(const Tensor& self, int64_t dim0, int64_t dim1) {
  return self.transpose(dim0, dim1).clone(at::MemoryFormat::Contiguous);
}

Tensor transpose_cpu(const Tensor& self, int64_t dim0, int64_t dim1, Variant variant) {
  check_variant(variant);
  return transpose_aten(self, dim0, dim1);
}

Tensor transpose_meta(const Tensor& self, int64_t dim0, int64_t dim1, Variant variant) {
  check_variant(variant);
  return at::empty_symint(self.transpose(dim0, dim1).sym_sizes(), self.options());
}

#ifndef CUDAMEM_CPU_ONLY
Tensor transpose_cuda(const Tensor& self, int64_t dim0, int64_t dim1, Variant variant) {
  check_variant(variant);
  const Tensor view = self.transpose(dim0, dim1);
  const c10::DeviceGuard guard(self.device());
  Tensor out = at::empty(view.sizes(), self.options());
  if (out.numel() == 0) return out;

  StridedDims<2> dims;
  int64_t out_stride = view.numel();
  for (int64_t d = 0; d < view.dim(); ++d) {
    out_stride /= view.size(d);
    dims.append(view.size(d), {view.stride(d), out_stride});
  }
  TransposeProblem problem;
  const bool transposes = choose_transpose_plane(dims, problem);
  problem.input = view.const_data_ptr();
  problem.output = out.mutable_data_ptr();
  problem.element_bytes = static_cast<int>(self.element_size());
  const cudaStream_t stream = current_stream(self.device());
  cudaError_t error = cudaSuccess;
  if (variant) {
    const auto chosen = static_cast<TransposeVariant>(variant_index("transpose", kTransposeVariants, *variant));
    const char* needs = transpose_needs(chosen, problem);
    TORCH_CHECK(needs == nullptr, "cudamem::transpose: variant '", *variant, "' needs ", needs, "; got sizes ",
                self.sizes(), ", strides ", self.strides(), ", dims ", dim0, " and ", dim1);
    error = launch_transpose(chosen, problem, stream);
  } else if (!(transposes ? launch_best_transpose(dims, problem, stream, error)
                          : launch_copy(dims, problem.input, problem.output, problem.element_bytes, stream, error))) {
    return out.copy_(view);
  }
  check_launch("transpose", error);
  return out;
}
#endif

// Calls the operator from below the Autograd key.
Tensor transpose_dispatch(const Tensor& self, int64_t dim0, int64_t dim1, Variant variant) {
  static const auto plain = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("cudamem::transpose", "")
                                .typed<Tensor(const Tensor&, int64_t, int64_t)>();
  static const auto named = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("cudamem::transpose", "variant")
                                .typed<Tensor(const Tensor&, int64_t, int64_t, std::string_view)>();
  return variant ? named.call(self, dim0, dim1, *variant) : plain.call(self, dim0, dim1);
}

// d/dx of a transposition is the same transposition.
struct TransposeFunction : torch::autograd::Function<TransposeFunction> {
  static constexpr bool is_traceable = true;

  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& self, int64_t dim0, int64_t dim1,
                        Variant variant) {
    ctx->saved_data["dim0"] = dim0;
    ctx->saved_data["dim1"] = dim1;
    const at::AutoDispatchBelowADInplaceOrView guard;
    return transpose_dispatch(self, dim0, dim1, variant);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {transpose_dispatch(grads[0], ctx->saved_data["dim0"].toInt(), ctx->saved_data["dim1"].toInt(), {}),
            Tensor(), Tensor(), Tensor()};
  }
};

Tensor transpose_autograd(const Tensor& self, int64_t dim0, int64_t dim1, Variant variant) {
  if (needs_composite({&self})) {
    check_variant(variant);
    return transpose_aten(self, dim0, dim1);
  }
  if (at::GradMode::is_enabled() && self.requires_grad()) {
    return TransposeFunction::apply(self, dim0, dim1, variant);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return transpose_dispatch(self, dim0, dim1, variant);
}

// ---------------------------------------------------------------------------------------------------------------------
// transpose_: the data change places, sizes and strides stay
// ---------------------------------------------------------------------------------------------------------------------

// The wrapped dims, which must be of one size. Returns false where nothing moves.
bool check_in_place(const Tensor& self, int64_t& dim0, int64_t& dim1) {
  dim0 = c10::maybe_wrap_dim(dim0, self.dim());
  dim1 = c10::maybe_wrap_dim(dim1, self.dim());
  if (self.dim() == 0 || dim0 == dim1) return false;
  TORCH_SYM_CHECK(self.sym_size(dim0).sym_eq(self.sym_size(dim1)),
                  "cudamem::transpose_: the dims must be of one size to change places in memory; dim ", dim0, " has ",
                  self.sym_size(dim0), ", dim ", dim1, " has ", self.sym_size(dim1));
  return true;
}

void transpose_in_place_aten(Tensor& self, int64_t dim0, int64_t dim1) {
  if (check_in_place(self, dim0, dim1)) self.copy_(self.transpose(dim0, dim1).clone());
}

void transpose_in_place_meta(Tensor& self, int64_t dim0, int64_t dim1) { check_in_place(self, dim0, dim1); }

#ifndef CUDAMEM_CPU_ONLY
void transpose_in_place_cuda(Tensor& self, int64_t dim0, int64_t dim1) {
  if (!check_in_place(self, dim0, dim1)) return;
  at::assert_no_internal_overlap(self);
  if (self.numel() == 0) return;
  const c10::DeviceGuard guard(self.device());
  TransposeInPlaceProblem problem;
  problem.planes = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d == dim0 || d == dim1) continue;
    problem.batch.append(self.size(d), {self.stride(d)});
    problem.planes *= self.size(d);
  }
  problem.data = self.mutable_data_ptr();
  problem.element_bytes = static_cast<int>(self.element_size());
  problem.size = self.size(dim0);
  // The kernel's threads run along the columns.
  problem.row_stride = std::max(self.stride(dim0), self.stride(dim1));
  problem.col_stride = std::min(self.stride(dim0), self.stride(dim1));
  check_launch("transpose_", launch_transpose_in_place(problem, current_stream(self.device())));
}
#endif

void transpose_in_place_dispatch(Tensor& self, int64_t dim0, int64_t dim1) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("cudamem::transpose_", "")
                             .typed<void(Tensor&, int64_t, int64_t)>();
  op.call(self, dim0, dim1);
}

struct TransposeInPlaceFunction : torch::autograd::Function<TransposeInPlaceFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, Tensor self, int64_t dim0, int64_t dim1) {
    ctx->saved_data["dim0"] = dim0;
    ctx->saved_data["dim1"] = dim1;
    ctx->mark_dirty({self});
    const at::AutoDispatchBelowADInplaceOrView guard;
    transpose_in_place_dispatch(self, dim0, dim1);
    return self;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {transpose_dispatch(grads[0], ctx->saved_data["dim0"].toInt(), ctx->saved_data["dim1"].toInt(), {}),
            Tensor(), Tensor()};
  }
};

void transpose_in_place_autograd(Tensor& self, int64_t dim0, int64_t dim1) {
  if (needs_composite({&self})) return transpose_in_place_aten(self, dim0, dim1);
  if (at::GradMode::is_enabled() && self.requires_grad()) {
    TransposeInPlaceFunction::apply(self, dim0, dim1);
    return;
  }
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    transpose_in_place_dispatch(self, dim0, dim1);
  }
  if (!self.is_inference()) self.unsafeGetTensorImpl()->bump_version();
}

// Each function above as the two overloads.
template <Tensor (*function)(const Tensor&, int64_t, int64_t, Variant)>
Tensor plain(const Tensor& self, int64_t dim0, int64_t dim1) {
  return function(self, dim0, dim1, {});
}
template <Tensor (*function)(const Tensor&, int64_t, int64_t, Variant)>
Tensor named(const Tensor& self, int64_t dim0, int64_t dim1, std::string_view variant) {
  return function(self, dim0, dim1, variant);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cudamem, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("transpose(Tensor self, int dim0=-2, int dim1=-1) -> Tensor", tags);
  m.def("transpose.variant(Tensor self, int dim0=-2, int dim1=-1, *, str variant) -> Tensor", tags);
  m.def("transpose_(Tensor(a!) self, int dim0=-2, int dim1=-1) -> ()", tags);
}
TORCH_LIBRARY_IMPL(cudamem, CPU, m) {
  m.impl("transpose", TORCH_FN(plain<transpose_cpu>));
  m.impl("transpose.variant", TORCH_FN(named<transpose_cpu>));
  m.impl("transpose_", TORCH_FN(transpose_in_place_aten));
}
TORCH_LIBRARY_IMPL(cudamem, CUDA, m) {
  m.impl("transpose", CUDAMEM_CUDA_FN(plain<transpose_cuda>));
  m.impl("transpose.variant", CUDAMEM_CUDA_FN(named<transpose_cuda>));
  m.impl("transpose_", CUDAMEM_CUDA_FN(transpose_in_place_cuda));
}
TORCH_LIBRARY_IMPL(cudamem, Meta, m) {
  m.impl("transpose", TORCH_FN(plain<transpose_meta>));
  m.impl("transpose.variant", TORCH_FN(named<transpose_meta>));
  m.impl("transpose_", TORCH_FN(transpose_in_place_meta));
}
TORCH_LIBRARY_IMPL(cudamem, Autograd, m) {
  m.impl("transpose", TORCH_FN(plain<transpose_autograd>));
  m.impl("transpose.variant", TORCH_FN(named<transpose_autograd>));
  m.impl("transpose_", TORCH_FN(transpose_in_place_autograd));
}
TORCH_LIBRARY_IMPL(cudamem, FuncTorchBatched, m) {
  m.impl("transpose", TORCH_FN(transpose_aten));
  m.impl("transpose_", TORCH_FN(transpose_in_place_aten));
}

}  // namespace cudamem
