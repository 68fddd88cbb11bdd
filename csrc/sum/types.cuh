// Which input types are added in which accumulators, and what the kernels are called by.
#pragma once

#include "sum/accumulate.cuh"

namespace cudamem {

template <typename in_type, typename acc_type>
struct Types {
  using in_t = in_type;
  using acc_t = acc_type;
};

// Each type in its own accumulator, but for float32, whose sums are always more exact than float32.
template <typename F>
bool for_each_plain(F&& visit) {
  return visit(Types<Bool, int64_t>{}) || visit(Types<uint8_t, int64_t>{}) || visit(Types<int8_t, int64_t>{}) ||
         visit(Types<int16_t, int64_t>{}) || visit(Types<int32_t, int64_t>{}) || visit(Types<int64_t, int64_t>{}) ||
         visit(Types<__half, float>{}) || visit(Types<__nv_bfloat16, float>{}) || visit(Types<double, double>{});
}

inline std::string kernel_name(const char* kernel, const std::string& types) {
  return std::string("sum_") + kernel + "<" + types + ">";
}

template <typename acc_t>
std::string accumulator_name() {
  if constexpr (kIsCompensated<acc_t>) {
    return "compensated " + accumulator_name<typename acc_t::value_t>();
  } else {
    return kDTypeNames[static_cast<int>(kDType<acc_t>)];
  }
}

template <typename T>
std::string type_names(T) {
  return kDTypeNames[static_cast<int>(kDType<typename T::in_t>)] + (", " + accumulator_name<typename T::acc_t>());
}

}  // namespace cudamem
