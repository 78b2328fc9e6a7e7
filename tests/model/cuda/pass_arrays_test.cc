// Where the arrays of a forward pass lie, what padding holds, and which sizes decode steps are captured for.
#include "model/cuda/pass_arrays.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace allot::model::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// One array of a pass as bytes.
struct Place {
  std::string name;
  const std::byte* data;
  int64_t bytes;
};

std::vector<Place> places_of(const PassShape& shape, const PassArrays& arrays) {
  std::vector<Place> places;
  const auto add = [&](const char* name, const auto* array, int64_t count) {
    places.push_back(
        {name, reinterpret_cast<const std::byte*>(array), count * static_cast<int64_t>(sizeof *array)});
  };
  add("tokens", arrays.tokens, shape.rows);
  add("chosen_before", arrays.chosen_before, shape.rows);
  add("positions", arrays.positions, shape.rows);
  add("slots", arrays.slots, shape.rows);
  add("query_start", arrays.query_start, shape.sequences + 1);
  add("cum_queries", arrays.cum_queries, shape.sequences + 1);
  add("cum_keys", arrays.cum_keys, shape.sequences + 1);
  add("lengths", arrays.lengths, shape.sequences);
  add("page_table", arrays.page_table, shape.sequences * shape.max_pages);
  add("budgets", arrays.budgets, shape.num_layers * shape.sequences);
  add("draws", arrays.draws, shape.sequences);
  add("output_rows", arrays.output_rows, shape.outputs);
  add("rules", arrays.rules, shape.outputs);
  add("token_draws", arrays.token_draws, shape.outputs);
  add("token_positions", arrays.token_positions, shape.outputs);
  add("token_seen_rows", arrays.token_seen_rows, shape.outputs);
  if (shape.apart == 0) return places;
  add("queries.lengths", arrays.queries.lengths, shape.apart);
  add("queries.page_table", arrays.queries.page_table, shape.apart * shape.max_pages);
  add("queries.budgets", arrays.queries.budgets, shape.num_layers * shape.apart);
  add("queries.draws", arrays.queries.draws, shape.apart);
  return places;
}

// Memory for a pass, aligned as device memory is and filled with bytes that no array may keep.
class Block {
 public:
  explicit Block(const PassShape& shape)
      : bytes_(lay_out_pass(shape, nullptr).bytes),
        memory_(static_cast<std::byte*>(operator new (bytes_ + 1, std::align_val_t{256}))) {
    std::fill_n(memory_.get(), bytes_ + 1, std::byte{0xCD});
    arrays_ = lay_out_pass(shape, memory_.get()).arrays;
  }
  std::byte* base() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }
  const PassArrays& arrays() const { return arrays_; }
  bool byte_after_is_untouched() const { return memory_.get()[bytes_] == std::byte{0xCD}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { operator delete (memory, std::align_val_t{256}); }
  };
  int64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
  PassArrays arrays_;
};

const std::vector<PassShape> kShapes{
    {.rows = 1, .sequences = 1, .outputs = 1, .max_pages = 1, .num_layers = 1},
    {.rows = 64, .sequences = 3, .outputs = 2, .max_pages = 7, .num_layers = 2},
    {.rows = 320, .sequences = 320, .outputs = 320, .max_pages = 129, .num_layers = 28},
    {.rows = 2112, .sequences = 1, .outputs = 0, .max_pages = 17, .num_layers = 3},
    {.rows = 64, .sequences = 3, .outputs = 2, .max_pages = 7, .num_layers = 2, .apart = 61},
};

TEST(LayOutPass, PlacesArraysOneAfterTheOtherAtMultiplesOf256Bytes) {
  for (const PassShape& shape : kShapes) {
    const Block block(shape);
    const std::byte* end = block.base();
    for (const Place& place : places_of(shape, block.arrays())) {
      EXPECT_EQ((place.data - block.base()) % 256, 0) << place.name;
      EXPECT_GE(place.data, end) << place.name << " overlaps the array before it";
      end = place.data + place.bytes;
    }
    EXPECT_LE(end, block.base() + block.bytes());
  }
}

TEST(LayOutPass, TakesNoMoreThanTheArraysAndTheirAlignment) {
  for (const PassShape& shape : kShapes) {
    const Block block(shape);
    int64_t needed = 0;
    for (const Place& place : places_of(shape, block.arrays())) needed += place.bytes + 255;
    EXPECT_LE(block.bytes(), needed);
  }
}

TEST(LayOutPass, PlacesTheArraysOfEqualShapesAtEqualOffsetsInEveryBlock) {
  for (const PassShape& shape : kShapes) {
    const Block host(shape), device(shape);
    const std::vector<Place> a = places_of(shape, host.arrays()), b = places_of(shape, device.arrays());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].data - host.base(), b[i].data - device.base()) << a[i].name;
    }
    EXPECT_EQ(host.bytes(), device.bytes());
  }
}

// --- What is written

constexpr DrawKey kKey{.run_seed = 3, .sampling_seed = 4};

// Two sequences in 2 layers: tokens 4 and 5 of one on pages 9, 2 and 5, tokens 0 to 2 of one on page 7. Slots
// are of other pages, to tell the arrays apart.
ForwardBatch two_sequences() {
  ForwardBatch batch;
  batch.tokens = {11, 12, 21, 22, 23};
  batch.positions = {4, 5, 0, 1, 2};
  batch.slots = {80, 81, 112, 113, 114};
  batch.query_start = {0, 2, 5};
  batch.lengths = {6, 3};
  batch.page_table = {9, 2, 5, 7, 0, 0};
  batch.max_pages = 3;
  batch.budgets = {8, kernels::kDenseBudget, 6, 5};
  batch.draws = {{kKey, 40}, {kKey, 41}};
  batch.output_rows = {1, 4};
  return batch;
}

const std::vector<TokenChoice> kChoices{
    {.slot = 6,
     .sampling = {.temperature = 0.5, .top_p = 0.25, .repetition_penalty = 1.5},
     .draws = {kKey, 40},
     .position = 5},
    {.slot = 2, .sampling = {.temperature = 0.75}, .draws = {kKey, 41}, .position = 2}};

const PassShape kLarger{.rows = 8, .sequences = 4, .outputs = 3, .max_pages = 5, .num_layers = 2};
const PassShape kExact{.rows = 5, .sequences = 2, .outputs = 2, .max_pages = 3, .num_layers = 2};

template <class T>
std::span<const T> view(const T* array, int64_t count) {
  return {array, static_cast<size_t>(count)};
}

template <class T, class Get>
auto field(const T* array, int64_t count, Get get) {
  std::vector<decltype(get(*array))> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(get(array[i]));
  return values;
}

TEST(FillPass, CopiesABatchThatFillsTheShape) {
  const ForwardBatch batch = two_sequences();
  const Block block(kExact);
  fill_pass(kExact, batch, kChoices, block.arrays());
  const PassArrays& arrays = block.arrays();
  EXPECT_THAT(view(arrays.tokens, 5), ElementsAreArray(batch.tokens));
  EXPECT_THAT(view(arrays.positions, 5), ElementsAreArray(batch.positions));
  EXPECT_THAT(view(arrays.slots, 5), ElementsAreArray(batch.slots));
  EXPECT_THAT(view(arrays.query_start, 3), ElementsAreArray(batch.query_start));
  EXPECT_THAT(view(arrays.cum_queries, 3), ElementsAreArray(batch.query_start));
  EXPECT_THAT(view(arrays.cum_keys, 3),
              ElementsAre(0, batch.lengths[0], batch.lengths[0] + batch.lengths[1]));
  EXPECT_THAT(view(arrays.lengths, 2), ElementsAreArray(batch.lengths));
  EXPECT_THAT(view(arrays.page_table, 6), ElementsAreArray(batch.page_table));
  EXPECT_THAT(view(arrays.budgets, 4), ElementsAreArray(batch.budgets));
  EXPECT_THAT(field(arrays.draws, 2, [](const auto& draws) { return draws.question; }), ElementsAre(40, 41));
  EXPECT_THAT(field(arrays.draws, 2, [](const auto& draws) { return draws.key.sampling_seed; }), Each(4));
  EXPECT_THAT(view(arrays.output_rows, 2), ElementsAre(1, 4));
  EXPECT_TRUE(block.byte_after_is_untouched());
}

TEST(FillPass, NamesTheChoicesThatMakeTokensAndNoneForPadding) {
  ForwardBatch batch = two_sequences();
  const Block block(kLarger);
  fill_pass(kLarger, batch, kChoices, block.arrays());
  EXPECT_THAT(view(block.arrays().chosen_before, 8), Each(-1));
  batch.chosen_before = {-1, 7, -1, -1, 0};
  fill_pass(kLarger, batch, kChoices, block.arrays());
  EXPECT_THAT(view(block.arrays().chosen_before, 8), ElementsAre(-1, 7, -1, -1, 0, -1, -1, -1));
}

TEST(FillPass, MarksRowsBeyondTheBatchAsPadding) {
  const Block block(kLarger);
  fill_pass(kLarger, two_sequences(), kChoices, block.arrays());
  const PassArrays& arrays = block.arrays();
  EXPECT_THAT(view(arrays.tokens, 8), ElementsAre(11, 12, 21, 22, 23, -1, -1, -1));
  EXPECT_THAT(view(arrays.positions, 8), ElementsAre(4, 5, 0, 1, 2, 0, 0, 0));
  EXPECT_THAT(view(arrays.slots, 8), ElementsAre(80, 81, 112, 113, 114, -1, -1, -1));
  EXPECT_THAT(view(arrays.output_rows, 3), ElementsAre(1, 4, -1));
  EXPECT_TRUE(block.byte_after_is_untouched());
}

// A sequence without queries, of one key and no samples, on a page that exists.
TEST(FillPass, MakesSequencesBeyondTheBatchEmpty) {
  const Block block(kLarger);
  fill_pass(kLarger, two_sequences(), kChoices, block.arrays());
  const PassArrays& arrays = block.arrays();
  EXPECT_THAT(view(arrays.query_start, 5), ElementsAre(0, 2, 5, 5, 5));
  EXPECT_THAT(view(arrays.lengths, 4), ElementsAre(6, 3, 1, 1));
  EXPECT_THAT(field(arrays.draws, 4, [](const auto& draws) { return draws.question; }),
              ElementsAre(40, 41, 0, 0));
}

TEST(FillPass, WidensTheRowsOfThePageTable) {
  const Block block(kLarger);
  fill_pass(kLarger, two_sequences(), kChoices, block.arrays());
  EXPECT_THAT(view(block.arrays().page_table, 20),
              ElementsAreArray({9, 2, 5, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(FillPass, PlacesTheBudgetsOfEachLayerInItsRow) {
  const Block block(kLarger);
  fill_pass(kLarger, two_sequences(), kChoices, block.arrays());
  EXPECT_THAT(view(block.arrays().budgets, 8), ElementsAre(8, kernels::kDenseBudget, 0, 0, 6, 5, 0, 0));
}

// Where each query is a sequence of its own it sees the keys up to its token.
TEST(FillPass, GivesEveryQueryThePagesBudgetsAndDrawsOfItsSequence) {
  PassShape shape = kLarger;
  shape.apart = 5;
  const Block block(shape);
  fill_pass(shape, two_sequences(), kChoices, block.arrays());
  const QueryArrays& queries = block.arrays().queries;
  EXPECT_THAT(view(queries.lengths, 5), ElementsAre(5, 6, 1, 2, 3));
  EXPECT_THAT(view(queries.page_table, 25),
              ElementsAreArray({9, 2, 5, 0, 0, 9, 2, 5, 0, 0, 7, 0, 0, 0, 0, 7, 0, 0, 0, 0, 7, 0, 0, 0, 0}));
  constexpr int32_t kDense = kernels::kDenseBudget;
  EXPECT_THAT(view(queries.budgets, 10), ElementsAre(8, 8, kDense, kDense, kDense, 6, 6, 5, 5, 5));
  EXPECT_THAT(field(queries.draws, 5, [](const auto& draws) { return draws.question; }),
              ElementsAre(40, 40, 41, 41, 41));
  EXPECT_THAT(view(block.arrays().budgets, 8), ElementsAre(8, kDense, 0, 0, 6, 5, 0, 0));
  EXPECT_TRUE(block.byte_after_is_untouched());
}

TEST(FillPass, DescribesTheChoiceOfEveryOutputRow) {
  const Block block(kLarger);
  fill_pass(kLarger, two_sequences(), kChoices, block.arrays());
  const PassArrays& arrays = block.arrays();
  EXPECT_THAT(field(arrays.rules, 3, [](const auto& rule) { return rule.active != 0; }),
              ElementsAre(true, true, false));
  EXPECT_THAT(field(arrays.rules, 2, [](const auto& rule) { return rule.temperature; }),
              ElementsAre(0.5F, 0.75F));
  EXPECT_THAT(field(arrays.rules, 2, [](const auto& rule) { return rule.top_p; }), ElementsAre(0.25F, 1.0F));
  EXPECT_THAT(field(arrays.rules, 2, [](const auto& rule) { return rule.repetition_penalty; }),
              ElementsAre(1.5F, 1.0F));
  EXPECT_THAT(field(arrays.token_draws, 2, [](const auto& draws) { return draws.question; }),
              ElementsAre(40, 41));
  EXPECT_THAT(view(arrays.token_positions, 2), ElementsAre(5, 2));
  EXPECT_THAT(view(arrays.token_seen_rows, 2), ElementsAre(6, 2));
}

TEST(FillPass, WithoutChoicesChoosesNothing) {
  const Block block(kExact);
  fill_pass(kExact, two_sequences(), {}, block.arrays());
  EXPECT_THAT(view(block.arrays().output_rows, 2), ElementsAre(1, 4));
  EXPECT_THAT(field(block.arrays().rules, 2, [](const auto& rule) { return rule.active; }), Each(0));
}

// --- Sizes of decode steps

TEST(DecodeRows, HoldEveryLiveSequence) {
  for (int64_t live = 1; live <= 4096; ++live) EXPECT_GE(decode_rows(live), live);
}

TEST(DecodeRows, GrowWithTheLiveSequences) {
  for (int64_t live = 1; live < 4096; ++live) EXPECT_LE(decode_rows(live), decode_rows(live + 1)) << live;
}

// So that the step of a full size is captured for just as many rows.
TEST(DecodeRows, OfACapturedSizeAreThatSize) {
  for (int64_t live = 1; live <= 4096; ++live) {
    EXPECT_EQ(decode_rows(decode_rows(live)), decode_rows(live)) << live;
  }
}

TEST(DecodeRows, WasteAtMostAQuarterOfTheRowsAboveEight) {
  for (int64_t live = 9; live <= 4096; ++live) {
    EXPECT_LE(4 * (decode_rows(live) - live), decode_rows(live)) << live << " live sequences";
  }
}

// Each size is captured and measured once.
TEST(DecodeRows, HaveAtMost32SizesUpTo512Sequences) {
  int64_t sizes = 0;
  for (int64_t live = 1; live <= 512; ++live) sizes += decode_rows(live) == live;
  EXPECT_LE(sizes, 32);
}

}  // namespace
}  // namespace allot::model::cuda
