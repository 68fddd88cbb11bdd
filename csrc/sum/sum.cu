// Which kernel takes which sum, with which blocks; and who owns the letters.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "common/device.cuh"
#include "sum/kernels.h"

namespace cudamem {
namespace {

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

int log2_ceil(int64_t n) {
  int bits = 0;
  while ((int64_t{1} << bits) < n) ++bits;
  return bits;
}
int64_t pow2_ceil(int64_t n) { return int64_t{1} << log2_ceil(n); }
int64_t pow2_floor(int64_t n) { return int64_t{1} << (log2_ceil(n + 1) - 1); }

constexpr int kMaxDevices = 64;  // whose size is remembered
constexpr int kDTypeBytes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8};

// As many blocks of 512 threads as run at once: two on each multiprocessor.
int64_t resident_blocks() {
  static std::atomic<int> known[kMaxDevices];
  int device = 0, count = 0;
  cudaGetDevice(&device);
  if (device < kMaxDevices) count = known[device].load(std::memory_order_relaxed);
  if (count == 0) {
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (device < kMaxDevices) known[device].store(count, std::memory_order_relaxed);
  }
  return 2 * std::max(count, 1);
}

// How many blocks share `length` units of work, of which each should have `least`, where there are `blocks` already.
int64_t pieces_of(int64_t length, int64_t least, int64_t blocks, int64_t wanted_blocks) {
  return std::clamp<int64_t>(
      std::min(wanted_blocks / std::max<int64_t>(blocks, 1), length / std::max<int64_t>(least, 1)), 1, kMaxPieces);
}

// The outermost dim of `dims` is not among those that are divided by.
void set_small_dims(const StridedDims<2>& dims, int8_t& divided, SmallSumParams::Dim* inner, uint32_t (&outermost)[2]) {
  divided = static_cast<int8_t>(std::max(dims.count - 1, 0));
  for (int d = 0; d < divided; ++d) {
    const auto& strides = dims.strides[dims.count - 1 - d];
    inner[d] = {Divisor(dims.sizes[dims.count - 1 - d]), static_cast<uint32_t>(strides[0]),
                static_cast<uint32_t>(strides[1])};
  }
  for (int operand = 0; operand < 2; ++operand) {
    outermost[operand] = dims.count > 0 ? static_cast<uint32_t>(dims.strides[0][operand]) : 0;
  }
}

struct Planner {
  const SumProblem& problem;
  const SumPolicy policy;
  const bool compensated, may_be_small;
  const int elem_bytes, vector_elems;
  const PartialKernels finish;
  SumPlan plan;
  SumParams& p = plan.params;

  Planner(const SumProblem& problem, SumVariant variant, bool may_be_small)
      : problem(problem),
        compensated(variant == SumVariant::kCompensated),
        may_be_small(may_be_small),
        elem_bytes(kDTypeBytes[static_cast<int>(problem.in_type)]),
        vector_elems(16 / elem_bytes),
        // float32 sums always keep what additions round away: at the speed of memory it costs nothing.
        finish(partial_kernels(problem.cast_type, compensated || (problem.in_type == DType::kFloat32 &&
                                                                  problem.cast_type == DType::kFloat32))) {
    p.input = problem.input;
    p.output = problem.output;
    p.in_type = problem.in_type;
    p.cast_type = problem.cast_type;
    p.out_type = problem.out_type;
  }

  // Sets the params' dims but for those left out; false where they are too many or too large.
  bool set_dims(bool without_inner_kept, bool without_inner_reduced) {
    auto kept = problem.kept, reduced = problem.reduced;
    if (without_inner_kept) --kept.count;
    if (without_inner_reduced) --reduced.count;
    return p.kept.set(kept, 1) && p.reduced.set(reduced, 1);
  }

  void set_lanes(int64_t lanes) {
    p.lanes_log2 = log2_ceil(lanes);
    p.lanes = 1 << p.lanes_log2;
  }

  void launch(SumKernel kernel, int64_t blocks, int64_t pieces, dim3 block, SumKernel finish_kernel = nullptr,
              int64_t finish_blocks = 0, int64_t partial_bytes = 0) {
    plan.kernel = reinterpret_cast<const void*>(kernel);
    plan.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(pieces));
    plan.letters = blocks * (pieces - 1);
    plan.block = block;
    p.split.pieces = static_cast<unsigned>(pieces);
    if (pieces > 1) {
      plan.finish_kernel = reinterpret_cast<const void*>(finish_kernel);
      plan.finish_grid = dim3(static_cast<unsigned>(finish_blocks));
      plan.scratch_bytes = pieces * partial_bytes;
    }
  }

  // One element a load. For each output a thread or up to 32; or a block; or, where outputs lie side by side, a thread
  // of each of a block's warps.
  bool plan_small(bool reduced_is_inner) {
    const int64_t outputs = problem.num_outputs, length = problem.num_reduced;
    SmallSumParams& s = plan.small;
    if (!may_be_small || !s.set(problem)) return false;
    int64_t lanes = pow2_ceil(ceil_of(length, policy.small_lane_elems)), blocks = outputs, threads = kSmallThreads;
    Sharing sharing = Sharing::kBlock;
    const int64_t most = pow2_floor(std::max<int64_t>(policy.small_threads / outputs, 1));  // threads of an output
    if (!reduced_is_inner && outputs >= policy.small_side_by_side && std::min(lanes, most) > 1) {
      sharing = Sharing::kWarps;
      threads = std::min<int64_t>(std::min(lanes, most) * kWarp, kSmallBlockThreads);
      blocks = ceil_of(outputs, kWarp);
    } else if (length > kWarp * policy.small_lane_elems) {
      threads = std::clamp<int64_t>(lanes, 2 * kWarp, kSmallBlockThreads);
    } else {
      sharing = Sharing::kLanes;
      lanes = std::min(lanes, std::max<int64_t>(most, reduced_is_inner ? 8 : 1));
      blocks = ceil_of(outputs * lanes, kSmallThreads);
    }
    s.lanes_log2 = static_cast<int8_t>(log2_ceil(lanes));
    plan.kernel = reinterpret_cast<const void*>(
        small_kernels(problem.in_type).of[static_cast<int>(sharing)][problem.reduced.count <= 1]);
    plan.grid = dim3(static_cast<unsigned>(blocks));
    plan.block = dim3(static_cast<unsigned>(threads));
    plan.is_small = true;
    return true;
  }

  bool plan_rows() {
    const int inner = problem.reduced.count - 1;
    const int64_t run = problem.reduced.sizes[inner], bytes = run * elem_bytes;
    const bool one_run = problem.reduced.count == 1;
    const auto& kept = problem.kept;
    const RowKernels kernels = row_kernels(problem.in_type, compensated);
    if (!set_dims(false, true)) return false;
    p.inner = run;
    const bool at_boundary = reinterpret_cast<uintptr_t>(p.input) % 16 == 0;
    const bool to_boundary = reinterpret_cast<uintptr_t>(p.output) % 16 == 0;
    const bool in_order = one_run && kept.count == 1 && kept.strides[0][0] == run && kept.strides[0][1] == 1;
    const bool pow2 = (bytes & (bytes - 1)) == 0;
    if (in_order && kernels.packed && at_boundary && to_boundary && pow2 && bytes <= policy.packed_bytes) {
      return plan_packed_rows(kernels, bytes);
    }
    const int64_t few_elems = !one_run ? policy.small_runs : kept.count == 0 ? policy.small_whole : policy.small_rows;
    if (problem.num_outputs * problem.num_reduced <= few_elems && problem.num_reduced <= policy.small_length &&
        plan_small(true)) {
      return true;
    }
    const bool few = p.kept.size * bytes < policy.few_bytes;
    if (in_order && kernels.short_rows && bytes <= (few ? policy.short_of_few_bytes : policy.short_bytes)) {
      return plan_short_rows(kernels, bytes);
    }
    if ((one_run ? kernels.one_run : kernels.runs) == nullptr || bytes < 16) return false;
    p.guarded = !at_boundary || bytes % 16 != 0;
    for (int d = 0; d < p.kept.count; ++d) p.guarded |= p.kept.dims[d].in_stride % vector_elems != 0;
    for (int d = 0; d < p.reduced.count; ++d) p.guarded |= p.reduced.dims[d].in_stride % vector_elems != 0;
    if (one_run && kept.count == 0) {
      plan_whole(kernels);
    } else if (one_run) {
      plan_run(kernels, ceil_of(bytes, 16));
    } else {
      plan_runs(kernels, ceil_of(bytes, 16));
    }
    return true;
  }

  // `pieces` blocks share an output's `length`, each in steps of `step`.
  void launch_rows(SumKernel kernel, int64_t blocks, int64_t threads, int64_t length, int64_t pieces, int64_t step) {
    pieces = std::max(pieces, ceil_of(length, int64_t{1} << 28));
    p.piece = ceil_of(ceil_of(length, pieces), step) * step;
    pieces = ceil_of(length, p.piece);
    launch(kernel, blocks, pieces, dim3(static_cast<unsigned>(threads)), finish.rows, p.kept.size,
           int64_t{p.kept.size} * finish.row_bytes);
    plan.letters *= finish.row_letters;
    plan.mails_partials = true;
  }

  void plan_whole(const RowKernels& kernels) {
    const int64_t to_boundary = static_cast<int64_t>((0 - reinterpret_cast<uintptr_t>(p.input)) % 16) / elem_bytes;
    p.head = static_cast<int>(std::min(to_boundary, p.inner));
    p.tail = static_cast<int>((p.inner - p.head) % vector_elems);
    p.input = static_cast<const char*>(p.input) + p.head * elem_bytes;
    p.inner = (p.inner - p.head) / vector_elems;
    const int64_t vectors = std::max<int64_t>(p.inner, 1), resident = resident_blocks();
    const bool alone = vectors <= policy.whole_block_vectors;
    const int64_t of_warp = kWarp * kWarpLoads, of_block = kWholeThreads * kRowLoads;
    if (vectors <= (alone ? policy.whole_warp_vectors : policy.whole_warps * of_warp)) {
      const int64_t pieces = alone ? 1 : pieces_of(vectors, of_warp / 4, 1, policy.whole_warps);
      launch_rows(kernels.whole_warps, 1, kWarp, vectors, pieces, kWarp);
    } else {  // a block an SM, or more where each thread has enough to load
      const int64_t most = vectors < policy.whole_many_vectors ? resident : 2 * resident;
      const int64_t pieces =
          std::max(pieces_of(vectors, kWholeThreads, 1, resident / 2), pieces_of(vectors, of_block, 1, most));
      launch_rows(kernels.whole, 1, kWholeThreads, vectors, alone ? 1 : pieces, kWholeThreads);
    }
  }

  void plan_run(const RowKernels& kernels, int64_t vectors) {
    const int64_t outputs = p.kept.size;
    int64_t lanes = pow2_ceil(ceil_of(vectors, policy.lane_vectors));
    if (vectors <= policy.warp_vectors) lanes = std::min<int64_t>(lanes, kWarp);
    if (outputs * lanes < policy.few_threads) lanes = pow2_ceil(vectors);
    if (lanes <= kWarp) {
      set_lanes(lanes);
      launch_rows(kernels.one_run, ceil_of(outputs, kGroupThreads / lanes), kGroupThreads, vectors, 1, 1);
    } else {
      int64_t pieces = 1;
      if (vectors > policy.single_vectors) {
        pieces = pieces_of(vectors, kRowLoads * kLongThreads, outputs, 2 * resident_blocks());
      }
      launch_rows(kernels.long_rows, outputs, kLongThreads, vectors, pieces, kLongThreads);
    }
  }

  void plan_runs(const RowKernels& kernels, int64_t vectors) {
    const int64_t outputs = p.kept.size, runs = p.reduced.size, all = vectors * runs;
    // A warp or less shares an output where there are many of few vectors, else a block, or several.
    int64_t lanes = pow2_ceil(ceil_of(all, policy.lane_vectors)), threads = kGroupThreads;
    const bool few = outputs * lanes < policy.few_threads;
    if (few) lanes = pow2_ceil(all);
    if (lanes > kWarp) {
      const int64_t of_thread = !few ? policy.runs_thread_vectors : all <= policy.single_vectors ? 4 : 1;
      lanes = threads = std::clamp<int64_t>(pow2_ceil(ceil_of(all, of_thread)), 2 * kWarp, kMaxSumThreads);
    }
    set_lanes(lanes);
    p.run_lanes_log2 = std::min(p.lanes_log2, log2_ceil(ceil_of(vectors, policy.run_vectors)));
    p.run_lanes = 1 << p.run_lanes_log2;
    const int64_t blocks = ceil_of(outputs, threads / lanes);
    int64_t pieces = 1;
    if (lanes == threads && all > policy.single_vectors) {
      pieces = pieces_of(runs, ceil_of(threads, vectors), blocks, resident_blocks());
    }
    launch_rows(kernels.runs, blocks, threads, runs, pieces, 1);
  }

  bool plan_packed_rows(const RowKernels& kernels, int64_t bytes) {
    const int64_t rows = p.kept.size;
    p.rows_per_vector = static_cast<int>(std::max<int64_t>(16 / bytes, 1));
    set_lanes(std::max<int64_t>(bytes / 16, 1));
    p.inner = rows * bytes / 16;
    // Several vectors a thread, where enough threads are left to fill the GPU.
    const bool many = p.inner >= resident_blocks() * kPackedThreads * kPackedLoads;
    const int64_t of_block = kPackedThreads * (many ? kPackedLoads : 1);
    launch(many ? kernels.packed : kernels.packed_few, std::max<int64_t>(ceil_of(p.inner, of_block), 1), 1,
           dim3(kPackedThreads));
    return true;
  }

  bool plan_short_rows(const RowKernels& kernels, int64_t bytes) {
    const int64_t alike = 16 / std::gcd<int64_t>(bytes, 16);  // after so many rows, one starts like the first
    p.piece = std::min(kStageBytes / bytes, ceil_of(p.kept.size, resident_blocks()));
    if (p.piece > alike) p.piece = p.piece / alike * alike;
    int64_t lanes = 1;
    while (lanes < kWarp && p.inner % (2 * lanes) == 0 && p.inner / lanes > policy.short_lane_elems / 4) lanes *= 2;
    while (lanes < kWarp && lanes * policy.short_lane_elems < p.inner) lanes *= 2;
    set_lanes(lanes);
    launch(p.inner < policy.once_elems ? kernels.shortest_rows : kernels.short_rows, ceil_of(p.kept.size, p.piece), 1,
           dim3(kStageThreads));
    return true;
  }

  bool plan_columns() {
    const int inner = problem.kept.count - 1;
    const ColumnKernels kernels = column_kernels(problem.in_type, compensated);
    if (kernels.one_dim == nullptr || problem.reduced.count > 2 || !set_dims(true, false)) return false;
    const bool one_dim = problem.reduced.count <= 1;
    int64_t width = problem.kept.sizes[inner], rows = p.reduced.size;
    p.inner_out_stride = problem.kept.strides[inner][1];
    p.fold = 1;
    p.last_inner = width;

    bool aligned = reinterpret_cast<uintptr_t>(p.input) % 16 == 0, alike = true, apart = true;
    for (int d = 0; d < p.kept.count; ++d) aligned &= p.kept.dims[d].in_stride % vector_elems == 0;
    const int64_t vectors_of_row = width / vector_elems;
    bool to_boundary = reinterpret_cast<uintptr_t>(p.output) % 16 == 0 && p.inner_out_stride == 1 &&
                       width % vector_elems == 0 && p.reduced.dims[0].in_stride % vector_elems == 0;
    for (int d = 0; d < p.kept.count; ++d) to_boundary &= p.kept.dims[d].out_stride % vector_elems == 0;
    if (one_dim && aligned && to_boundary && rows <= policy.few_rows && p.kept.size <= 65535 &&
        vectors_of_row * p.kept.size >= (rows <= 16 ? 4096 : policy.few_rows_threads)) {
      p.inner = width;
      launch(rows <= 2 ? kernels.two_rows : kernels.few_rows, ceil_of(vectors_of_row, kFewRowsThreads), 1,
             dim3(kFewRowsThreads));
      plan.grid.y = static_cast<unsigned>(p.kept.size);
      return true;
    }

    const int64_t outputs = problem.num_outputs, elems = outputs * rows;
    const bool is_small = elems <= policy.small_columns && rows <= policy.small_length;
    const bool is_wide =
        elems <= policy.small_wide && rows <= policy.small_wide_rows && outputs >= policy.small_side_by_side;
    const bool is_long =
        !(aligned && to_boundary) && rows <= policy.small_odd_rows && outputs >= policy.small_odd_outputs;
    if ((is_small || is_wide || is_long) && plan_small(false)) return true;

    // Narrow columns without gaps: as many rows as fill whole vectors, and a block's width with them, make one.
    if (one_dim && rows > 1 && problem.reduced.strides[0][0] == width) {
      const int64_t most = (policy.across - (aligned ? 0 : 1)) * vector_elems;
      int64_t filled = std::lcm<int64_t>(width, vector_elems);
      while (2 * filled <= most && 8 * filled / width <= rows) filled *= 2;
      if (filled > width && filled <= most && 4 * filled / width <= rows) {
        p.fold = static_cast<int>(filled / width);
        const int64_t folded = ceil_of(rows, p.fold);
        p.last_inner = (rows - (folded - 1) * p.fold) * width;
        p.reduced.size = static_cast<uint32_t>(rows = folded);
        p.reduced.dims[0].in_stride = width = filled;
      }
    }
    p.inner = width;

    for (int d = 0; d < p.reduced.count; ++d) {
      alike &= p.reduced.dims[d].in_stride % vector_elems == 0;
      apart &= p.reduced.dims[d].in_stride >= vector_elems;
    }
    aligned &= alike;
    if (!alike && !one_dim) return false;
    p.guarded = !aligned || width % vector_elems != 0 || p.last_inner != width;
    if (p.guarded && !apart) return false;
    if (width < vector_elems || rows > kMaxDividend / 2) return false;  // threads count rows past the last in 32 bits
    const int64_t vectors = ceil_of(width, vector_elems);

    const int64_t limit = elem_bytes == 1 ? kColumnThreads<1> : kColumnThreads<2>;
    const int64_t extra = aligned ? 0 : 1;  // one more vector, since rows are shifted
    const int64_t phases = alike ? 1 : vector_elems / std::gcd<int64_t>(p.reduced.dims[0].in_stride, vector_elems);
    const int64_t wanted_down = std::max(pow2_floor(std::max<int64_t>(rows / policy.rows_per_thread, 1)), phases);
    // As wide as the rows allow where they are few, else `across`, but not so wide that multiprocessors stay idle. The
    // rest of the threads go down.
    int64_t across = std::min(std::max(policy.across, limit / wanted_down), limit / phases);
    const auto blocks_of = [&] { return ceil_of(vectors, across - extra) * int64_t{p.kept.size}; };
    while (p.fold == 1 && across > policy.least_across && blocks_of() < resident_blocks() / 2) across /= 2;
    int64_t windows = ceil_of(width, (std::min(across, vectors + extra) - extra) * vector_elems);
    across = ceil_of(ceil_of(width, windows), vector_elems) + extra;
    const int64_t down = std::max(std::min(pow2_floor(limit / across), wanted_down), phases);
    if (windows > kMaxDividend || windows * p.kept.size > kMaxGridX) return false;
    p.window = static_cast<int>((across - extra) * vector_elems);
    p.windows = Divisor(windows);
    const int64_t blocks = windows * p.kept.size;
    int64_t pieces = pieces_of(rows, down * policy.piece_rows, blocks, resident_blocks());
    pieces = std::max(pieces, ceil_of(rows, down << 15));  // so that int32 holds the sums of 16-bit integers
    p.piece = ceil_of(ceil_of(rows, pieces), down) * down;
    pieces = ceil_of(rows, p.piece);
    if (pieces > kMaxPieces) return false;
    launch(one_dim ? kernels.one_dim : kernels.two_dims, blocks, pieces,
           dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), finish.columns, blocks,
           blocks * (p.window / p.fold) * finish.column_bytes);
    return true;
  }

  bool plan_strided(bool reduced_is_inner, bool plain) {
    if (plain && problem.num_reduced <= policy.small_length) {
      const bool is_small =
          reduced_is_inner || problem.num_outputs * problem.num_reduced <= policy.small_columns ||
          (problem.num_reduced <= policy.small_apart_rows && problem.num_outputs >= policy.small_apart_outputs);
      if (is_small && plan_small(reduced_is_inner)) return true;
    }
    if (!set_dims(false, false)) return false;
    const int64_t reduced = p.reduced.size, kept = p.kept.size;
    p.lanes_side_by_side = reduced_is_inner;
    p.adds_plainly = plain;
    int64_t lanes = pow2_ceil(ceil_of(reduced, 8));
    if (reduced_is_inner) {
      lanes = std::max(lanes, std::min<int64_t>(pow2_ceil(reduced), kWarp));
    } else {
      lanes = std::min(lanes, kStridedThreads / std::min<int64_t>(pow2_ceil(kept), kWarp));
    }
    set_lanes(std::min<int64_t>(lanes, kStridedThreads));
    const int64_t blocks = ceil_of(kept, kStridedThreads / p.lanes);
    const int64_t pieces = pieces_of(reduced, int64_t{p.lanes} * 8, blocks, 2 * resident_blocks());
    p.piece = ceil_of(reduced, pieces);
    const ElementKernels kernels = element_kernels(problem.cast_type, compensated);
    launch(p.reduced.count <= 1 ? kernels.one_dim : kernels.dims, blocks, ceil_of(reduced, p.piece),
           dim3(kStridedThreads), finish.elements, kept, kept * finish.element_bytes);
    return true;
  }

  void plan_all() {
    const auto inner_stride = [](const StridedDims<2>& dims) {
      return dims.count > 0 ? dims.strides[dims.count - 1][0] : int64_t{0};
    };
    const int64_t of_kept = inner_stride(problem.kept), of_reduced = inner_stride(problem.reduced);
    const bool reduced_is_inner = problem.kept.count == 0 || (problem.reduced.count > 0 && of_reduced <= of_kept);
    const bool plain = adds_plainly(problem.in_type, problem.cast_type);
    if (plain && reduced_is_inner && of_reduced == 1 && plan_rows()) return;
    if (plain && !reduced_is_inner && of_kept == 1 && plan_columns()) return;
    plan_strided(reduced_is_inner, plain);
  }
};

// Letters for one launch: those of the stream, whose launches run one after the other; or, in a captured graph, letters
// that are given to nobody else, since graphs run beside whatever else runs. Where none are left: -1.
int take_letters(cudaStream_t stream, int64_t count) {
  if (count > kStreamLetters) return -1;
  const auto failed = [](cudaError_t error) {  // without a trace: a second launch takes the letters' place
    if (error != cudaSuccess) cudaGetLastError();
    return error != cudaSuccess;
  };
  static std::mutex mutex;
  static std::map<std::pair<int, unsigned long long>, int> of_stream;
  static int next = 0;
  const auto take = [&](int64_t n) {
    if (next + n > kSumLetters) return -1;
    return std::exchange(next, next + static_cast<int>(n));
  };
  cudaStreamCaptureStatus status;
  if (failed(cudaStreamIsCapturing(stream, &status))) return -1;
  if (status != cudaStreamCaptureStatusNone) {
    const std::lock_guard<std::mutex> lock(mutex);
    return take(count);
  }
  int device;
  unsigned long long id;  // never that of a stream that is gone
  if (failed(cudaStreamGetId(stream, &id)) || failed(cudaGetDevice(&device))) return -1;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = of_stream.find({device, id});
  if (found != of_stream.end()) return found->second;
  if (of_stream.size() == kMaxStreams) return -1;
  return of_stream[{device, id}] = take(kStreamLetters);
}

}  // namespace

bool SmallSumParams::set(const SumProblem& problem) {
  int64_t extent = 1;
  for (const auto* dims : {&problem.kept, &problem.reduced}) {
    if (dims->count > kSmallDims) return false;
    for (int d = 0; d < dims->count; ++d) extent += (dims->sizes[d] - 1) * dims->strides[d][0];
  }
  if (extent > kMaxDividend || problem.num_outputs > kMaxDividend / kWarp || problem.num_reduced > kMaxDividend / 2) {
    return false;
  }
  input = problem.input;
  output = problem.output;
  outputs = static_cast<uint32_t>(problem.num_outputs);
  length = static_cast<uint32_t>(problem.num_reduced);
  out_type = problem.out_type;
  uint32_t of_kept[2], of_reduced[2];
  set_small_dims(problem.kept, kept_divided, kept, of_kept);
  set_small_dims(problem.reduced, reduced_divided, reduced, of_reduced);
  kept_in_stride = of_kept[0];
  kept_out_stride = of_kept[1];
  reduced_stride = of_reduced[0];
  return true;
}

DType sum_accumulator(DType cast_type) {
  if (cast_type <= DType::kInt64) return DType::kInt64;
  return cast_type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

bool adds_plainly(DType in_type, DType cast_type) {
  if (in_type == cast_type) return true;
  if (in_type == DType::kFloat16 || in_type == DType::kBFloat16) return cast_type == DType::kFloat32;
  // Integers wrap alike: a narrower one is cut from the int64 sum.
  return in_type <= DType::kInt64 && cast_type <= DType::kInt64 && cast_type != DType::kBool;
}

SumPlan plan_sum(const SumProblem& problem, SumVariant variant, bool may_be_small) {
  Planner planner(problem, variant, may_be_small);
  planner.plan_all();
  return planner.plan;
}

void take_letters(SumPlan& plan, cudaStream_t stream) {
  SumSplit& split = plan.params.split;
  if (split.pieces == 1) return;
  split.first_letter = take_letters(stream, plan.letters);
  if (split.first_letter >= 0 && plan.mails_partials) plan.scratch_bytes = 0;
}

cudaError_t launch_sum(SumPlan& plan, void* scratch, cudaStream_t stream) {
  SumSplit& split = plan.params.split;
  split.partials = scratch;
  void* arguments[] = {plan.is_small ? static_cast<void*>(&plan.small) : &plan.params};
  const cudaError_t error = cudaLaunchKernel(plan.kernel, plan.grid, plan.block, arguments, 0, stream);
  if (error != cudaSuccess || split.pieces == 1 || split.first_letter >= 0) return error;
  return cudaLaunchKernel(plan.finish_kernel, plan.finish_grid, dim3(kFinishThreads), arguments, 0, stream);
}

int64_t textbook_partials(SumVariant variant, int64_t num_reduced) {
  return variant == SumVariant::kShuffle ? ceil_of(num_reduced, kTextbookChunk) : 1;
}

cudaError_t launch_textbook_sum(SumVariant variant, const SumProblem& problem, cudaStream_t stream) {
  int64_t blocks = problem.num_outputs * ceil_of(problem.num_reduced, kTextbookChunk);
  if (variant == SumVariant::kAtomic) blocks = ceil_of(problem.num_outputs * problem.num_reduced, kTextbookThreads);
  const TextbookKernel kernel = textbook_kernel(variant, problem.in_type);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  kernel<<<grid_of(blocks), kTextbookThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

std::vector<KernelEntry> sum_kernels() {
  std::vector<KernelEntry> entries = element_kernel_entries();
  for (const auto& more : {row_kernel_entries(), column_kernel_entries(), small_kernel_entries()}) {
    entries.insert(entries.end(), more.begin(), more.end());
  }
  return entries;
}

}  // namespace cudamem
