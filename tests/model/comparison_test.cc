// What the rows of compared logits make of a text's fidelity, wherever they were compared.
#include <gmock/gmock.h>

#include <limits>
#include <vector>

#include "base/error.h"
#include "model/fidelity.h"

namespace allot::model {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Comparison, IsTheMeanOfItsRowsAndOfEachWhereThatIsAskedFor) {
  const std::vector<kernels::RowDivergence> rows = {{0.5f, 1}, {0.25f, 0}, {0, 1}, {0.25f, 1}};
  Fidelity mean, each;
  take_comparison(rows, false, &mean);
  EXPECT_EQ(mean.positions, 4);
  EXPECT_DOUBLE_EQ(mean.divergence, 0.25);
  EXPECT_DOUBLE_EQ(mean.top1_agreement, 0.75);
  EXPECT_THAT(mean.divergences, IsEmpty());
  take_comparison(rows, true, &each);
  EXPECT_THAT(each.divergences, ElementsAre(0.5f, 0.25f, 0.0f, 0.25f));
  EXPECT_THAT(each.agreements, ElementsAre(1, 0, 1, 1));
}

TEST(Comparison, OfLogitsThatAreNotNumbersIsRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<kernels::RowDivergence> rows = {{0.5f, 1}, {bad, 0}};
    Fidelity result;
    EXPECT_THROW(take_comparison(rows, false, &result), Error);
  }
}

}  // namespace
}  // namespace allot::model
