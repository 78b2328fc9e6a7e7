// The PyTorch operators on CPU and meta tensors against the kernels they call: same bytes out, every wrong
// argument named. What needs a GPU or torch.compile is in ops_test.py.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/launch.h"
#include "tests/kernels/methods.h"
#include "tests/names_matcher.h"

namespace allot::kernels {
namespace {

using at::Tensor;
using testing::Launch;
using testing::LaunchSpec;

// The arguments of allot::attend in the order of its schema.
struct CallArguments {
  Tensor query, key_pages, value_pages, page_table, query_start, lengths;
  std::optional<Tensor> budgets, draws;
  std::string estimator = "exact";
  std::optional<double> scale;
  int64_t layer = 0, tile = 256;
  std::string score_stage = "exact";
  int64_t score_budget = 0;
  bool mean_group_query = false;
  int64_t max_queries = 1;
  std::optional<int64_t> max_length, max_budget;
  bool any_dense = false;
  std::string unit = "samples";
  std::optional<Tensor> value_norms;

  torch::jit::Stack stack() const {
    return {query,       key_pages,    value_pages,      page_table,  query_start, lengths,
            budgets,     draws,        estimator,        scale,       layer,       tile,
            score_stage, score_budget, mean_group_query, max_queries, max_length,  max_budget,
            any_dense,   unit,         value_norms};
  }
};

// Calls an operator by name; gives its result, or none.
c10::IValue call(const std::string& name, torch::jit::Stack stack) {
  static void* const library = dlopen(ALLOT_TORCH_LIBRARY, RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  c10::Dispatcher::singleton().findSchemaOrThrow(("allot::" + name).c_str(), "").callBoxed(&stack);
  return stack.empty() ? c10::IValue() : stack.front();
}

at::ScalarType scalar_type(DType dtype) {
  return dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16;
}

Tensor view(const void* data, std::vector<int64_t> sizes, at::ScalarType dtype) {
  return at::from_blob(const_cast<void*>(data), sizes, dtype);
}

// A launch's memory as tensors; the launch must outlive them.
CallArguments arguments_of(const Launch& launch) {
  const AttentionParams& p = launch.params;
  const at::ScalarType dtype = scalar_type(p.dtype);
  const std::vector<int64_t> pool = {p.num_pages, p.num_kv_heads, p.page_size, p.head_dim};
  CallArguments c;
  c.query = at::from_blob(const_cast<void*>(p.query), {launch.num_queries(), p.num_q_heads, p.head_dim},
                          {p.query_stride, p.head_dim, 1}, at::TensorOptions(dtype));
  c.key_pages = view(p.key_pages, pool, dtype);
  c.value_pages = view(p.value_pages, pool, dtype);
  c.page_table = view(p.page_table, {p.batch, p.max_pages}, at::kInt);
  c.query_start = view(p.query_start, {p.batch + 1}, at::kLong);
  c.lengths = view(p.lengths, {p.batch}, at::kInt);
  c.budgets = view(p.budgets, {p.batch}, at::kInt);
  c.draws = view(p.draws, {p.batch, 3}, at::kInt);
  c.estimator = std::string(name(p.method.estimator));
  c.unit = std::string(name(p.method.unit));
  if (uses_value_norms(p.method))
    c.value_norms = view(p.value_norms, {p.num_pages, p.num_kv_heads, p.page_size}, at::kFloat);
  c.layer = p.layer;
  c.tile = p.method.tile;
  c.score_stage = std::string(name(p.method.score_stage));
  c.score_budget = p.method.score_budget;
  c.mean_group_query = p.method.mean_group_query;
  c.max_queries = 100;
  c.max_budget = 1000;
  c.any_dense = true;
  return c;
}

std::vector<double> elements(const Tensor& tensor) {
  const Tensor wide = tensor.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// Ragged, prefill beside decode, a dense and an empty budget beside sampled ones. The operators know no heads
// elsewhere.
LaunchSpec ragged(Estimator estimator, DType dtype) {
  return {.sequences = {{.queries = 1, .length = 97, .budget = 40},
                        {.queries = 5, .length = 33, .budget = 0},
                        {.queries = 17, .length = 17, .budget = 9},
                        {.queries = 1, .length = 1, .budget = kDenseBudget}},
          .num_q_heads = 14,
          .num_kv_heads = 2,
          .head_dim = 64,
          .dtype = dtype,
          .estimator = estimator,
          .kv_heads_before = 0};
}

CallArguments sampled(const Launch& launch) {
  CallArguments c = arguments_of(launch);
  c.estimator = "sys";
  return c;
}

TEST(TorchBinding, ResultIsTheOneOfTheCpuKernels) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Estimator estimator : testing::every_estimator()) {
      Launch launch(ragged(estimator, dtype));
      launch.params.method.tile = 16;
      const std::vector<double> expected = launch.run(cpu::best_isa());
      const Tensor out = call("attend", arguments_of(launch).stack()).toTensor();
      EXPECT_EQ(elements(out), expected) << name(estimator) << ", " << name(dtype);
      EXPECT_TRUE(out.is_contiguous());
      EXPECT_EQ(out.scalar_type(), scalar_type(dtype));
    }
  }
}

TEST(TorchBinding, BudgetsCountRowsWhereTheUnitSaysSo) {
  for (const Estimator estimator : {Estimator::kJoint, Estimator::kPooled, Estimator::kLevel}) {
    Launch launch(ragged(estimator, DType::kFloat32));
    const std::vector<double> of_samples = launch.run(cpu::best_isa());
    launch.params.method.unit = BudgetUnit::kRows;
    const std::vector<double> expected = launch.run(cpu::best_isa());
    EXPECT_NE(expected, of_samples) << name(estimator);
    EXPECT_EQ(elements(call("attend", arguments_of(launch).stack()).toTensor()), expected) << name(estimator);
  }
  Launch launch(ragged(Estimator::kSys, DType::kFloat32));
  CallArguments c = arguments_of(launch);
  c.unit = "rows";
  EXPECT_THROW(call("attend", c.stack()), c10::ValueError);
}

TEST(TorchBinding, NormsOfValuesMakeTheirEstimatorChooseByThem) {
  LaunchSpec spec = ragged(Estimator::kJoint, DType::kFloat32);
  spec.sequences[0].budget = 2;  // 14 of 97 rows
  Launch launch(spec);
  const std::vector<double> without = launch.run(cpu::best_isa());
  set_parameter(&launch.params.method, "value-norms", 1);
  const std::vector<double> expected = launch.run(cpu::best_isa());
  EXPECT_NE(expected, without);
  CallArguments c = arguments_of(launch);
  EXPECT_EQ(elements(call("attend", c.stack()).toTensor()), expected);
  c.value_norms.reset();
  EXPECT_EQ(elements(call("attend", c.stack()).toTensor()), without);
}

TEST(TorchBinding, BernoulliScoreStagesPassTheirOptions) {
  for (const bool mean_group_query : {false, true}) {
    for (const ScoreStage stage : {ScoreStage::kBernoulli, ScoreStage::kBernoulliStrat}) {
      Launch launch(ragged(Estimator::kSys, DType::kFloat32));
      launch.params.method.score_stage = stage;
      launch.params.method.score_budget = 24;
      launch.params.method.mean_group_query = mean_group_query;
      const std::vector<double> expected = launch.run(cpu::best_isa());
      EXPECT_EQ(elements(call("attend", arguments_of(launch).stack()).toTensor()), expected) << name(stage);
    }
  }
}

TEST(TorchBinding, DrawsReachTheKernelAsRunSeedSamplingSeedQuestion) {
  Launch launch(ragged(Estimator::kSys, DType::kFloat32));
  launch.draws[0] = {.key = {.run_seed = 0xFFFFFFFFu, .sampling_seed = 7}, .question = 0x80000001u};
  const std::vector<double> expected = launch.run(cpu::best_isa());
  CallArguments c = arguments_of(launch);
  std::vector<uint32_t> numbers = {0xFFFFFFFFu, 7, 0x80000001u};
  for (size_t b = 1; b < launch.draws.size(); ++b) {
    numbers.insert(numbers.end(), {launch.draws[b].key.run_seed, launch.draws[b].key.sampling_seed,
                                   launch.draws[b].question});
  }
  c.draws = view(numbers.data(), {launch.params.batch, 3}, at::kUInt32);
  EXPECT_EQ(elements(call("attend", c.stack()).toTensor()), expected);
}

TEST(TorchBinding, ScaleIsOneOverTheRootOfHeadDimUnlessGiven) {
  Launch launch(ragged(Estimator::kExact, DType::kFloat32));
  CallArguments c = arguments_of(launch);
  const std::vector<double> by_default = elements(call("attend", c.stack()).toTensor());
  c.scale = 0.125;  // head_dim is 64
  EXPECT_EQ(elements(call("attend", c.stack()).toTensor()), by_default);
  c.scale = 0.25;
  EXPECT_NE(elements(call("attend", c.stack()).toTensor()), by_default);
}

TEST(TorchBinding, OutVariantWritesTheTensorGiven) {
  Launch launch(ragged(Estimator::kSys, DType::kBFloat16));
  const CallArguments c = arguments_of(launch);
  torch::jit::Stack sizes = c.stack();
  sizes.emplace_back();
  EXPECT_EQ(call("workspace_bytes", sizes).toInt(), 0);
  call("reset_workspace", {at::empty({0}, at::kByte)});
  const Tensor out = at::full_like(c.query.contiguous(), 7);
  torch::jit::Stack stack = c.stack();
  stack.insert(stack.end(), {out, at::empty({0}, at::kByte), c10::IValue()});
  EXPECT_TRUE(call("attend_out", stack).isNone());
  EXPECT_EQ(elements(out), launch.run(cpu::best_isa()));
  call("check", {at::empty({0}, at::kByte)});
}

TEST(TorchBinding, RowsReadAreAddedToThoseThatTheTensorHas) {
  for (const Estimator estimator : {Estimator::kSys, Estimator::kJoint}) {
    Launch launch(ragged(estimator, DType::kFloat32));
    const CallArguments c = arguments_of(launch);
    std::vector<int64_t> expected(4);
    launch.params.rows_read = expected.data();
    const std::vector<double> out_of_kernels = launch.run(cpu::best_isa());
    ASSERT_GT(expected[0], 0);
    ASSERT_EQ(expected[1], 0) << "a budget of 0";
    ASSERT_EQ(expected[3], 0) << "a dense budget";
    const Tensor out = at::full_like(c.query.contiguous(), 7);
    const Tensor rows = at::full({4}, 100, at::kLong);
    torch::jit::Stack stack = c.stack();
    stack.insert(stack.end(), {out, at::empty({0}, at::kByte), rows});
    call("attend_out", stack);
    EXPECT_EQ(elements(out), out_of_kernels);
    for (int64_t b = 0; b < 4; ++b) EXPECT_EQ(rows.const_data_ptr<int64_t>()[b], 100 + expected[b]) << b;
  }
}

TEST(TorchBinding, MetaTensorsGiveTheShapeAndAreCheckedAlike) {
  Launch launch(ragged(Estimator::kSys, DType::kBFloat16));
  CallArguments c = arguments_of(launch);
  const auto to_meta = [](const Tensor& tensor) { return tensor.to(at::kMeta); };
  for (Tensor* tensor : {&c.query, &c.key_pages, &c.value_pages, &c.page_table, &c.query_start, &c.lengths}) {
    *tensor = to_meta(*tensor);
  }
  c.budgets = to_meta(*c.budgets);
  c.draws = to_meta(*c.draws);
  const Tensor out = call("attend", c.stack()).toTensor();
  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{24, 14, 64}));
  EXPECT_TRUE(out.is_contiguous());
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  c.lengths = at::empty({3}, c.lengths.options());
  EXPECT_THROW(call("attend", c.stack()), c10::ValueError);
}

// Each wrong argument and what its message must name: the argument, what it was, what was expected.
struct Fault {
  const char* what;
  std::function<void(CallArguments&)> cause;
  std::vector<std::string> named;
};

template <class Error>
void expect_faults(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    const Launch launch(ragged(Estimator::kSys, DType::kBFloat16));
    CallArguments c = sampled(launch);
    fault.cause(c);
    try {
      call("attend", c.stack());
      ADD_FAILURE() << fault.what << ": no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), NamesAll(fault.named)) << fault.what;
    } catch (const std::exception& error) {
      ADD_FAILURE() << fault.what << ": another type of error: " << error.what();
    }
  }
}

TEST(TorchBinding, WrongShapesAndValuesAreNamedWithWhatWasExpected) {
  expect_faults<c10::ValueError>({
      {"query rank", [](auto& c) { c.query = c.query[0]; }, {"query", "[14, 64]", "3"}},
      {"key rank", [](auto& c) { c.key_pages = c.key_pages[0]; }, {"key_pages", "[num_pages, num_kv_heads,"}},
      {"head_dim",
       [](auto& c) {
         c.query = at::empty({24, 14, 32}, c.query.options());
       },
       {"key_pages", "32", "3", "head_dim", "query"}},
      {"values unlike keys",
       [](auto& c) {
         c.value_pages = at::empty({2, 2, 16, 64}, c.query.options());
       },
       {"value_pages", "[2, 2, 16, 64]", "key_pages"}},
      {"keys with strides",
       [](auto& c) { c.key_pages = c.key_pages.transpose(1, 2).contiguous().transpose(1, 2); },
       {"key_pages", "strides", "contiguous"}},
      {"heads apart",
       [](auto& c) { c.query = c.query.transpose(0, 1).contiguous().transpose(0, 1); },
       {"query", "strides", "[any, 64, 1]"}},
      {"rows of the page table",
       [](auto& c) { c.page_table = c.page_table.slice(0, 0, 3); },
       {"page_table", "4"}},
      {"query_start",
       [](auto& c) { c.query_start = c.query_start.slice(0, 0, 4); },
       {"query_start", "[4]", "5"}},
      {"budgets", [](auto& c) { c.budgets = c.budgets->slice(0, 0, 2); }, {"budgets", "[2]", "4"}},
      {"draws", [](auto& c) { c.draws = c.draws->slice(1, 0, 2).contiguous(); }, {"draws", "[4, 2]", "3"}},
      {"no budgets", [](auto& c) { c.budgets.reset(); }, {"sys", "budgets", "None"}},
      {"no max_budget", [](auto& c) { c.max_budget.reset(); }, {"sys", "max_budget", "None"}},
      {"no draws", [](auto& c) { c.draws.reset(); }, {"draws", "null"}},
      {"estimator", [](auto& c) { c.estimator = "guess"; }, {"guess", "threshold"}},
      {"score stage", [](auto& c) { c.score_stage = "guess"; }, {"guess", "bernoulli-strat"}},
      {"scale", [](auto& c) { c.scale = -1; }, {"scale", "-1"}},
      {"layer", [](auto& c) { c.layer = -1; }, {"layer", "-1"}},
      {"tile", [](auto& c) { c.tile = int64_t{1} << 40; }, {"tile", "1099511627776"}},
      {"max_length", [](auto& c) { c.max_length = 96; }, {"sequence 0", "97", "max_length", "96"}},
      {"max_queries", [](auto& c) { c.max_queries = 16; }, {"sequence 2", "17", "max_queries", "16"}},
      {"max_budget", [](auto& c) { c.max_budget = 39; }, {"sequence 0", "40", "max_budget", "39"}},
      {"any_dense", [](auto& c) { c.any_dense = false; }, {"sequence 3", "-1", "any_dense"}},
      {"rows of query",
       [](auto& c) { c.query = c.query.slice(0, 0, 20); },
       {"query_start[4]", "24", "query", "20"}},
  });
}

TEST(TorchBinding, WrongTypesAndDevicesAreTypeErrors) {
  expect_faults<c10::TypeError>({
      {"query", [](auto& c) { c.query = c.query.to(at::kDouble); }, {"query", "dtype", "Double", "BFloat16"}},
      {"keys",
       [](auto& c) { c.key_pages = c.key_pages.to(at::kFloat); },
       {"key_pages", "dtype", "Float", "BFloat16"}},
      {"lengths",
       [](auto& c) { c.lengths = c.lengths.to(at::kLong); },
       {"lengths", "dtype", "Long", "torch.int32"}},
      {"query_start",
       [](auto& c) { c.query_start = c.query_start.to(at::kInt); },
       {"query_start", "dtype", "Int", "torch.int64"}},
      {"draws",
       [](auto& c) { c.draws = c.draws->to(at::kLong); },
       {"draws", "dtype", "Long", "torch.uint32"}},
  });
}

TEST(TorchBinding, WhatHasNoKernelIsNotImplemented) {
  expect_faults<c10::NotImplementedError>({
      {"float16",
       [](auto& c) {
         for (Tensor* tensor : {&c.query, &c.key_pages, &c.value_pages}) *tensor = tensor->to(at::kHalf);
       },
       {"float16", "bfloat16", "float32"}},
  });
}

TEST(TorchBinding, OutOfTheWrongShapeOrTypeIsRefused) {
  const Launch launch(ragged(Estimator::kSys, DType::kBFloat16));
  const CallArguments c = sampled(launch);
  const auto run = [&](const Tensor& out, const Tensor& workspace, const c10::IValue& rows_read = {}) {
    torch::jit::Stack stack = c.stack();
    stack.insert(stack.end(), {out, workspace, rows_read});
    call("attend_out", stack);
  };
  const Tensor workspace = at::empty({0}, at::kByte);
  const at::TensorOptions bfloat16 = c.query.options();
  EXPECT_THROW(run(at::empty({24, 14, 32}, bfloat16), workspace), c10::ValueError);
  EXPECT_THROW(run(at::empty({24, 14, 64}, at::kFloat), workspace), c10::TypeError);
  EXPECT_THROW(run(at::empty({24, 64, 14}, bfloat16).transpose(1, 2), workspace), c10::ValueError);
  EXPECT_THROW(run(at::empty({24, 14, 64}, bfloat16), at::empty({0}, at::kFloat)), c10::TypeError);
  const Tensor out = at::empty({24, 14, 64}, bfloat16);
  EXPECT_THROW(run(out, workspace, at::zeros({4}, at::kInt)), c10::TypeError);
  EXPECT_THROW(run(out, workspace, at::zeros({3}, at::kLong)), c10::ValueError);
  EXPECT_THROW(run(out, workspace, at::zeros({8}, at::kLong).slice(0, 0, 8, 2)), c10::ValueError);
  run(out, workspace, at::zeros({4}, at::kLong));
  run(out, workspace);
}

TEST(TorchBinding, EmptyBatchGivesAnEmptyResult) {
  Launch launch(ragged(Estimator::kExact, DType::kFloat32));
  CallArguments c = arguments_of(launch);
  const int64_t start = 0;
  c.query = at::empty({0, 14, 64}, at::kFloat);
  c.page_table = at::empty({0, 3}, at::kInt);
  c.query_start = view(&start, {1}, at::kLong);
  c.lengths = at::empty({0}, at::kInt);
  c.budgets.reset();
  c.draws.reset();
  EXPECT_EQ(call("attend", c.stack()).toTensor().sizes(), (std::vector<int64_t>{0, 14, 64}));
}

}  // namespace
}  // namespace allot::kernels
