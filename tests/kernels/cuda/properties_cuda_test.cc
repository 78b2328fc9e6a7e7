// What must not change a row on the GPU: where its pages lie, who shares the batch, how far the bounds reach,
// which run it is, and whether a CUDA graph replays it. Bytes are compared.
#include <algorithm>

#include "captured_graph.h"
#include "cuda_launch.h"
#include "oracle.h"
#include "tests/kernels/methods.h"

namespace allot::kernels {
namespace {

using testing::CapturedGraph;
using testing::CudaLaunch;
using testing::CudaTest;
using testing::Launch;
using testing::LaunchSpec;

class CudaProperties : public CudaTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaProperties, ::testing::ValuesIn(testing::every_estimator()),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

// Odd lengths and every kind of budget, enough samples for flash with tiles of 256.
LaunchSpec decode_launch(Estimator estimator, DType dtype = DType::kBFloat16) {
  return {.sequences = {{1, 1, 8},
                        {1, 17, 5},
                        {1, 97, 8},
                        {1, 128, 0},
                        {1, 257, 100},
                        {1, 129, kDenseBudget},
                        {1, 1500, 16},
                        {1, 3001, 64},
                        {1, 64, 1}},
          .num_q_heads = 8,
          .num_kv_heads = 2,
          .head_dim = 128,
          .page_size = 16,
          .dtype = dtype,
          .estimator = estimator,
          .seed = 23};
}

LaunchSpec prefill_launch(Estimator estimator) {
  LaunchSpec spec = decode_launch(estimator);
  spec.head_dim = 64;
  spec.sequences = {{1, 300, 8}, {70, 70, 8}, {33, 200, 16}, {5, 65, kDenseBudget},
                    {3, 33, 0},  {2, 2, 8},   {1, 1, 4}};
  return spec;
}

std::vector<unsigned char> bytes_of(Launch& launch) {
  CudaLaunch cuda(launch);
  cuda.run();
  return cuda.output_bytes();
}

TEST_P(CudaProperties, PageOrderAndPageSizeChangeNothing) {
  for (LaunchSpec spec : {decode_launch(GetParam()), prefill_launch(GetParam())}) {
    std::vector<unsigned char> expected;
    for (const int32_t page_size : {16, 32, 48, 64, 128, 3008}) {
      for (const uint32_t page_seed : {1u, 2u}) {
        spec.page_size = page_size;
        spec.page_seed = page_seed;
        Launch launch(spec);
        const std::vector<unsigned char> bytes = bytes_of(launch);
        if (expected.empty()) expected = bytes;
        EXPECT_TRUE(bytes == expected) << "page_size " << page_size << " page seed " << page_seed << ", "
                                       << spec.sequences.size() << " sequences";
      }
    }
  }
}

TEST_P(CudaProperties, RunsGiveTheSameBytes) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    LaunchSpec spec = decode_launch(GetParam(), dtype);
    for (int32_t b = 0; b < 200; ++b) spec.sequences.push_back({1, 40 + 3 * b, 8});
    Launch launch(spec);
    CudaLaunch cuda(launch);
    cuda.run();
    const std::vector<unsigned char> expected = cuda.output_bytes();
    for (int run = 0; run < 20; ++run) {
      cuda.attend();
      cuda.check();
      cuda.output();
      ASSERT_TRUE(cuda.output_bytes() == expected) << "run " << run << " " << name(dtype);
    }
  }
}

// Largest element distance when bytes differ: says whether rounding or another key is to blame.
double distance(const std::vector<double>& a, const double* b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Each sequence of a batch alone, under the batch's largest budget and otherwise its own tight bounds.
void expect_rows_of_their_own(const LaunchSpec& spec) {
  Launch batch(spec);
  CudaLaunch together(batch);
  const std::vector<double> out = together.run();
  for (int64_t b = 0; b < batch.params.batch; ++b) {
    LaunchSpec alone_spec = spec;
    alone_spec.sequences = {spec.sequences[b]};
    Launch alone(alone_spec);
    alone.copy_sequence(batch, b, 0);
    LaunchBounds bounds = testing::tight_bounds(alone.params);
    bounds.max_budget = together.bounds.max_budget;
    CudaLaunch cuda(alone, bounds);
    const std::vector<double> row = cuda.run();
    const int64_t element_bytes = size_of(spec.dtype);
    const int64_t first = batch.params.query_start[b] * cuda.query_elements();
    EXPECT_TRUE(std::equal(cuda.output_bytes().begin(), cuda.output_bytes().end(),
                           together.output_bytes().begin() + first * element_bytes))
        << name(spec.estimator) << " sequence " << b << " with " << spec.sequences[b].queries
        << " queries, length " << spec.sequences[b].length << ", budget " << spec.sequences[b].budget
        << ": elements differ by up to " << distance(row, out.data() + first);
  }
}

TEST_P(CudaProperties, BatchMatesChangeNothingInDecode) {
  LaunchSpec spec = decode_launch(GetParam());
  for (int32_t b = 0; b < 150; ++b) spec.sequences.push_back({1, 30 + b, 8});
  expect_rows_of_their_own(spec);
}

// Sequences that decode run alone as decode launches here.
TEST_P(CudaProperties, BatchMatesChangeNothingInPrefill) {
  expect_rows_of_their_own(prefill_launch(GetParam()));
}

TEST_P(CudaProperties, APromptCutInTwoHasTheSameRows) {
  LaunchSpec spec = prefill_launch(GetParam());
  spec.sequences = {{150, 150, 16}};
  Launch whole(spec);
  CudaLaunch whole_cuda(whole);
  const std::vector<double> out = whole_cuda.run();
  spec.sequences = {{40, 150, 16}, {1, 9, 3}};
  Launch rest(spec);
  rest.copy_sequence(whole, 0, 0);
  CudaLaunch rest_cuda(rest);
  const std::vector<double> part = rest_cuda.run();
  const int64_t row_bytes = rest_cuda.query_elements() * size_of(spec.dtype);
  EXPECT_TRUE(std::equal(rest_cuda.output_bytes().begin(), rest_cuda.output_bytes().begin() + 40 * row_bytes,
                         whole_cuda.output_bytes().begin() + 110 * row_bytes))
      << "elements differ by up to "
      << distance({part.begin(), part.begin() + 40 * rest_cuda.query_elements()},
                  out.data() + 110 * rest_cuda.query_elements());
}

TEST_P(CudaProperties, WiderBoundsChangeNothing) {
  LaunchSpec small = decode_launch(GetParam());
  for (testing::Sequence& sequence : small.sequences) sequence.budget = sequence.length > 2000 ? 12 : 8;
  for (const LaunchSpec& spec : {decode_launch(GetParam()), prefill_launch(GetParam()), small}) {
    Launch launch(spec);
    LaunchBounds bounds = testing::tight_bounds(launch.params);
    CudaLaunch tight(launch, bounds);
    const std::vector<double> expected = tight.run();
    // The page table's room, where nothing may be read beyond each length, limits max_length.
    bounds.max_length = launch.params.max_pages * launch.params.page_size;
    bounds.max_queries += 5;
    bounds.any_dense = true;
    CudaLaunch wide(launch, bounds);
    const std::vector<double> out = wide.run();
    EXPECT_TRUE(wide.output_bytes() == tight.output_bytes())
        << spec.sequences.size() << " sequences, max_budget " << bounds.max_budget
        << ": elements differ by up to " << distance(out, expected.data());
  }
}

// Changes of a decode step between replays of a graph: lengths, budgets, draws and pages.
TEST_P(CudaProperties, AGraphReplaysWithTheLengthsBudgetsAndDrawsOfTheMoment) {
  LaunchSpec spec = decode_launch(GetParam());
  spec.sequences = {{1, 700, 8}, {1, 700, 8}, {1, 700, 8}, {1, 700, 8}};
  Launch launch(spec);
  const LaunchBounds bounds{
      .num_queries = 4, .max_queries = 1, .max_length = 700, .max_budget = 64, .any_dense = true};
  std::vector<int32_t> lengths = {1, 64, 300, 699};
  std::vector<int32_t> pages(launch.params.page_table,
                             launch.params.page_table + 4 * launch.params.max_pages);
  launch.params.lengths = lengths.data();
  launch.params.page_table = pages.data();
  CudaLaunch captured(launch, bounds);
  captured.run();  // allocates the workspace, loads the kernels

  CapturedGraph graph(captured.stream(), [&] { captured.queue(); });
  for (int step = 0; step < 4; ++step) {
    lengths = {1 + step, 64 + step, 300 - 99 * step, 697 + step};
    launch.budgets = {8 + step, step == 1 ? kDenseBudget : 30, step == 2 ? 0 : 3, 64 - step};
    for (size_t b = 0; b < 4; ++b) launch.draws[b].question = static_cast<uint32_t>(100 * step + b);
    if (step == 3) {  // the first two sequences trade their caches
      std::swap_ranges(pages.begin(), pages.begin() + launch.params.max_pages,
                       pages.begin() + launch.params.max_pages);
    }
    captured.upload();
    graph.launch();
    captured.check();
    captured.output();

    CudaLaunch fresh(launch, bounds);
    fresh.run();
    EXPECT_TRUE(captured.output_bytes() == fresh.output_bytes()) << "step " << step;
  }
}

// A workspace serves one launch after the other, of other estimators too.
TEST_P(CudaProperties, WhatALaunchLeavesInTheWorkspaceChangesNothing) {
  Launch launch(decode_launch(GetParam()));
  CudaLaunch cuda(launch);
  cuda.run();
  const std::vector<unsigned char> expected = cuda.output_bytes();
  for (int run = 0; run < 3; ++run) {
    cuda.queue();
    cuda.check();
    cuda.output();
    EXPECT_TRUE(cuda.output_bytes() == expected) << "run " << run;
  }
}

// The layer and the seed are coordinates of the draws: a key taken depends on them, unless the estimator
// draws nothing.
TEST_P(CudaProperties, OtherDrawsGiveOtherSamplesWhereAnEstimatorDraws) {
  const bool same = !row_of(GetParam()).draws;
  Launch launch(decode_launch(GetParam()));
  const std::vector<unsigned char> expected = bytes_of(launch);
  launch.params.layer = 6;
  const std::vector<unsigned char> other_layer = bytes_of(launch);
  launch.params.layer = 5;
  for (SequenceDraws& draws : launch.draws) draws.key.sampling_seed += 1;
  const std::vector<unsigned char> other_seed = bytes_of(launch);
  EXPECT_EQ(other_layer == expected, same);
  EXPECT_EQ(other_seed == expected, same);
  EXPECT_EQ(other_seed == other_layer, same);
}

}  // namespace
}  // namespace allot::kernels
