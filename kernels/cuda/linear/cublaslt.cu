#include <cstdlib>
#include <string>

#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/linear/cublaslt_files.h"
#include "kernels/error.h"

#ifdef QENG_EMULATED

namespace qeng {
CublasLt* open_cublaslt(CudaContext&) {
  const char* named = std::getenv("QENG_CUBLASLT");
  if (named && *named) open_cublaslt_library([](void*) { return std::string(); });
  return nullptr;
}
}  // namespace qeng

#else

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <compare>
#include <cstdio>
#include <map>
#include <memory>

namespace qeng {

namespace {

// clang-format off
#define QENG_CUBLASLT_FUNCTIONS(X)                                                                              \
  X(Create) X(Destroy) X(GetVersion) X(GetStatusName) X(Matmul) X(MatmulDescCreate) X(MatmulDescDestroy)        \
  X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatmulPreferenceCreate)              \
  X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(MatmulAlgoConfigGetAttribute)
// clang-format on

// The library's functions, without the prefix cublasLt.
struct Library {
#define X(name) decltype(&cublasLt##name) name = nullptr;
  QENG_CUBLASLT_FUNCTIONS(X)
#undef X
  // Empty, or what the library lacks.
  std::string load(void* handle) {
#define X(name)                                                             \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, "cublasLt" #name)); \
  if (!name) return "it has no function cublasLt" #name;
    QENG_CUBLASLT_FUNCTIONS(X)
#undef X
    return "";
  }
  std::string status_text(cublasStatus_t status) const {
    const char* name = GetStatusName(status);
    return std::string(name ? name : "an unknown status") + " (" + std::to_string(static_cast<int>(status)) + ")";
  }
};

// What algorithms are chosen by. Addresses count as aligned to at most 16 bytes, which is all that vector loads and TMA
// ask for, and what every tensor of ours has: with the full alignment, two runs of one shape could differ.
struct Key {
  int64_t m, n, k, lda, ldb, ldc;
  DType in, out;
  bool trans_a, trans_b, acc, bias;
  uint32_t align_a, align_b, align_c;
  auto operator<=>(const Key&) const = default;

  std::string text() const {
    std::string text = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " ";
    text += trans_a ? "t" : "n";
    text += trans_b ? "t " : "n ";
    text += std::string(dtype_name(in)) + " " + dtype_name(out);
    text += " ld " + std::to_string(lda) + " " + std::to_string(ldb) + " " + std::to_string(ldc);
    text += " align " + std::to_string(align_a) + " " + std::to_string(align_b) + " " + std::to_string(align_c);
    if (bias) text += " bias";
    if (acc) text += " added";
    return text;
  }
};

uint32_t alignment(const void* pointer) {
  for (uint32_t bytes : {16u, 8u, 4u})
    if (aligned(pointer, bytes)) return bytes;
  return 2;
}

Key key_of(const CudaGemm& g) {
  return {g.m,
          g.n,
          g.k,
          g.lda,
          g.ldb,
          g.ldc,
          g.in,
          g.out,
          g.trans_a,
          g.trans_b,
          g.acc,
          g.bias != nullptr,
          alignment(g.a),
          alignment(g.b),
          alignment(g.c)};
}

struct Candidate {
  cublasLtMatmulAlgo_t algo;
  std::string text;  // what can be known of it: identifies the algorithm in the file of choices
};

// One shape: the library's descriptions of it, and the algorithm.
struct Plan {
  explicit Plan(const Library& functions) : library(functions) {}
  Plan(const Plan&) = delete;
  ~Plan() {
    if (operation) library.MatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {a, b, c})
      if (layout) library.MatrixLayoutDestroy(layout);
  }
  const Library& library;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  bool found = false;
  cublasLtMatmulAlgo_t algo{};
};

constexpr int kCandidates = 16;
constexpr int kTimedRuns = 3;
// Products below this many multiplications take a few microseconds whatever the algorithm; and there are many shapes.
constexpr int64_t kLeastWork = int64_t{1} << 22;
constexpr float kClearlyBetter = 0.98f;  // of the time of an earlier candidate; less is noise, and the order is theirs

class Opened : public CublasLt {
 public:
  explicit Opened(CudaContext& context) {
    open_cublaslt_library([this](void* handle) -> std::string {
      if (std::string missing = library_.load(handle); !missing.empty()) return missing;
      const cublasStatus_t status = library_.Create(&handle_);
      if (status == CUBLAS_STATUS_SUCCESS) return "";
      return "version " + std::to_string(library_.GetVersion()) + ", cublasLtCreate says " +
             library_.status_text(status) + ", perhaps for want of a newer driver or of device memory";
    });
    cudaDeviceProp properties{};
    int driver = 0;
    check_cuda(cudaGetDeviceProperties(&properties, context.device), "reading the device's properties");
    check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version");
    machine_ = std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) +
               " multiprocessors, cuBLAS " + std::to_string(library_.GetVersion()) + ", driver " +
               std::to_string(driver);
    // What NVIDIA recommends; split sums of large products on Hopper need it.
    workspace_bytes_ = size_t{properties.major >= 9 ? 32u : 4u} << 20;
    check_cuda(cudaEventCreate(&begin_), "creating an event");
    check_cuda(cudaEventCreate(&end_), "creating an event");
    const char* tune = std::getenv("QENG_CUBLASLT_TUNE");
    tuning_ = !tune || std::string(tune) != "0";
    if (!tuning_) return;
    path_ = choices_path(machine_);
    choices_ = read_choices(path_, machine_, [this](const std::string& text) { complain(text); });
  }

  ~Opened() override {
    plans_.clear();
    library_.Destroy(handle_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    for (const auto& [stream, memory] : workspaces_) cudaFree(memory);
  }

  bool run(const CudaGemm& gemm, CudaContext& context) override {
    const int64_t most = INT32_MAX;  // the library's own limit
    if (std::max({gemm.m, gemm.n, gemm.k}) > most || gemm.k == 0) return false;
    const Key key = key_of(gemm);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      auto plan = std::make_unique<Plan>(library_);
      describe(gemm, *plan);
      choose(key, *plan, gemm, context);
      found = plans_.emplace(key, std::move(plan)).first;
    }
    const Plan& plan = *found->second;
    if (!plan.found) return false;
    set_pointers(plan, gemm);
    check(launch(plan, plan.algo, gemm, gemm.c, context), "cublasLtMatmul", gemm);
    finish_launch(context, "cublasLtMatmul", cudaSuccess);
    return true;
  }

  bool is_faster(const std::string& shape, const std::function<bool()>& ours, const std::function<bool()>& library,
                 int64_t flops, CudaContext& context) override {
    const auto decided = ours_.find(shape);
    if (decided != ours_.end()) return decided->second;
    const bool small = flops < 2 * kLeastWork;
    if (small || !tuning_) return ours_[shape] = small;
    const std::string names[] = {"the library", "one kernel"};
    const auto known = [&] {
      const auto choice = choices_.find(shape);
      if (choice == choices_.end()) return false;
      const bool taken = choice->second.candidate == 1;
      if (choice->second.algorithm != names[taken]) return false;
      ours_[shape] = taken;
      return true;
    };
    if (known()) return ours_[shape];
    if (context.reserving || recording(context.stream)) return ours_[shape] = false;
    const float by_library = time_of(library, "cuBLASLt: " + shape, context, 0);
    const float by_ours = time_of(ours, "cuBLASLt: " + shape, context, by_library);
    if (by_library == 0 || by_ours == 0) return ours_[shape] = false;
    const bool faster = by_ours < by_library * kClearlyBetter;
    choices_[shape] = {faster, names[faster], double{faster ? by_ours : by_library} * 1e3};
    keep_choices();
    return known() ? ours_[shape] : ours_[shape] = faster;
  }

 private:
  void check(cublasStatus_t status, const char* function, const CudaGemm& gemm) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fail(status == CUBLAS_STATUS_ALLOC_FAILED ? "memory" : "cuda", "cuBLASLt: ", function, " says ",
         library_.status_text(status), " for ", gemm_text(gemm), " (", key_of(gemm).text(), ")");
  }
  void complain(const std::string& text) const { std::fprintf(stderr, "qeng: %s: %s\n", path_.c_str(), text.c_str()); }
  bool recording(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a graph is recorded");
    return status != cudaStreamCaptureStatusNone;
  }

  void* workspace(const CudaContext& context) {
    void*& memory = workspaces_[context.stream];
    if (!memory) memory = context.spare.allocate(workspace_bytes_, "allocating cuBLASLt's workspace");
    return memory;
  }

  // The library's matrices are column-major: row-major memory is their transpose, and c^T = op(b)^T op(a)^T. So b is
  // its first operand, a its second, and its rows are our columns: a bias along rows is what we mean by one along
  // columns.
  void describe(const CudaGemm& gemm, Plan& plan) const {
    const auto type = [](DType dtype) {
      return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::u8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    };
    const auto layout = [&](cublasLtMatrixLayout_t& to, DType dtype, int64_t stored_rows, int64_t stored_columns,
                            int64_t step) {
      check(library_.MatrixLayoutCreate(&to, type(dtype), static_cast<uint64_t>(stored_columns),
                                        static_cast<uint64_t>(stored_rows), step),
            "cublasLtMatrixLayoutCreate", gemm);
    };
    layout(plan.a, gemm.in, gemm.trans_a ? gemm.k : gemm.m, gemm.trans_a ? gemm.m : gemm.k, gemm.lda);
    layout(plan.b, gemm.in, gemm.trans_b ? gemm.n : gemm.k, gemm.trans_b ? gemm.k : gemm.n, gemm.ldb);
    layout(plan.c, gemm.out, gemm.m, gemm.n, gemm.ldc);
    check(library_.MatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate", gemm);
    const cublasOperation_t first = gemm.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = gemm.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, first, gemm);
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, second, gemm);
    if (gemm.bias) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, gemm);
    set_pointers(plan, gemm);
  }
  template <class T>
  void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value, const CudaGemm& gemm) const {
    check(library_.MatmulDescSetAttribute(plan.operation, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", gemm);
  }
  // What lies elsewhere in each call. The library's default, sums in f32 also of E4M3, stays (FAST_ACCUM is off).
  void set_pointers(const Plan& plan, const CudaGemm& gemm) const {
    if (gemm.bias) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias, gemm);
    if (gemm.scale_b) set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, gemm.scale_b, gemm);
    if (gemm.scale_a) set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, gemm.scale_a, gemm);
  }

  cublasStatus_t launch(const Plan& plan, const cublasLtMatmulAlgo_t& algo, const CudaGemm& gemm, void* c,
                        CudaContext& context) {
    const float beta = gemm.acc ? 1 : 0;
    return library_.Matmul(handle_, plan.operation, &gemm.alpha, gemm.b, plan.b, gemm.a, plan.a, &beta, c, plan.c, c,
                           plan.c, &algo, workspace(context), workspace_bytes_, context.stream);
  }

  // The library's candidates, best guess first. None: it has no algorithm (an odd alignment).
  std::vector<Candidate> candidates(const Key& key, const Plan& plan, const CudaGemm& gemm) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(library_.MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", gemm);
    const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, decltype(library_.MatmulPreferenceDestroy)>
        owner(preference, library_.MatmulPreferenceDestroy);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(library_.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute", gemm);
    };
    // Partial sums of a split product are added in f32 in a fixed order: not through c, whose dtype would round them
    // (OUTPUT_TYPE), and not in place, in the order of arrival.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes_});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
    cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
    int count = 0;
    const cublasStatus_t status = library_.MatmulAlgoGetHeuristic(handle_, plan.operation, plan.b, plan.a, plan.c,
                                                                  plan.c, preference, kCandidates, results, &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic", gemm);
    std::vector<Candidate> list;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i)
      if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace_bytes_)
        if (Candidate candidate{results[i].algo, {}}; identify(candidate)) list.push_back(candidate);
    return list;
  }
  // Fills in the text. False for an algorithm that adds partial sums in a way we excluded.
  bool identify(Candidate& candidate) const {
    const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) -> int64_t {
      size_t written = 0;
      const cublasStatus_t status =
          library_.MatmulAlgoConfigGetAttribute(&candidate.algo, attribute, &value, sizeof value, &written);
      return status == CUBLAS_STATUS_SUCCESS ? static_cast<int64_t>(value) : -1;
    };
    const int64_t scheme = get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{});
    const std::pair<const char*, int64_t> fields[] = {
        {"algorithm", get(CUBLASLT_ALGO_CONFIG_ID, int32_t{})},
        {" tile", get(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{})},
        {" stages", get(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{})},
        {" cluster", get(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{})},
        {" inner", get(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, uint16_t{})},
        {" split", get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{})},
        {" reduction", scheme},
        {" swizzle", get(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t{})},
        {" custom", get(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t{})}};
    for (const auto& [name, value] : fields) candidate.text += name + (" " + std::to_string(value));
    return scheme != CUBLASLT_REDUCTION_SCHEME_INPLACE && scheme != CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  }

  void choose(const Key& key, Plan& plan, const CudaGemm& gemm, CudaContext& context) {
    const std::vector<Candidate> list = candidates(key, plan, gemm);
    plan.found = !list.empty();
    if (!plan.found) {
      if (gemm.m * gemm.n >= kLeastWork / gemm.k)  // once, as the plan is kept
        std::fprintf(stderr, "qeng: cuBLASLt has no algorithm for %s (%s); %s\n", gemm_text(gemm).c_str(),
                     key.text().c_str(),
                     gemm.in == DType::u8 ? "its numbers are multiplied in bf16"
                                          : "a plain kernel, much slower, takes its place");
      return;
    }
    plan.algo = list[0].algo;
    if (!tuning_ || list.size() == 1 || gemm.m * gemm.n < kLeastWork / gemm.k) return;
    const std::string shape = key.text();
    if (take_known(shape, list, plan) || recording(context.stream)) return;
    if (!tune(shape, list, plan, gemm, context)) return;
    keep_choices();
    take_known(shape, list, plan);  // perhaps another process was faster
  }

  void keep_choices() {
    if (path_.empty()) return;
    try {
      choices_ = add_choices(path_, machine_, choices_, [](const std::string&) {});
    } catch (const Error& error) {
      std::fprintf(stderr, "qeng: the choice of a matrix product's algorithm is not kept for later runs: %s\n",
                   error.what());
      path_.clear();  // said once
    }
  }

  bool take_known(const std::string& shape, const std::vector<Candidate>& list, Plan& plan) {
    const auto known = choices_.find(shape);
    if (known == choices_.end()) return false;
    const GemmChoice& choice = known->second;
    const size_t index = static_cast<size_t>(choice.candidate);
    if (index < list.size() && list[index].text == choice.algorithm) {
      plan.algo = list[index].algo;
      return true;
    }
    complain(shape + ": candidate " + std::to_string(choice.candidate) + " is not '" + choice.algorithm +
             "' in this library; it is chosen anew");
    choices_.erase(known);
    return false;
  }

  // Times the candidates and puts the fastest into choices_. False where that cannot be: no memory for a trial result.
  bool tune(const std::string& shape, const std::vector<Candidate>& list, const Plan& plan, const CudaGemm& gemm,
            CudaContext& context) {
    // A result that is added to must be added to once only, so the trials add to another one.
    std::unique_ptr<void, decltype(&cudaFree)> trial(nullptr, &cudaFree);
    if (gemm.acc) {
      const size_t bytes = static_cast<size_t>((gemm.m - 1) * gemm.ldc + gemm.n) * dtype_size(gemm.out);
      void* memory = nullptr;
      if (cudaMalloc(&memory, bytes) != cudaSuccess) {
        cudaGetLastError();
        return false;
      }
      trial.reset(memory);
      check_cuda(cudaMemsetAsync(memory, 0, bytes, context.stream), "choosing an algorithm");
    }
    void* c = gemm.acc ? trial.get() : gemm.c;
    float best = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const float time = time_of([&] { return launch(plan, list[i].algo, gemm, c, context) == CUBLAS_STATUS_SUCCESS; },
                                 "cuBLASLt: " + list[i].text + ": " + gemm_text(gemm), context, best);
      if (time <= 0 || (best > 0 && time > best * kClearlyBetter)) continue;
      best = time;
      choices_[shape] = {static_cast<int>(i), list[i].text, double{time} * 1e3};
    }
    return best > 0;
  }
  // Milliseconds of the fastest run; 0 where one is refused. What is hopeless beside `best` is not tried again.
  template <class F>
  float time_of(F queue, const std::string& what, CudaContext& context, float best) {
    float fastest = 0;
    for (int i = -1; i < kTimedRuns; ++i) {  // the first run loads the kernel
      check_cuda(cudaEventRecord(begin_, context.stream), "choosing an algorithm");
      if (!queue()) return 0;
      check_cuda(cudaEventRecord(end_, context.stream), "choosing an algorithm");
      check_cuda(cudaEventSynchronize(end_), what.c_str());
      float time = 0;
      check_cuda(cudaEventElapsedTime(&time, begin_, end_), "choosing an algorithm");
      if (i < 0) continue;
      fastest = i == 0 ? time : std::min(fastest, time);
      if (best > 0 && time > 2 * best) break;
    }
    return fastest;
  }

  Library library_;
  cublasLtHandle_t handle_ = nullptr;
  std::string machine_, path_;
  bool tuning_ = true;
  GemmChoices choices_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::map<std::string, bool> ours_;  // shapes that a kernel of ours takes, or not
  size_t workspace_bytes_ = 0;
  std::map<cudaStream_t, void*> workspaces_;  // one a stream: two products at once must not share one
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

CublasLt* open_cublaslt(CudaContext& context) { return new Opened(context); }

}  // namespace qeng

#endif
