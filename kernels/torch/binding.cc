// The launches of attention.h and attention_cuda.h as PyTorch operators, for C++ (link the library or load
// it) and Python (torch.ops.load_library): the one place where a tensor of LibTorch becomes a pointer. CPU
// tensors run the CPU kernels, CUDA tensors the CUDA kernels on PyTorch's current stream; meta and fake
// tensors get shapes, so torch.compile sees one opaque operator.
//
//   out = allot::attend(query, key_pages, value_pages, page_table, query_start, lengths, budgets, draws, …)
//
// allocates its output and workspace. For CUDA graphs, and to learn of faults that only the device can see:
//
//   bytes = allot::workspace_bytes(as attend)               of a uint8 tensor on the device
//   allot::reset_workspace(workspace)                       once
//   allot::attend_out(as attend, out=…, workspace=…)        allocates nothing
//   allot::check(workspace)                                 waits; raises the first fault since it last did
//
// For estimators whose sizes of rows take in the norms of values (docs/estimators.md), the launches take
// them, and
//
//   allot::store_value_norms(values, slots, value_norms)    of tokens whose values now lie in the cache
//
// keeps them beside a cache that other code writes. They must be there for every key that a launch sees.
//
// attend_out and workspace_bytes take rows_read, too, which counts what the kernels read; workspace_bytes
// only looks whether it is there, since counting needs more workspace.
//
// | argument    | dtype         | shape                                          |
// |-------------|---------------|------------------------------------------------|
// | query       | T             | [num_queries, num_q_heads, head_dim]           |
// | key_pages   | T             | [num_pages, num_kv_heads, page_size, head_dim] |
// | value_pages | T             | as key_pages                                   |
// | page_table  | int32         | [batch, max_pages]                             |
// | query_start | int64         | [batch + 1]                                    |
// | lengths     | int32         | [batch]                                        |
// | budgets     | int32         | [batch]; None with estimator exact             |
// | draws       | int32, uint32 | [batch, 3]: run seed, sampling seed, question; |
// |             |               | None where nothing is drawn                    |
// | out         | T             | as query                                       |
// | workspace   | uint8         | [at least workspace_bytes]                     |
// | rows_read   | int64         | [batch] or None: AttentionParams::rows_read    |
// | value_norms | float32       | [num_pages, num_kv_heads, page_size] or None;  |
// |             |               | given, rows are chosen by them, too            |
// | values      | T or float32  | [tokens, num_kv_heads, head_dim]               |
// | slots       | int64         | [tokens]: page * page_size + offset in it;     |
// |             |               | negative: not stored                           |
//
// T is bfloat16 or float16 on CUDA, float32 or bfloat16 on the CPU. Everything is contiguous, but the rows of
// query and values may be spaced, as in a fused projection. A contiguous cache [batch, num_kv_heads,
// capacity, head_dim] is key_pages with one page a sequence and page_table [[0], [1], …].
//
// max_queries, max_length, max_budget and any_dense bound what the device arrays hold (LaunchBounds of
// attention_cuda.h); they choose grids and workspace without a look at the device. max_length is None for the
// room of the page table. On the CPU the arrays are compared with them, so that code tested there is right on
// a GPU. On the device a sequence that breaks them has NaN for its output.
//
// A library built without CUDA has the same operators; for CUDA tensors they raise NotImplementedError.
//
// Errors: TypeError (dtype, device), ValueError (everything else that a caller can put right),
// NotImplementedError (combinations without a kernel), RuntimeError (CUDA). There is no backward: attend says
// so when asked for one.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/attention_cuda.h"
#include "kernels/rows.h"
#include "kernels/torch/cuda_tensors.h"

namespace allot::kernels {
namespace {

using at::Tensor;
using Arguments = c10::ArrayRef<c10::IValue>;

// A row of `draws` is read as a SequenceDraws.
static_assert(std::is_standard_layout_v<SequenceDraws> && sizeof(SequenceDraws) == 3 * sizeof(uint32_t) &&
              offsetof(SequenceDraws, key) + offsetof(DrawKey, run_seed) == 0 &&
              offsetof(SequenceDraws, key) + offsetof(DrawKey, sampling_seed) == sizeof(uint32_t) &&
              offsetof(SequenceDraws, question) == 2 * sizeof(uint32_t));

constexpr const char* kCallArguments =
    "Tensor query, Tensor key_pages, Tensor value_pages, Tensor page_table, Tensor query_start, "
    "Tensor lengths, Tensor? budgets=None, Tensor? draws=None, *, str estimator='exact', float? scale=None, "
    "int layer=0, int tile=256, str score_stage='exact', int score_budget=0, bool mean_group_query=False, "
    "SymInt max_queries=1, SymInt? max_length=None, SymInt? max_budget=None, bool any_dense=False, "
    "str unit='samples', Tensor? value_norms=None";

// The arguments of kCallArguments, in its order.
struct Call {
  Tensor query, key_pages, value_pages, page_table, query_start, lengths;
  std::optional<Tensor> budgets, draws;
  Estimator estimator;
  std::optional<double> scale;
  int64_t layer, tile;
  ScoreStage score_stage;
  int64_t score_budget;
  bool mean_group_query;
  // Symbols while torch.compile traces; numbers when a launch runs.
  c10::SymInt max_queries;
  std::optional<c10::SymInt> max_length, max_budget;
  bool any_dense;
  BudgetUnit unit;
  std::optional<Tensor> value_norms;
};

Call read_call(Arguments arguments) {
  size_t position = 0;
  const auto next = [&]() -> const c10::IValue& { return arguments[position++]; };
  return {.query = next().toTensor(),
          .key_pages = next().toTensor(),
          .value_pages = next().toTensor(),
          .page_table = next().toTensor(),
          .query_start = next().toTensor(),
          .lengths = next().toTensor(),
          .budgets = next().toOptional<Tensor>(),
          .draws = next().toOptional<Tensor>(),
          .estimator = parse_estimator(next().toStringView()),
          .scale = next().toOptional<double>(),
          .layer = next().toInt(),
          .tile = next().toInt(),
          .score_stage = parse_score_stage(next().toStringView()),
          .score_budget = next().toInt(),
          .mean_group_query = next().toBool(),
          .max_queries = next().toSymInt(),
          .max_length = next().toOptional<c10::SymInt>(),
          .max_budget = next().toOptional<c10::SymInt>(),
          .any_dense = next().toBool(),
          .unit = parse_budget_unit(next().toStringView()),
          .value_norms = next().toOptional<Tensor>()};
}

template <class Integer>
Integer narrow(int64_t value, const char* field) {
  TORCH_CHECK_VALUE(
      value >= std::numeric_limits<Integer>::min() && value <= std::numeric_limits<Integer>::max(),
      "attention: ", field, " is ", value, "; expected ", std::numeric_limits<Integer>::min(), " to ",
      std::numeric_limits<Integer>::max());
  return static_cast<Integer>(value);
}

AttentionMethod method_of(const Call& c) {
  AttentionMethod method{.estimator = c.estimator,
                         .unit = c.unit,
                         .tile = narrow<int32_t>(c.tile, "tile"),
                         .score_stage = c.score_stage,
                         .score_budget = narrow<int32_t>(c.score_budget, "score_budget"),
                         .mean_group_query = c.mean_group_query};
  for (const MethodParameter& parameter : row_of(c.estimator).parameters)
    if (parameter.norms) set_parameter(&method, parameter.name, c.value_norms ? 1 : 0);
  return method;
}

void check_rank(const Tensor& tensor, const char* name, int64_t rank, const char* axes) {
  TORCH_CHECK_VALUE(tensor.dim() == rank, "attention: ", name, " has shape ", tensor.sym_sizes(),
                    "; expected ", rank, " dimensions, ", axes);
}

void check_dtype(const Tensor& tensor, const char* name, at::ScalarType expected, const char* why) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == expected, "attention: ", name, " has dtype ", tensor.scalar_type(),
                   "; expected ", expected, why);
}

void check_device(const Tensor& tensor, const char* name, const Tensor& query) {
  TORCH_CHECK_TYPE(tensor.device() == query.device(), "attention: ", name, " is on ", tensor.device(),
                   ", but query is on ", query.device(), "; put every tensor of a launch on one device");
}

void check_size(const Tensor& tensor, const char* name, int64_t axis, int64_t expected, const char* what) {
  TORCH_CHECK_VALUE(tensor.size(axis) == expected, "attention: ", name, " has shape ", tensor.sizes(),
                    "; expected ", expected, " in dimension ", axis, ", ", what);
}

void check_contiguous(const Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "attention: ", name, " has shape ", tensor.sizes(),
                    " with strides ", tensor.strides(), "; expected it contiguous, see Tensor.contiguous()");
}

// Checks that are possible while torch.compile traces with symbols for sizes.
void check_types(const Call& c) {
  check_rank(c.query, "query", 3, "[num_queries, num_q_heads, head_dim]");
  check_rank(c.key_pages, "key_pages", 4, "[num_pages, num_kv_heads, page_size, head_dim]");
  check_rank(c.value_pages, "value_pages", 4, "[num_pages, num_kv_heads, page_size, head_dim]");
  check_rank(c.page_table, "page_table", 2, "[batch, max_pages]");
  check_rank(c.query_start, "query_start", 1, "[batch + 1]");
  check_rank(c.lengths, "lengths", 1, "[batch]");
  const at::ScalarType dtype = c.query.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                   "attention: query has dtype ", dtype, "; expected BFloat16, Half or, on the CPU, Float");
  check_dtype(c.key_pages, "key_pages", dtype, ", the dtype of query");
  check_dtype(c.value_pages, "value_pages", dtype, ", the dtype of query");
  check_dtype(c.page_table, "page_table", at::kInt, " (torch.int32)");
  check_dtype(c.query_start, "query_start", at::kLong, " (torch.int64)");
  check_dtype(c.lengths, "lengths", at::kInt, " (torch.int32)");
  check_device(c.key_pages, "key_pages", c.query);
  check_device(c.value_pages, "value_pages", c.query);
  check_device(c.page_table, "page_table", c.query);
  check_device(c.query_start, "query_start", c.query);
  check_device(c.lengths, "lengths", c.query);
  if (c.budgets) {
    check_rank(*c.budgets, "budgets", 1, "[batch]");
    check_dtype(*c.budgets, "budgets", at::kInt, " (torch.int32)");
    check_device(*c.budgets, "budgets", c.query);
  }
  if (c.draws) {
    check_rank(*c.draws, "draws", 2, "[batch, 3]: run seed, sampling seed, question");
    const at::ScalarType draws = c.draws->scalar_type();
    TORCH_CHECK_TYPE(draws == at::kInt || draws == at::kUInt32, "attention: draws has dtype ", draws,
                     "; expected Int or UInt32 (torch.int32 or torch.uint32), 32 bits a number");
    check_device(*c.draws, "draws", c.query);
  }
  if (c.value_norms) {
    check_rank(*c.value_norms, "value_norms", 3, "[num_pages, num_kv_heads, page_size]");
    check_dtype(*c.value_norms, "value_norms", at::kFloat, " (torch.float32)");
    check_device(*c.value_norms, "value_norms", c.query);
    TORCH_CHECK_VALUE(uses_value_norms(method_of(c)), "attention: estimator ", std::string(name(c.estimator)),
                      " has no use for value_norms; leave them out, or use one that has, as joint");
  }
  TORCH_CHECK_VALUE(
      !row_of(c.estimator).samples || (c.budgets && c.max_budget), "attention: estimator ",
      std::string(name(c.estimator)), " samples, but ",
      c.budgets
          ? "max_budget is None; pass a bound of the budgets"
          : "budgets is None; pass an int32 tensor [batch] of samples per query head (unit 'samples') or value rows per KV head ('rows')",
      ", or use estimator exact");
}

// Of a tensor [rows, heads, head_dim].
void check_heads_together(const Tensor& tensor, const char* name) {
  const bool together = tensor.numel() == 0 || ((tensor.size(2) == 1 || tensor.stride(2) == 1) &&
                                                (tensor.size(1) == 1 || tensor.stride(1) == tensor.size(2)));
  TORCH_CHECK_VALUE(together, "attention: ", name, " has shape ", tensor.sizes(), " with strides ",
                    tensor.strides(), "; expected the heads of a row one after the other, strides [any, ",
                    tensor.size(2), ", 1]; see Tensor.contiguous()");
}

// Of a tensor with heads together; one row may have any stride.
int64_t row_stride(const Tensor& tensor) {
  return tensor.size(0) > 1 ? tensor.stride(0) : tensor.size(1) * tensor.size(2);
}

// Sizes and strides. What they must be for the kernels (head_dim, page_size, alignment) is
// validated by those.
void check_shapes(const Call& c) {
  const int64_t batch = c.lengths.size(0);
  check_size(c.query_start, "query_start", 0, batch + 1, "the size of lengths and one more");
  check_size(c.page_table, "page_table", 0, batch, "the size of lengths");
  if (c.budgets) check_size(*c.budgets, "budgets", 0, batch, "the size of lengths");
  if (c.draws) {
    check_size(*c.draws, "draws", 0, batch, "the size of lengths");
    check_size(*c.draws, "draws", 1, 3, "run seed, sampling seed and question");
  }
  check_size(c.key_pages, "key_pages", 3, c.query.size(2), "the head_dim of query");
  TORCH_CHECK_VALUE(c.value_pages.sizes() == c.key_pages.sizes(), "attention: value_pages has shape ",
                    c.value_pages.sizes(), "; expected ", c.key_pages.sizes(), ", the shape of key_pages");
  if (c.value_norms) {
    TORCH_CHECK_VALUE(c.value_norms->sizes() == c.value_pages.sizes().slice(0, 3),
                      "attention: value_norms has shape ", c.value_norms->sizes(), "; expected ",
                      c.value_pages.sizes().slice(0, 3), ", one norm for every vector of value_pages");
    check_contiguous(*c.value_norms, "value_norms");
  }
  check_contiguous(c.key_pages, "key_pages");
  check_contiguous(c.value_pages, "value_pages");
  check_contiguous(c.page_table, "page_table");
  check_contiguous(c.query_start, "query_start");
  check_contiguous(c.lengths, "lengths");
  if (c.budgets) check_contiguous(*c.budgets, "budgets");
  if (c.draws) check_contiguous(*c.draws, "draws");
  check_heads_together(c.query, "query");
}

bool has_symbols(const Call& c) {
  const auto symbolic = [](const Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  return symbolic(c.query) || symbolic(c.key_pages) || symbolic(c.value_pages) || symbolic(c.page_table) ||
         symbolic(c.query_start) || symbolic(c.lengths) || (c.budgets && symbolic(*c.budgets)) ||
         (c.draws && symbolic(*c.draws)) || (c.value_norms && symbolic(*c.value_norms));
}

void check_call(const Call& c) {
  check_types(c);
  if (!has_symbols(c)) check_shapes(c);
}

void check_out(const Tensor& out, const Tensor& query) {
  check_dtype(out, "out", query.scalar_type(), ", the dtype of query");
  check_device(out, "out", query);
  check_rank(out, "out", 3, "[num_queries, num_q_heads, head_dim]");
}

void check_workspace(const Tensor& workspace) {
  check_rank(workspace, "workspace", 1, "[bytes]");
  check_dtype(workspace, "workspace", at::kByte, " (torch.uint8)");
}

void check_rows_read(const Tensor& rows_read, const Call& c) {
  check_rank(rows_read, "rows_read", 1, "[batch]");
  check_dtype(rows_read, "rows_read", at::kLong, " (torch.int64)");
  check_device(rows_read, "rows_read", c.query);
}

// Where the kernels add the rows that they read; null where nobody counts.
int64_t* counter_of(const std::optional<Tensor>& rows_read, const Call& c) {
  if (!rows_read) return nullptr;
  check_rows_read(*rows_read, c);
  check_size(*rows_read, "rows_read", 0, c.lengths.size(0), "the size of lengths");
  check_contiguous(*rows_read, "rows_read");
  return rows_read->mutable_data_ptr<int64_t>();
}

DType dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      return DType::kFloat32;
  }
}

// Parameters of a launch; `out` is null when only sizes matter.
AttentionParams params_of(const Call& c, void* out, int64_t* rows_read = nullptr) {
  const int64_t head_dim = c.query.size(2);
  return {.batch = c.lengths.size(0),
          .num_q_heads = narrow<int32_t>(c.query.size(1), "num_q_heads"),
          .num_kv_heads = narrow<int32_t>(c.key_pages.size(1), "num_kv_heads"),
          .head_dim = narrow<int32_t>(head_dim, "head_dim"),
          .page_size = narrow<int32_t>(c.key_pages.size(2), "page_size"),
          .max_pages = narrow<int32_t>(c.page_table.size(1), "max_pages"),
          .num_pages = c.key_pages.size(0),
          .dtype = dtype_of(c.query),
          .scale = static_cast<float>(c.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)))),
          .query = c.query.const_data_ptr(),
          .query_stride = row_stride(c.query),
          .key_pages = c.key_pages.const_data_ptr(),
          .value_pages = c.value_pages.const_data_ptr(),
          .value_norms = c.value_norms ? c.value_norms->const_data_ptr<float>() : nullptr,
          .page_table = c.page_table.const_data_ptr<int32_t>(),
          .query_start = c.query_start.const_data_ptr<int64_t>(),
          .lengths = c.lengths.const_data_ptr<int32_t>(),
          .out = out,
          .method = method_of(c),
          .budgets = c.budgets ? c.budgets->const_data_ptr<int32_t>() : nullptr,
          .draws = c.draws ? static_cast<const SequenceDraws*>(c.draws->const_data_ptr()) : nullptr,
          .layer = narrow<uint32_t>(c.layer, "layer"),
          .rows_read = rows_read};
}

int64_t number(const c10::SymInt& symbol) {
  return symbol.guard_int(__FILE__, __LINE__);
}

LaunchBounds bounds_of(const Call& c) {
  const int64_t room = c.page_table.size(1) * c.key_pages.size(2);
  return {.num_queries = c.query.size(0),
          .max_queries = narrow<int32_t>(number(c.max_queries), "max_queries"),
          .max_length = narrow<int32_t>(c.max_length ? number(*c.max_length) : room, "max_length"),
          .max_budget = narrow<int32_t>(c.max_budget ? number(*c.max_budget) : 0, "max_budget"),
          .any_dense = c.any_dense};
}

// The content of the arrays against the bounds, as the device does it.
void check_bounds(const AttentionParams& p, const LaunchBounds& bounds) {
  TORCH_CHECK_VALUE(p.query_start[p.batch] == bounds.num_queries, "attention: query_start[", p.batch, "] is ",
                    p.query_start[p.batch], ", but query has ", bounds.num_queries,
                    " rows; the last start is the number of queries");
  const bool samples = row_of(p.method.estimator).samples;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t queries = p.query_start[b + 1] - p.query_start[b];
    TORCH_CHECK_VALUE(queries <= bounds.max_queries, "attention: sequence ", b, " has ", queries,
                      " queries, but max_queries is ", bounds.max_queries, "; raise max_queries");
    TORCH_CHECK_VALUE(p.lengths[b] <= bounds.max_length, "attention: sequence ", b, " has length ",
                      p.lengths[b], ", but max_length is ", bounds.max_length,
                      "; raise max_length or give the page table room");
    if (!samples) continue;
    TORCH_CHECK_VALUE(p.budgets[b] <= bounds.max_budget, "attention: sequence ", b, " has sample budget ",
                      p.budgets[b], ", but max_budget is ", bounds.max_budget, "; raise max_budget");
    TORCH_CHECK_VALUE(p.budgets[b] != kDenseBudget || bounds.any_dense, "attention: sequence ", b,
                      " has sample budget ", p.budgets[b],
                      " (exact attention), but any_dense is False; set any_dense");
  }
}

void launch_cpu(const Call& c, const Tensor& out, int64_t* rows_read = nullptr) {
  const AttentionParams params = params_of(c, out.mutable_data_ptr(), rows_read);
  check_bounds(params, bounds_of(c));
  attend_cpu(params, at::in_parallel_region() ? 1 : at::get_num_threads());
}

std::optional<c10::IValue> attend(Arguments arguments) {
  const Call c = read_call(arguments);
  check_call(c);
  const Tensor out = at::empty(c.query.sizes(), c.query.options());
  if (c.query.is_cpu()) {
    launch_cpu(c, out);
    return out;
  }
  const AttentionParams params = params_of(c, out.mutable_data_ptr());
  const LaunchBounds bounds = bounds_of(c);
  const Tensor workspace =
      at::empty({workspace_bytes_cuda(params, bounds, c.query)}, c.query.options().dtype(at::kByte));
  reset_workspace_cuda(workspace);
  launch_cuda(params, bounds, c.query, workspace);
  return out;
}

std::optional<c10::IValue> attend_out(Arguments arguments) {
  const Call c = read_call(arguments);
  check_call(c);
  const Tensor out = arguments[arguments.size() - 3].toTensor();
  const Tensor workspace = arguments[arguments.size() - 2].toTensor();
  int64_t* const rows_read = counter_of(arguments[arguments.size() - 1].toOptional<Tensor>(), c);
  check_out(out, c.query);
  check_workspace(workspace);
  check_device(workspace, "workspace", c.query);
  TORCH_CHECK_VALUE(out.sizes() == c.query.sizes(), "attention: out has shape ", out.sizes(), "; expected ",
                    c.query.sizes(), ", the shape of query");
  check_contiguous(out, "out");
  check_contiguous(workspace, "workspace");
  if (c.query.is_cpu()) {
    launch_cpu(c, out, rows_read);
    return std::nullopt;
  }
  launch_cuda(params_of(c, out.mutable_data_ptr(), rows_read), bounds_of(c), c.query, workspace);
  return std::nullopt;
}

std::optional<c10::IValue> workspace_bytes(Arguments arguments) {
  const Call c = read_call(arguments);
  check_call(c);
  int64_t* const rows_read = counter_of(arguments[arguments.size() - 1].toOptional<Tensor>(), c);
  if (c.query.is_cpu()) return int64_t{0};
  return workspace_bytes_cuda(params_of(c, nullptr, rows_read), bounds_of(c), c.query);
}

// Calls on a workspace alone. The CPU kernels need none and raise at the launch, so there is nothing to
// do for them.
template <void (*operation)(const Tensor&)>
std::optional<c10::IValue> on_workspace(Arguments arguments) {
  const Tensor workspace = arguments[0].toTensor();
  check_workspace(workspace);
  check_contiguous(workspace, "workspace");
  if (workspace.is_cuda()) operation(workspace);
  return std::nullopt;
}

// What can be checked of the arguments of store_value_norms without their sizes.
void check_norm_types(const Tensor& values, const Tensor& slots, const Tensor& norms) {
  check_rank(values, "values", 3, "[tokens, num_kv_heads, head_dim]");
  check_rank(slots, "slots", 1, "[tokens]");
  check_rank(norms, "value_norms", 3, "[num_pages, num_kv_heads, page_size]");
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kBFloat16 || (dtype == at::kHalf && values.is_cuda()),
                   "attention: values has dtype ", dtype, "; expected Float, BFloat16 or, on a GPU, Half");
  check_dtype(slots, "slots", at::kLong, " (torch.int64)");
  check_dtype(norms, "value_norms", at::kFloat, " (torch.float32)");
  for (const auto& [tensor, name] : {std::pair{&slots, "slots"}, std::pair{&norms, "value_norms"}})
    TORCH_CHECK_TYPE(tensor->device() == values.device(), "attention: ", name, " is on ", tensor->device(),
                     ", but values is on ", values.device(), "; put them on one device");
}

std::optional<c10::IValue> store_value_norms(Arguments arguments) {
  const Tensor values = arguments[0].toTensor(), slots = arguments[1].toTensor(),
               norms = arguments[2].toTensor();
  check_norm_types(values, slots, norms);
  check_size(slots, "slots", 0, values.size(0), "the tokens of values");
  check_size(norms, "value_norms", 1, values.size(1), "the KV heads of values");
  check_heads_together(values, "values");
  check_contiguous(slots, "slots");
  check_contiguous(norms, "value_norms");
  const ValueNormsParams params{.tokens = values.size(0),
                                .num_kv_heads = narrow<int32_t>(values.size(1), "num_kv_heads"),
                                .head_dim = narrow<int32_t>(values.size(2), "head_dim"),
                                .dtype = dtype_of(values),
                                .values = values.const_data_ptr(),
                                .value_stride = row_stride(values),
                                .value_norms = norms.mutable_data_ptr<float>(),
                                .num_pages = norms.size(0),
                                .page_size = narrow<int32_t>(norms.size(2), "page_size"),
                                .slots = slots.const_data_ptr<int64_t>()};
  if (values.is_cpu()) {
    kernels::store_value_norms(params, at::in_parallel_region() ? 1 : at::get_num_threads());
  } else {
    store_value_norms_cuda(params, values);
  }
  return std::nullopt;
}

std::optional<c10::IValue> store_value_norms_meta(Arguments arguments) {
  check_norm_types(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor());
  return std::nullopt;
}

std::optional<c10::IValue> attend_meta(Arguments arguments) {
  const Call c = read_call(arguments);
  check_call(c);
  return at::empty_symint(c.query.sym_sizes(), c.query.options());
}

std::optional<c10::IValue> attend_out_meta(Arguments arguments) {
  const Call c = read_call(arguments);
  check_call(c);
  check_out(arguments[arguments.size() - 3].toTensor(), c.query);
  check_workspace(arguments[arguments.size() - 2].toTensor());
  if (const auto rows_read = arguments[arguments.size() - 1].toOptional<Tensor>())
    check_rows_read(*rows_read, c);
  return std::nullopt;
}

std::optional<c10::IValue> on_workspace_meta(Arguments arguments) {
  check_workspace(arguments[0].toTensor());
  return std::nullopt;
}

// An operator's body behind the dispatcher's calling convention, with allot's errors as PyTorch's.
template <std::optional<c10::IValue> (*body)(Arguments)>
void boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::optional<c10::IValue> result;
  try {
    result = body(torch::jit::last(*stack, count));
  } catch (const InvalidArgument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const Unsupported& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, error.what());
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what());
  }
  torch::jit::drop(*stack, count);
  if (result) stack->push_back(*std::move(result));
}

template <std::optional<c10::IValue> (*body)(Arguments)>
torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&boxed<body>>();
}

void implement(torch::Library& library) {
  library.impl("attend", kernel<&attend>());
  library.impl("attend_out", kernel<&attend_out>());
  library.impl("workspace_bytes", kernel<&workspace_bytes>());
  library.impl("store_value_norms", kernel<&store_value_norms>());
  library.impl("reset_workspace", kernel<&on_workspace<&reset_workspace_cuda>>());
  library.impl("check", kernel<&on_workspace<&check_workspace_cuda>>());
}

TORCH_LIBRARY(allot, library) {
  const std::string arguments = kCallArguments;
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  library.def(("attend(" + arguments + ") -> Tensor").c_str(), tags);
  library.def(("attend_out(" + arguments +
               ", Tensor(a!) out, Tensor(b!) workspace, Tensor(c!)? rows_read=None) -> ()")
                  .c_str(),
              tags);
  library.def(("workspace_bytes(" + arguments + ", Tensor? rows_read=None) -> int").c_str());
  library.def("store_value_norms(Tensor values, Tensor slots, Tensor(a!) value_norms) -> ()", tags);
  library.def("reset_workspace(Tensor(a!) workspace) -> ()", tags);
  library.def("check(Tensor(a!) workspace) -> ()", tags);
}

TORCH_LIBRARY_IMPL(allot, CPU, library) {
  implement(library);
}

TORCH_LIBRARY_IMPL(allot, CUDA, library) {
  implement(library);
}

// workspace_bytes has no meta kernel: its number cannot be computed without the device.
TORCH_LIBRARY_IMPL(allot, Meta, library) {
  library.impl("attend", kernel<&attend_meta>());
  library.impl("attend_out", kernel<&attend_out_meta>());
  library.impl("store_value_norms", kernel<&store_value_norms_meta>());
  library.impl("reset_workspace", kernel<&on_workspace_meta>());
  library.impl("check", kernel<&on_workspace_meta>());
}

TORCH_LIBRARY_IMPL(allot, Autograd, library) {
  library.impl("attend", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace allot::kernels
