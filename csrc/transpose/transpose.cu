#include <algorithm>
#include <numeric>

#include "transpose/aligned.cuh"
#include "transpose/chunk.cuh"
#include "transpose/copy.cuh"
#include "transpose/gather.cuh"
#include "transpose/general.cuh"
#include "transpose/in_place.cuh"
#include "transpose/narrow.cuh"
#include "transpose/small.cuh"
#include "transpose/swizzled.cuh"
#include "transpose/transpose.cuh"

namespace cudamem {
namespace {

// Calls f(std::integral_constant<int, element_bytes>). Only the size of an element matters: its bits are never read.
template <typename F>
auto with_element_bytes(int element_bytes, F f) {
  switch (element_bytes) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 8:
      return f(std::integral_constant<int, 8>());
    default:
      return f(std::integral_constant<int, 16>());
  }
}

bool divides(int64_t divisor, std::initializer_list<int64_t> numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n % divisor == 0; });
}

int64_t address(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)); }

// Whether every access to a whole vector of 16 bytes is aligned, in every plane.
bool batch_is_aligned(const TransposeProblem& t) {
  bool aligned = divides(16, {address(t.input), address(t.output)});
  for (int d = 0; d < t.batch.count; ++d) {
    aligned =
        aligned && divides(16, {t.batch.strides[d][0] * t.element_bytes, t.batch.strides[d][1] * t.element_bytes});
  }
  return aligned;
}

int log2_ceil(int64_t n) {
  int log2 = 0;
  while ((int64_t{1} << log2) < n) ++log2;
  return log2;
}

// How far apart the first and the last element of the input are, and 1.
int64_t input_extent(const StridedDims<2>& dims) {
  int64_t extent = 1;
  for (int d = 0; d < dims.count; ++d) extent += (dims.sizes[d] - 1) * dims.strides[d][0];
  return extent;
}

// ---------------------------------------------------------------------------------------------------------------------
// One function a kernel: fills its problem, or returns false where it is not legal.
// ---------------------------------------------------------------------------------------------------------------------

constexpr const char* kSwizzledNeeds =
    "stride 1 along the input's fastest dim, 16-byte alignment of the input, its other strides and both transposed "
    "sizes, and at most four other dims";

template <int kBytes>
bool make_swizzled(const TransposeProblem& t, SwizzledProblem& p) {
  using Policy = SwizzledPolicy<kBytes>;
  p.in_row_bytes = t.in_row_stride * kBytes;
  p.out_col_bytes = t.out_col_stride * kBytes;
  if (t.in_col_stride != 1 || !divides(Policy::V, {t.rows, t.cols}) ||
      !divides(16, {p.in_row_bytes, p.out_col_bytes}) || !batch_is_aligned(t) || !p.batch.set(t.batch, kBytes)) {
    return false;
  }
  p.input = static_cast<const char*>(t.input);
  p.output = static_cast<char*>(t.output);
  p.rows = t.rows;
  p.cols = t.cols;
  // 16 x 16 blocks of V x V: 256 bytes both ways. A shorter side lengthens the other, then takes in more planes. Few
  // tiles become smaller ones, so that every multiprocessor gets some.
  constexpr int kLog2 = 8, kSmallLog2 = 6, kFewTiles = 300;
  static_assert(Policy::kThreads == 1 << kLog2);
  const int64_t block_rows = ceil_div<int64_t>(t.rows / Policy::V, Policy::kDepth), block_cols = t.cols / Policy::V;
  for (int log2 : {kLog2, kSmallLog2}) {
    const int cols_log2 = std::min(log2_ceil(block_cols), log2 / 2);
    p.block_rows_log2 = std::min(log2_ceil(block_rows), log2 - cols_log2);
    p.block_cols_log2 = std::min(log2_ceil(block_cols), log2 - p.block_rows_log2);
    p.planes_per_block = 1 << (log2 - p.block_rows_log2 - p.block_cols_log2);
    p.threads = 1 << log2;
    if (!p.tiles.set(ceil_div<int64_t>(block_rows, 1 << p.block_rows_log2),
                     ceil_div<int64_t>(block_cols, 1 << p.block_cols_log2),
                     ceil_div<int64_t>(t.planes, p.planes_per_block))) {
      return false;
    }
    if (p.tiles.count() >= kFewTiles) break;
  }
  return true;
}

constexpr const char* kAlignedNeeds = "stride 1 along the input's fastest dim and at most four other dims";

bool make_gather(const StridedDims<2>& dims, const void* input, void* output, int64_t elems, GatherProblem& p) {
  constexpr int64_t kMost = kMaxDividend - kGatherThreads * 16;  // so that no thread's index overflows
  if (dims.count > kGatherDims || elems > kMost || input_extent(dims) > kMost) return false;
  p.input = input;
  p.output = output;
  p.elems = static_cast<uint32_t>(elems);
  p.divided = std::max(dims.count - 1, 0);
  p.outer_stride = dims.count > 0 ? static_cast<uint32_t>(dims.strides[0][0]) : 0;
  for (int d = 0; d < p.divided; ++d) {
    const int of = dims.count - 1 - d;
    p.dims[d] = {Divisor(dims.sizes[of]), static_cast<uint32_t>(dims.strides[of][0])};
  }
  return true;
}

bool make_small(const StridedDims<2>& dims, const TransposeProblem& t, SmallProblem& p) {
  if (t.batch.count > kSmallBatchDims || t.planes > kMaxGridYZ ||
      std::max(t.rows * t.cols * t.planes, input_extent(dims)) > kMaxDividend) {
    return false;
  }
  p.input = t.input;
  p.output = t.output;
  p.rows = static_cast<uint32_t>(t.rows);
  p.cols = static_cast<uint32_t>(t.cols);
  p.in_row_stride = static_cast<uint32_t>(t.in_row_stride);
  p.in_col_stride = static_cast<uint32_t>(t.in_col_stride);
  p.out_col_stride = static_cast<uint32_t>(t.out_col_stride);
  p.batch_dims = t.batch.count;
  for (int d = 0; d < t.batch.count; ++d) {
    const int of = t.batch.count - 1 - d;
    p.batch[d] = {Divisor(t.batch.sizes[of]), static_cast<uint32_t>(t.batch.strides[of][0]),
                  static_cast<uint32_t>(t.batch.strides[of][1])};
  }
  return true;
}

template <int kBytes>
bool make_aligned(const TransposeProblem& t, AlignedProblem& p) {
  using Policy = AlignedPolicy<kBytes>;
  if ((t.in_col_stride != 1 && t.cols > 1) || !divides(32, {address(t.output)}) || !p.batch.set(t.batch, kBytes)) {
    return false;
  }
  p.input = static_cast<const char*>(t.input);
  p.output = static_cast<char*>(t.output);
  p.rows = t.rows;
  p.cols = t.cols;
  p.in_row_bytes = t.in_row_stride * kBytes;
  p.out_col_bytes = t.out_col_stride * kBytes;
  p.pitch = Policy::kPitch + static_cast<int>(p.in_row_bytes & 3);
  return p.tiles.set(ceil_div<int64_t>(t.rows + Policy::kHalo, Policy::kRows), ceil_div<int64_t>(t.cols, Policy::kCols),
                     t.planes);
}

template <int kBytes>
bool make_interleave(const TransposeProblem& t, bool joins, InterleaveProblem& p) {
  const int64_t places = joins ? t.cols : t.rows, lines = joins ? t.rows : t.cols;
  const int64_t interleaved = joins ? t.out_col_stride : t.in_row_stride;
  p.line_bytes = (joins ? t.in_row_stride : t.out_col_stride) * kBytes;
  if (kBytes == 16 || t.in_col_stride != 1 || lines < 2 || lines > kMaxVectorLines || interleaved != lines ||
      !divides(16, {places * kBytes, p.line_bytes}) || places * kBytes / 16 > kMaxDividend || !batch_is_aligned(t) ||
      !p.batch.set(t.batch, kBytes)) {
    return false;
  }
  p.input = static_cast<const char*>(t.input);
  p.output = static_cast<char*>(t.output);
  p.groups = static_cast<uint32_t>(places * kBytes / 16);
  return p.tiles.set(ceil_div<int64_t>(p.groups, kNarrowThreads), 1, t.planes);
}

template <int kBytes>
bool make_chunk(const TransposeProblem& t, ChunkProblem& p) {
  const int64_t plane = t.rows * t.cols;
  bool contiguous =
      t.in_col_stride == 1 && t.in_row_stride == t.cols && t.out_col_stride == t.rows && t.batch.count <= 1;
  if (t.batch.count == 1) contiguous = contiguous && t.batch.strides[0][0] == plane && t.batch.strides[0][1] == plane;
  const int64_t plane_bytes = plane * kBytes;
  if (!contiguous || plane_bytes + kChunkEnds > kMaxChunkBytes) return false;
  p.input = static_cast<const char*>(t.input);
  p.output = static_cast<char*>(t.output);
  p.bytes = t.planes * plane_bytes;
  // Whole vectors, where that takes no more than a chunk.
  const int64_t step = plane_bytes / std::gcd<int64_t>(16, plane_bytes) * 16;
  const int64_t unit = step <= kChunkBytes ? step : plane_bytes;
  p.chunk_bytes = static_cast<int>(std::max<int64_t>(1, kChunkBytes / unit) * unit);
  p.plane = Divisor(plane);
  p.rows = Divisor(t.rows);
  p.cols = static_cast<int>(t.cols);
  return ceil_div<int64_t>(p.bytes, p.chunk_bytes) <= kMaxDividend;
}

constexpr int64_t kMaxSplitLines = 16, kMinNarrowPlaces = 256;

template <int kBytes>
bool make_narrow(const TransposeProblem& t, bool joins, NarrowProblem& p) {
  const int64_t lines = joins ? t.rows : t.cols;
  p.places = joins ? t.cols : t.rows;
  if (lines > (joins ? NarrowPolicy<kBytes>::kMaxLines : kMaxSplitLines) || p.places < kMinNarrowPlaces ||
      (joins && t.out_col_stride != lines) || !p.batch.set(t.batch, 1)) {
    return false;
  }
  p.input = t.input;
  p.output = t.output;
  p.lines = static_cast<int>(lines);
  p.in_place_stride = joins ? t.in_col_stride : t.in_row_stride;
  p.in_line_stride = joins ? t.in_row_stride : t.in_col_stride;
  p.out_place_stride = joins ? t.out_col_stride : t.out_row_stride;
  p.out_line_stride = joins ? t.out_row_stride : t.out_col_stride;
  return p.tiles.set(ceil_div<int64_t>(p.places, kNarrowThreads), 1, t.planes);
}

// Adds a dim as it is, where StridedDims::append would join it to the one before.
void add_dim(StridedDims<2>& dims, int64_t size, int64_t in_stride, int64_t out_stride) {
  dims.sizes[dims.count] = size;
  dims.strides[dims.count][0] = in_stride;
  dims.strides[dims.count][1] = out_stride;
  ++dims.count;
}

constexpr int64_t kFillingSize = 64;  // a side that is shorter takes in other dims
constexpr int kMaxFolded = 3;         // of them, beside the side's own

// Moves dims from the batch into the rows, as long as the output runs on through them, and into the columns, as long
// as the input does.
void fold(const TransposeProblem& t, StridedDims<2>& rows, StridedDims<2>& cols, StridedDims<2>& batch) {
  constexpr int kIn = 0, kOut = 1;
  batch = t.batch;
  auto take = [&](StridedDims<2>& side, int operand, int64_t size, int64_t stride) {
    StridedDims<2> taken;  // innermost first
    while (size < kFillingSize && taken.count < kMaxFolded) {
      int next = batch.count - 1;
      while (next >= 0 && (stride == 0 || batch.strides[next][operand] != stride * size)) --next;
      if (next < 0) break;
      add_dim(taken, batch.sizes[next], batch.strides[next][kIn], batch.strides[next][kOut]);
      size *= batch.sizes[next];
      batch.remove(next);
    }
    side = {};
    for (int d = taken.count - 1; d >= 0; --d) {
      add_dim(side, taken.sizes[d], taken.strides[d][kIn], taken.strides[d][kOut]);
    }
  };
  take(rows, kOut, t.rows, t.out_row_stride);
  take(cols, kIn, t.cols, t.in_col_stride);
  add_dim(rows, t.rows, t.in_row_stride, t.out_row_stride);
  add_dim(cols, t.cols, t.in_col_stride, t.out_col_stride);
}

bool make_general(const TransposeProblem& t, GeneralProblem& p) {
  StridedDims<2> rows, cols, batch;
  fold(t, rows, cols, batch);
  if (!p.rows.set(rows, 1) || !p.cols.set(cols, 1) || !p.batch.set(batch, 1)) return false;
  p.input = t.input;
  p.output = t.output;
  return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches
// ---------------------------------------------------------------------------------------------------------------------

template <int kBytes>
cudaError_t launch_swizzled(const SwizzledProblem& p, cudaStream_t stream) {
  transpose_swizzled_kernel<kBytes><<<p.tiles.grid, p.threads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <int kBytes>
cudaError_t launch_aligned(const AlignedProblem& p, cudaStream_t stream) {
  transpose_aligned_kernel<kBytes><<<p.tiles.grid, AlignedPolicy<kBytes>::kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

// Few elements are gathered one by one, more in words of 4 elements or 16 bytes.
constexpr int64_t kFewElems = 1 << 16;
template <int kBytes>
constexpr int kGatherElems = std::min(4, 16 / kBytes);

bool launch_gather(const StridedDims<2>& dims, const void* input, void* output, int element_bytes, int64_t elems,
                   cudaStream_t stream, cudaError_t& error) {
  GatherProblem p;
  if (!divides(16, {address(output)}) || !make_gather(dims, input, output, elems, p)) return false;
  with_element_bytes(element_bytes, [&](auto bytes) {
    const bool few = elems <= kFewElems;
    const auto kernel = few ? transpose_gather_kernel<bytes, 1> : transpose_gather_kernel<bytes, kGatherElems<bytes>>;
    const auto words = ceil_div<uint32_t>(p.elems, few ? 1 : kGatherElems<bytes>);
    kernel<<<ceil_div<uint32_t>(words, kGatherThreads), kGatherThreads, 0, stream>>>(p);
    error = cudaGetLastError();
  });
  return true;
}

template <int kBytes, int kRows, int kCols>
bool launch_small(const StridedDims<2>& dims, const TransposeProblem& t, cudaStream_t stream, cudaError_t& error) {
  SmallProblem p;
  const int64_t col_tiles = ceil_div<int64_t>(t.cols, kCols);
  if (col_tiles > kMaxGridYZ || !make_small(dims, t, p)) return false;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(t.rows, kRows)), static_cast<unsigned>(col_tiles),
                  static_cast<unsigned>(t.planes));
  transpose_small_kernel<kBytes, kRows, kCols><<<grid, kSmallThreads, 0, stream>>>(p);
  error = cudaGetLastError();
  return true;
}

template <int kBytes>
bool launch_small(const StridedDims<2>& dims, const TransposeProblem& t, cudaStream_t stream, cudaError_t& error) {
  if constexpr (kBytes <= 2) {
    constexpr int64_t kManyElems = 1 << 20;
    if (t.rows * t.cols * t.planes > kManyElems) return launch_small<kBytes, 64, 32>(dims, t, stream, error);
  }
  return launch_small<kBytes, 32, 32>(dims, t, stream, error);
}

using InterleaveKernel = void (*)(InterleaveProblem);

template <int kBytes, bool kJoins>
InterleaveKernel interleave_kernel(int64_t lines) {
  if constexpr (kBytes == 16) {
    return nullptr;
  } else {
    if (lines == 2) return transpose_interleave_kernel<kBytes, 2, kJoins>;
    return lines == 3 ? transpose_interleave_kernel<kBytes, 3, kJoins> : transpose_interleave_kernel<kBytes, 4, kJoins>;
  }
}

template <int kBytes>
InterleaveKernel interleave_kernel(int64_t lines, bool joins) {
  return joins ? interleave_kernel<kBytes, true>(lines) : interleave_kernel<kBytes, false>(lines);
}

using GeneralKernel = void (*)(GeneralProblem);

template <int kBytes, TileShape kShape>
bool place_general(GeneralProblem& p, GeneralKernel& kernel) {
  using Policy = GeneralPolicy<kBytes, kShape>;
  if (p.rows.size > kMaxDividend - Policy::kRows - Policy::kHalo || p.cols.size > kMaxDividend - Policy::kCols) {
    return false;  // the kernel counts both in 32 bits
  }
  kernel = transpose_general_kernel<kBytes, kShape>;
  return p.tiles.set(ceil_div<int64_t>(int64_t{p.rows.size} + Policy::kHalo, Policy::kRows),
                     ceil_div<int64_t>(p.cols.size, Policy::kCols), p.batch.size);
}

template <int kBytes>
bool place_general(GeneralProblem& p, GeneralKernel& kernel) {
  constexpr uint32_t kNarrow = 16;
  if (p.cols.size <= kNarrow) return place_general<kBytes, TileShape::kTall>(p, kernel);
  if (p.rows.size <= kNarrow) return place_general<kBytes, TileShape::kWide>(p, kernel);
  return place_general<kBytes, TileShape::kSquare>(p, kernel);
}

// The textbook kernels, by variant.
using TextbookKernel = void (*)(TransposeProblem);

template <int kBytes>
TextbookKernel textbook_kernel(TransposeVariant variant) {
  using element_t = BitsOf<kBytes>;
  if (variant == TransposeVariant::kNaive) return transpose_naive_kernel<element_t>;
  return variant == TransposeVariant::kShared ? transpose_tiled_kernel<element_t, 0>
                                              : transpose_tiled_kernel<element_t, 1>;
}

}  // namespace

const char* transpose_needs(TransposeVariant variant, const TransposeProblem& t) {
  return with_element_bytes(t.element_bytes, [&](auto bytes) -> const char* {
    SwizzledProblem swizzled;
    AlignedProblem aligned;
    if (variant == TransposeVariant::kSwizzled && !make_swizzled<bytes>(t, swizzled)) return kSwizzledNeeds;
    if (variant == TransposeVariant::kAligned && !make_aligned<bytes>(t, aligned)) return kAlignedNeeds;
    return nullptr;
  });
}

cudaError_t launch_transpose(TransposeVariant variant, const TransposeProblem& t, cudaStream_t stream) {
  return with_element_bytes(t.element_bytes, [&](auto bytes) {
    if (variant == TransposeVariant::kSwizzled) {
      SwizzledProblem p;
      return make_swizzled<bytes>(t, p) ? launch_swizzled<bytes>(p, stream) : cudaErrorInvalidValue;
    }
    if (variant == TransposeVariant::kAligned) {
      AlignedProblem p;
      return make_aligned<bytes>(t, p) ? launch_aligned<bytes>(p, stream) : cudaErrorInvalidValue;
    }
    const int64_t tiles = ceil_div<int64_t>(t.rows, kTransposeTile) * ceil_div<int64_t>(t.cols, kTransposeTile);
    textbook_kernel<bytes>(
        variant)<<<grid_of(t.planes * tiles), dim3(kTransposeTile, kTransposeBlockRows), 0, stream>>>(t);
    return cudaGetLastError();
  });
}

bool launch_best_transpose(const StridedDims<2>& dims, const TransposeProblem& t, cudaStream_t stream,
                           cudaError_t& error) {
  return with_element_bytes(t.element_bytes, [&](auto bytes) {
    constexpr int kSectorBytes = 32;
    // Up to so many bytes in all, small tiles beat the others; the swizzled ones, where they are legal, up to fewer.
    constexpr int64_t kSmallBytes = 1 << 24;
    constexpr int64_t kSmallAlignedBytes = bytes <= 2 ? 1 << 19 : bytes == 4 ? 1 << 22 : bytes == 8 ? kSmallBytes : 0;
    constexpr int64_t kFewLinesJoined = 8, kFewLinesSplit = 15;  // and so do single elements where lines are few
    constexpr int64_t kJoinedBytes = 1 << 23, kSplitBytes = 1 << 19;
    const int64_t elems = t.rows * t.cols * t.planes, all_bytes = elems * bytes, narrow = std::min(t.rows, t.cols);
    const auto gather = [&] { return launch_gather(dims, t.input, t.output, bytes, elems, stream, error); };
    if (elems <= kFewElems && gather()) return true;
    for (bool joins : {false, true}) {
      InterleaveProblem p;
      if (make_interleave<bytes>(t, joins, p)) {
        interleave_kernel<bytes>(joins ? t.rows : t.cols, joins)<<<p.tiles.grid, kNarrowThreads, 0, stream>>>(p);
        error = cudaGetLastError();
        return true;
      }
    }
    SwizzledProblem swizzled;
    if (!(narrow >= 32 && all_bytes <= kSmallAlignedBytes) && t.rows * bytes >= kSectorBytes &&
        make_swizzled<bytes>(t, swizzled)) {
      error = launch_swizzled<bytes>(swizzled, stream);
      return true;
    }
    if (narrow >= 16 && all_bytes <= kSmallBytes && launch_small<bytes>(dims, t, stream, error)) return true;
    if (((t.rows <= kFewLinesJoined && all_bytes <= kJoinedBytes) ||
         (t.cols <= kFewLinesSplit && all_bytes <= kSplitBytes)) &&
        gather()) {
      return true;
    }
    ChunkProblem chunk;
    if (make_chunk<bytes>(t, chunk)) {
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(chunk.bytes, chunk.chunk_bytes));
      transpose_chunk_kernel<bytes><<<blocks, kChunkThreads, chunk.chunk_bytes + kChunkEnds, stream>>>(chunk);
      error = cudaGetLastError();
      return true;
    }
    for (bool joins : {false, true}) {
      NarrowProblem p;
      if (make_narrow<bytes>(t, joins, p)) {
        const auto kernel = joins ? transpose_narrow_kernel<bytes, true> : transpose_narrow_kernel<bytes, false>;
        kernel<<<p.tiles.grid, kNarrowThreads, 0, stream>>>(p);
        error = cudaGetLastError();
        return true;
      }
    }
    GeneralProblem general;
    const bool foldable = make_general(t, general);
    const bool folded = foldable && (general.rows.count > 1 || general.cols.count > 1);
    AlignedProblem aligned;
    if (!folded && narrow >= 32 && make_aligned<bytes>(t, aligned)) {
      // A plane that would fill less than half of a tile.
      using Policy = AlignedPolicy<bytes>;
      if ((2 * t.rows < Policy::kRows || 2 * t.cols < Policy::kCols) && launch_small<bytes>(dims, t, stream, error)) {
        return true;
      }
      error = launch_aligned<bytes>(aligned, stream);
      return true;
    }
    GeneralKernel kernel = nullptr;
    constexpr int64_t kMinTileElems = 512;  // below this its tables cost more than they save
    if (foldable && int64_t{general.rows.size} * general.cols.size >= kMinTileElems &&
        place_general<bytes>(general, kernel)) {
      kernel<<<general.tiles.grid, kGeneralThreads, 0, stream>>>(general);
      error = cudaGetLastError();
      return true;
    }
    return gather();
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Copies
// ---------------------------------------------------------------------------------------------------------------------

namespace {

// One vector a thread: 8192 x 8192 float64, 251 us, with two of them 258. Four where rows are short: 6.2 us against 6.5
// for 8 x 512 x 64 x 8 float32, dims 1 and 2.
constexpr int kShortRowVectors = 4;

template <int kVectorBytes>
cudaError_t launch_vector_copy(const CopyProblem& p, bool short_rows, cudaStream_t stream) {
  const unsigned per_block = kCopyThreads * (short_rows ? kShortRowVectors : 1);
  const auto kernel =
      short_rows ? transpose_copy_kernel<kVectorBytes, kShortRowVectors> : transpose_copy_kernel<kVectorBytes, 1>;
  kernel<<<std::max(1u, (p.dims.size + per_block - 1) / per_block), kCopyThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

// Rows that are shorter than this are walked together with their neighbours in the input.
constexpr int64_t kWalkBytes = 256;

bool make_copy(const StridedDims<2>& dims, int element_bytes, int vector_bytes, CopyProblem& p) {
  const int last = dims.count - 1;
  const int64_t row_bytes = dims.sizes[last] * element_bytes;
  p.tail_bytes = dims.count == 1 ? static_cast<int>(row_bytes % vector_bytes) : 0;
  StridedDims<2> walk;
  auto add = [&](int64_t size, int64_t in_bytes, int64_t out_bytes) {
    add_dim(walk, size, in_bytes / vector_bytes, out_bytes / vector_bytes);
  };
  // The dim of the input's neighbouring rows is split (one at most): as many of them as fill kWalkBytes are walked
  // right outside of the row.
  int64_t group = 1, group_in = 0, group_out = 0;
  for (int d = 0; d < last; ++d) {
    int64_t size = dims.sizes[d];
    const int64_t in_bytes = dims.strides[d][0] * element_bytes, out_bytes = dims.strides[d][1] * element_bytes;
    int64_t part = 1;
    if (group == 1 && d < last - 1 && in_bytes == row_bytes) {
      while (2 * part * row_bytes <= kWalkBytes && size % (2 * part) == 0) part *= 2;
    }
    if (part > 1) {
      group = part;
      group_in = in_bytes;
      group_out = out_bytes;
    }
    add(size / part, in_bytes * part, out_bytes * part);
  }
  if (group > 1) add(group, group_in, group_out);
  add(row_bytes / vector_bytes, vector_bytes, vector_bytes);
  return p.dims.set(walk, 1);
}

template <int kBytes>
bool launch_shifted_copy(const StridedDims<2>& dims, const void* input, void* output, cudaStream_t stream,
                         cudaError_t& error) {
  ShiftedCopyProblem p;
  StridedDims<2> rows = dims;
  const int last = dims.count - 1;
  rows.remove(last);
  if (!p.rows.set(rows, kBytes) || dims.sizes[last] > kMaxDividend / p.rows.size) return false;
  p.input = static_cast<const char*>(input);
  p.output = static_cast<char*>(output);
  p.row_elems = Divisor(dims.sizes[last]);
  p.elems = static_cast<uint32_t>(dims.sizes[last] * p.rows.size);
  const uint32_t vectors = ceil_div<uint32_t>(p.elems, 16 / kBytes);
  transpose_shifted_copy_kernel<kBytes><<<ceil_div<uint32_t>(vectors, kCopyThreads), kCopyThreads, 0, stream>>>(p);
  error = cudaGetLastError();
  return true;
}

bool launch_row_copy(const StridedDims<2>& dims, const void* input, void* output, int element_bytes,
                     cudaStream_t stream, cudaError_t& error) {
  const int last = dims.count - 1;
  if (last < 0 || dims.strides[last][0] != 1 || !divides(16, {address(output)})) return false;
  const int64_t row_bytes = dims.sizes[last] * element_bytes;
  int vector_bytes = 16;
  auto fits = [&] {
    bool all = address(input) % vector_bytes == 0 && (dims.count == 1 || row_bytes % vector_bytes == 0);
    for (int d = 0; d < last; ++d) all = all && dims.strides[d][0] * element_bytes % vector_bytes == 0;
    return all;
  };
  while (!fits()) vector_bytes /= 2;
  if (row_bytes < vector_bytes || vector_bytes < std::min(element_bytes, 8)) return false;
  if (vector_bytes <= 4) {
    constexpr int64_t kMinShiftedBytes = 256;  // of a row: most threads should stay inside of one
    if (row_bytes < kMinShiftedBytes) return false;
    if (element_bytes == 1) return launch_shifted_copy<1>(dims, input, output, stream, error);
    if (element_bytes == 2) return launch_shifted_copy<2>(dims, input, output, stream, error);
    return launch_shifted_copy<4>(dims, input, output, stream, error);
  }
  CopyProblem p;
  if (!make_copy(dims, element_bytes, vector_bytes, p)) return false;
  p.input = input;
  p.output = output;
  const bool short_rows = dims.count > 1 && row_bytes < kWalkBytes;
  error =
      vector_bytes == 16 ? launch_vector_copy<16>(p, short_rows, stream) : launch_vector_copy<8>(p, short_rows, stream);
  return true;
}

}  // namespace

bool launch_copy(const StridedDims<2>& dims, const void* input, void* output, int element_bytes, cudaStream_t stream,
                 cudaError_t& error) {
  constexpr int64_t kFewBytes = 3 << 20;
  int64_t elems = 1;
  for (int d = 0; d < dims.count; ++d) elems *= dims.sizes[d];
  const auto gather = [&] { return launch_gather(dims, input, output, element_bytes, elems, stream, error); };
  return (elems * element_bytes <= kFewBytes && gather()) ||
         launch_row_copy(dims, input, output, element_bytes, stream, error) || gather();
}

cudaError_t launch_transpose_in_place(const TransposeInPlaceProblem& p, cudaStream_t stream) {
  const int64_t tiles = ceil_div<int64_t>(p.size, kInPlaceTile);
  return with_element_bytes(p.element_bytes, [&](auto bytes) {
    transpose_in_place_kernel<bytes>
        <<<grid_of(p.planes * tiles * tiles), dim3(kInPlaceTile, kInPlaceBlockRows), 0, stream>>>(p);
    return cudaGetLastError();
  });
}

std::vector<KernelEntry> transpose_kernels() {
  std::vector<KernelEntry> entries;
  for (int element_bytes : {1, 2, 4, 8, 16}) {
    const std::string size = std::to_string(element_bytes) + " bytes";
    auto add = [&](const std::string& name, auto kernel, int threads, size_t dynamic_shared_bytes = 0) {
      const auto* function = reinterpret_cast<const void*>(kernel);
      entries.push_back({"transpose_" + name + ">", function, threads, dynamic_shared_bytes});
    };
    with_element_bytes(element_bytes, [&](auto bytes) {
      for (auto variant : {TransposeVariant::kNaive, TransposeVariant::kShared, TransposeVariant::kPadded}) {
        add(kTransposeVariants[static_cast<int>(variant)] + ("<" + size), textbook_kernel<bytes>(variant),
            kTransposeBlockThreads);
      }
      add("swizzled<" + size, transpose_swizzled_kernel<bytes>, SwizzledPolicy<bytes>::kThreads);
      add("aligned<" + size, transpose_aligned_kernel<bytes>, AlignedPolicy<bytes>::kThreads);
      add("general<" + size + ", square", transpose_general_kernel<bytes, TileShape::kSquare>, kGeneralThreads);
      add("general<" + size + ", tall", transpose_general_kernel<bytes, TileShape::kTall>, kGeneralThreads);
      add("general<" + size + ", wide", transpose_general_kernel<bytes, TileShape::kWide>, kGeneralThreads);
      add("gather<" + size, transpose_gather_kernel<bytes, 1>, kGatherThreads);
      if constexpr (bytes < 16) {
        add("gather<" + size + ", words", transpose_gather_kernel<bytes, kGatherElems<bytes>>, kGatherThreads);
      }
      add("small<" + size, transpose_small_kernel<bytes, 32, 32>, kSmallThreads);
      if constexpr (bytes <= 2) add("small<" + size + ", long", transpose_small_kernel<bytes, 64, 32>, kSmallThreads);
      add("chunk<" + size, transpose_chunk_kernel<bytes>, kChunkThreads, kChunkBytes + kChunkEnds);
      add("narrow_split<" + size, transpose_narrow_kernel<bytes, false>, kNarrowThreads);
      add("narrow_join<" + size, transpose_narrow_kernel<bytes, true>, kNarrowThreads);
      for (int lines : {2, 3, 4}) {
        for (bool joins : {false, true}) {
          const auto kernel = interleave_kernel<bytes>(lines, joins);
          const std::string name = (joins ? "join<" : "split<") + size + ", " + std::to_string(lines) + " lines";
          if (kernel) add(name, kernel, kNarrowThreads);
        }
      }
      if constexpr (bytes >= 8) {
        add("copy<" + size, transpose_copy_kernel<bytes, 1>, kCopyThreads);
        add("copy<" + size + ", short rows", transpose_copy_kernel<bytes, kShortRowVectors>, kCopyThreads);
      }
      if constexpr (bytes <= 4) add("shifted_copy<" + size, transpose_shifted_copy_kernel<bytes>, kCopyThreads);
      add("in_place<" + size, transpose_in_place_kernel<bytes>, kInPlaceTile * kInPlaceBlockRows);
    });
  }
  return entries;
}

}  // namespace cudamem
