#include "app/files/states_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/temporary_directory.h"
#include "evaluation/variance.h"
#include "kernels/sampling_variance.h"
#include "model/safetensors_writer.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> elements;
};

std::filesystem::path write(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
                            model::TensorDType dtype = model::TensorDType::kF32) {
  std::vector<model::TensorHeader> headers;
  for (const Tensor& tensor : tensors) headers.push_back({tensor.name, dtype, tensor.shape});
  model::SafetensorsWriter writer(path, headers);
  for (const Tensor& tensor : tensors) writer.write(std::as_bytes(std::span(tensor.elements)));
  writer.finish();
  return path;
}

// Two layers of two heads and one KV head, three keys of two elements.
std::vector<Tensor> two_layers() {
  const std::vector<float> keys = {0, 0, 1, 0, 0, 2};
  return {{"layers.0.query", {2, 2}, {1, 1, 3, 0}},
          {"layers.0.key", {1, 3, 2}, keys},
          {"layers.0.value", {1, 3, 2}, {1, 2, 3, 4, 5, 6}},
          {"layers.1.query", {2, 2}, {0, 0, 0, 4}},
          {"layers.1.key", {1, 3, 2}, keys},
          {"layers.1.value", {1, 3, 2}, {7, 8, 9, 10, 11, 12}}};
}

TEST(StatesFile, HasTheScoresAndValuesOfEveryHead) {
  const TemporaryDirectory folder;
  const StatesFile file(write(folder.path() / "states", two_layers()));
  const evaluation::AttentionStates& states = file.states();
  EXPECT_EQ(states.layers.size(), 2u);
  EXPECT_EQ(states.all_heads(), 4);
  EXPECT_EQ(states.keys, 3);
  EXPECT_THAT(states.scores(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(states.scores(1), ElementsAre(0, 3, 0));
  EXPECT_THAT(states.scores(3), ElementsAre(0, 0, 8));
  EXPECT_THAT(states.values(1), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(states.values(2), ElementsAre(7, 8, 9, 10, 11, 12));
}

TEST(StatesFile, GivesWhatAnalysesMeasure) {
  const TemporaryDirectory folder;
  const StatesFile file(write(folder.path() / "states", two_layers()));
  const evaluation::VarianceSetting setting{.samples = {1, 4},
                                            .replicates = 400,
                                            .spacing = evaluation::Spacing::kStratified,
                                            .states = &file.states()};
  double expected = 0;
  for (int64_t head = 0; head < 4; ++head) {
    std::vector<double> weights = file.states().scores(head);
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w);
    for (double& w : weights) w /= sum;
    expected += kernels::strat_variance<float>(weights, file.states().values(head), 4) / 4;
  }
  const auto measured = evaluation::measure_variance(setting);
  EXPECT_NEAR(measured[1].squared_error.formula.value(), expected, 1e-9);
  EXPECT_LT(std::abs(measured[1].squared_error.z().value()), 3.5);
}

TEST(StatesFile, OfOtherTensorsIsRefused) {
  const TemporaryDirectory folder;
  int number = 0;
  const auto refused = [&](const std::vector<Tensor>& tensors, const auto& names,
                           model::TensorDType dtype = model::TensorDType::kF32) {
    const auto path = write(folder.path() / std::to_string(number++), tensors, dtype);
    EXPECT_THAT([&] { StatesFile file(path); }, ThrowsMessage<CorruptFile>(names));
  };
  refused({{"weight", {1}, {1}}}, Names("layers.0.query", "allot_attention.recording"));
  refused(two_layers(), Names("layers.0.query", "I32", "F32"), model::TensorDType::kI32);
  std::vector<Tensor> tensors = two_layers();
  tensors[0].shape = {4};
  refused(tensors, Names("layers.0.query", "[4]", "heads, head_dim"));
  tensors = two_layers();
  tensors[1].shape = {2, 1, 3};
  refused(tensors, Names("layers.0.key", "2, 1, 3"));
  tensors = two_layers();
  tensors[2].shape = {3, 1, 2};
  refused(tensors, Names("layers.0.value", "3, 1, 2", "1, 3, 2"));
  tensors = two_layers();
  tensors[4] = {"layers.1.key", {1, 1, 2}, {0, 0}};
  tensors[5] = {"layers.1.value", {1, 1, 2}, {0, 0}};
  refused(tensors, Names("layers.1.key", "1, 1, 2", "layer 0"));
  tensors = two_layers();
  tensors[3] = {"layers.1.query", {1, 2}, {0, 0}};
  refused(tensors, Names("layers.1.key", "layer 0", "for 2 heads"));
  tensors = two_layers();
  tensors.resize(4);
  refused(tensors, Names("no tensor layers.1.key"));
}

}  // namespace
}  // namespace allot::app
