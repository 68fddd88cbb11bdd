// Element types as the kernels know them, without torch.
#pragma once

#include <cstdint>

namespace cudamem {

enum class DType : int8_t { kBool, kUInt8, kInt8, kInt16, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64 };
constexpr const char* kDTypeNames[] = {"bool",  "uint8",   "int8",     "int16",   "int32",
                                       "int64", "float16", "bfloat16", "float32", "float64"};

}  // namespace cudamem
