#include "kernels/method.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(EstimatorTable, HasARowForEveryEnumeratorUnderItsName) {
  EXPECT_STREQ(row_of(Estimator::kExact).name, "exact");
  EXPECT_STREQ(row_of(Estimator::kIid).name, "iid");
  EXPECT_STREQ(row_of(Estimator::kStrat).name, "strat");
  EXPECT_STREQ(row_of(Estimator::kSys).name, "sys");
  EXPECT_STREQ(row_of(Estimator::kProp).name, "prop");
  EXPECT_STREQ(row_of(Estimator::kFlash).name, "flash");
  EXPECT_STREQ(row_of(Estimator::kThreshold).name, "threshold");
  EXPECT_STREQ(row_of(Estimator::kJoint).name, "joint");
  EXPECT_STREQ(row_of(Estimator::kPooled).name, "pooled");
  EXPECT_STREQ(row_of(Estimator::kLevel).name, "level");
  EXPECT_STREQ(row_of(Estimator::kTopk).name, "topk");
  EXPECT_THROW(static_cast<void>(name(static_cast<Estimator>(kEstimators))), InvalidArgument);
}

TEST(EstimatorTable, NamesThoseThatSampleAndExactWhereAskedFor) {
  EXPECT_THAT(estimator_names(/*with_exact=*/true), Contains("exact"));
  EXPECT_THAT(estimator_names(/*with_exact=*/false), Not(Contains("exact")));
  EXPECT_EQ(estimator_names(true).size(), kEstimatorRows.size());
}

TEST(LeastSamples, IsASampleInEveryTileForFlashAndOneForOthers) {
  EXPECT_EQ(least_samples({.estimator = Estimator::kFlash, .tile = 64}, 129), 3);
  EXPECT_EQ(least_samples({.estimator = Estimator::kProp, .tile = 64}, 129), 1);
}

TEST(UsualMethod, IsJointByNormsOfValuesWhichNoFileMeansThatDoesNotSaySo) {
  const AttentionMethod usual = usual_method();
  EXPECT_EQ(usual.estimator, Estimator::kJoint);
  EXPECT_TRUE(uses_value_norms(usual));
  EXPECT_FALSE(uses_value_norms({.estimator = Estimator::kJoint}));
}

TEST(KeepOwnParameters, LeavesThoseOfTheEstimatorAndPutsOthersBack) {
  AttentionMethod method = usual_method();
  keep_own_parameters(&method);
  EXPECT_EQ(method, usual_method());
  method.estimator = Estimator::kSys;
  keep_own_parameters(&method);
  EXPECT_EQ(method, (AttentionMethod{.estimator = Estimator::kSys}));
  keep_own_parameters(&method, usual_parameters());
  EXPECT_EQ(method.parameters, usual_method().parameters);
}

TEST(BudgetUnits, AreNamedAndReadBack) {
  EXPECT_THAT(budget_unit_names(), ElementsAre("samples", "rows"));
  for (const std::string& text : budget_unit_names()) EXPECT_EQ(name(parse_budget_unit(text)), text);
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_budget_unit("row"); }), Names("row", "samples", "rows"));
}

TEST(BudgetUnits, OfRowsAreForEstimatorsWhoseHeadsChooseTogetherAndOthersNameThem) {
  for (int number = 0; number < kEstimators; ++number) {
    AttentionMethod method{.estimator = static_cast<Estimator>(number)};
    EXPECT_THAT(estimator_faults(method), IsEmpty());
    method.unit = BudgetUnit::kRows;
    const bool together = row_of(method.estimator).scope != Scope::kHead;
    EXPECT_EQ(has_consistent_unit(method), together) << name(method.estimator);
    if (together) {
      EXPECT_THAT(estimator_faults(method), IsEmpty());
    } else {
      EXPECT_THAT(estimator_faults(method),
                  ElementsAre(Names(name(method.estimator), "rows", "joint", "pooled", "level")));
    }
  }
}

TEST(BudgetUnits, SayHowManyRowsABudgetAsksForAndStandInTheDescriptionWhereTheyAreRows) {
  EXPECT_EQ(rows_of_group(BudgetUnit::kSamples, 4, 3), 12);
  EXPECT_EQ(rows_of_group(BudgetUnit::kRows, 4, 3), 4);
  AttentionMethod method{.estimator = Estimator::kJoint};
  EXPECT_THAT(describe(method), Not(HasSubstr("samples")));
  method.unit = BudgetUnit::kRows;
  EXPECT_THAT(describe(method), HasSubstr("joint by rows"));
}

TEST(MethodParameters, ThatTheEstimatorDoesNotHaveAreRefused) {
  AttentionMethod method;
  EXPECT_THROW(set_parameter(&method, "no-such-parameter", 1), InvalidArgument);
  EXPECT_THAT(estimator_faults(method), IsEmpty());
}

// The parameters of whatever estimators have some: at their defaults, at the ends of their ranges and beyond.
TEST(MethodParameters, LieInTheirRangesAndReachTheirEstimatorAlone) {
  for (int number = 0; number < kEstimators; ++number) {
    const auto estimator = static_cast<Estimator>(number);
    for (size_t i = 0; i < row_of(estimator).parameters.size(); ++i) {
      const MethodParameter& parameter = row_of(estimator).parameters[i];
      AttentionMethod method{.estimator = estimator};
      EXPECT_EQ(own_parameters(estimator, method.parameters)[i], parameter.value) << parameter.name;
      for (const double value : {parameter.value, parameter.min, parameter.max}) {
        set_parameter(&method, parameter.name, value);
        EXPECT_EQ(own_parameters(estimator, method.parameters)[i], value) << parameter.name;
        EXPECT_THAT(estimator_faults(method), IsEmpty()) << parameter.name;
      }
      set_parameter(&method, parameter.name, parameter.max + 1);
      EXPECT_EQ(estimator_faults(method).size(), 1u) << parameter.name;
      method.estimator = Estimator::kSys;
      EXPECT_THAT(estimator_faults(method), IsEmpty()) << "of another estimator";
    }
  }
}

}  // namespace
}  // namespace allot::kernels
