// The plot of allot ablate: its marks stand where the numbers say.
#include "app/report/ablation_figures.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "episode/samples.h"
#include "tests/app/report/xml.h"

namespace allot::app {
namespace {

using testing::HasSubstr;

// A base that is right on all of ten questions; layer or head i loses i of them.
evaluation::Ablation example(int layers, int kv_heads) {
  const std::vector<double> base(10, 1);
  std::vector<std::vector<double>> scores;
  for (int i = 0; i < layers * std::max(kv_heads, 1); ++i) {
    scores.push_back(base);
    std::fill_n(scores.back().begin(), i, 0);
  }
  return evaluation::make_ablation({}, policy::uniform_schedule(layers, 16), base, scores, kv_heads);
}

TEST(AblationFigures, NameWhatWasAblatedAndGiveKvHeadsTheRoomOfTheirLayer) {
  const evaluation::Ablation layers = example(3, 0), heads = example(3, 2);
  EXPECT_STREQ(ablated_part(layers), "layer");
  EXPECT_STREQ(ablated_part(heads), "KV head");
  EXPECT_EQ(ablated_name(layers.layers[2]), "Layer 2");
  EXPECT_EQ(ablated_name(heads.layers[3]), "Layer 1, KV head 1");
  const auto [from, to] = ablated_room(layers, layers.layers[2]);
  EXPECT_DOUBLE_EQ(from, 2 - kHalfBar);
  EXPECT_DOUBLE_EQ(to, 2 + kHalfBar);
  const auto [left, middle] = ablated_room(heads, heads.layers[2]);
  const auto [same, right] = ablated_room(heads, heads.layers[3]);
  EXPECT_DOUBLE_EQ(left, 1 - kHalfBar);
  EXPECT_DOUBLE_EQ(middle, 1);
  EXPECT_DOUBLE_EQ(same, 1);
  EXPECT_DOUBLE_EQ(right, 1 + kHalfBar);
}

TEST(AblationFigures, ABarIsWhatItsLayerLoses) {
  const Chart chart = ablation_drop_chart(example(4, 0));
  const std::string svg = chart.standalone_svg();
  EXPECT_THAT(svg, HasSubstr("Layer 3: +30.0 points"));
  // From nothing lost to 30 points, whose y is above it.
  const double height = chart.y()(0) - chart.y()(0.3);
  EXPECT_GT(height, 10);
  EXPECT_THAT(svg, HasSubstr(fmt::format("height=\"{:.1f}\"", height)));
  EXPECT_THAT(svg, HasSubstr("base 100.0%"));
}

TEST(AblationFigures, TheFileHasTheScheduleBelowTheLossesOverTheSameLayers) {
  const TemporaryDirectory directory;
  const auto alone = write_ablation_plot(example(4, 2), std::nullopt, directory.path());
  EXPECT_EQ(alone.filename(), "ablation.svg");
  const std::string one = read_file(alone);
  EXPECT_EQ(parse_xml(one).name, "svg");
  const ShownSchedule schedule{.label = "learned.json", .samples = {30, 4, kExactLayer, 2}};
  const std::string both = read_file(write_ablation_plot(example(4, 2), schedule, directory.path()));
  EXPECT_EQ(parse_xml(both).name, "svg");
  EXPECT_GT(both.size(), one.size());
  for (const char* text :
       {"Layer 3, KV head 1: +70.0 points", "Layer 0: 30", "Layer 2: exact", "Samples of learned.json"})
    EXPECT_THAT(both, HasSubstr(text));
  EXPECT_EQ(ablation_drop_chart(example(4, 2)).x()(2),
            beside_chart(schedule, kernels::BudgetUnit::kSamples).x()(2));
}

}  // namespace
}  // namespace allot::app
