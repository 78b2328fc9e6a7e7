// How certain a measured accuracy is, and whether two schedules differ. All functions throw InvalidArgument,
// naming the values, for impossible counts (negative, or more right answers than questions).
#pragma once

#include <cstdint>
#include <span>

namespace allot::evaluation {

// A 95 % confidence interval.
struct Interval {
  double low = 0;
  double high = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

// Wilson's score interval of a proportion (Wilson, 1927), without continuity correction: good at 0 and 1 and
// for few questions. [0, 1] for no questions.
Interval wilson_interval(int64_t correct, int64_t questions);

// sqrt(p (1 - p) / questions); 0 for no questions.
double standard_error(int64_t correct, int64_t questions);

// Answers to the same questions under two schedules, counted by who was right.
struct Pairs {
  int64_t only_first = 0;
  int64_t only_second = 0;
  int64_t questions = 0;

  double difference() const {  // accuracy of the first minus accuracy of the second
    return questions == 0 ? 0
                          : static_cast<double>(only_first - only_second) / static_cast<double>(questions);
  }
  friend bool operator==(const Pairs&, const Pairs&) = default;
};

// Counts two runs over the same questions in the same order; 1 is right, 0 is wrong.
Pairs count_pairs(std::span<const uint8_t> first, std::span<const uint8_t> second);

// Two-sided p-value of McNemar's exact test: of the questions that only one of the two got right, each is as
// likely to be the first's as the second's. 1 when there are none.
double mcnemar_exact(int64_t only_first, int64_t only_second);

// Percentile bootstrap interval of the difference in accuracy (first minus second) over resampled questions:
// 10,000 resamples drawn by Philox under `seed`, so the same counts give the same interval. [-1, 1] for no
// questions. Takes time in proportion to `questions`: about 0.1 s for 1,319.
Interval paired_difference_interval(int64_t only_first, int64_t only_second, int64_t questions,
                                    uint32_t seed = 0);

// Score interval of that difference (Tango, "Equivalence test and confidence interval for the difference in
// proportions for the paired-sample design", Statistics in Medicine 17, 1998), 95 %: all differences that a
// score test does not reject. Where no question tells the two apart it is as wide as the number of questions
// asks for, (-3.84 to +3.84) / (questions + 3.84), while the bootstrap has no width. [-1, 1] for no
// questions.
Interval paired_score_interval(int64_t only_first, int64_t only_second, int64_t questions);

// Mean of scores between 0 and 1 (partial credit) and its 95 % interval: Wilson's where all scores are 0 or
// 1, else the percentile bootstrap over questions, 10,000 resamples under `seed`.
struct MeanScore {
  double mean = 0;  // 0 for no questions
  Interval interval;
};
MeanScore mean_of_scores(std::span<const double> scores, uint32_t seed = 0);
// Percentile bootstrap interval of the mean of these scores, 10,000 resamples under `seed`, each score taken
// for an independent one: how the S2ANTA paper's tables state accuracies, of three runs over all questions.
// Scores of one question are not independent, so with repeats it is too narrow where questions differ; the
// interval of each question's mean, mean_of_scores, is not. [0, 1] for no scores.
Interval bootstrap_interval(std::span<const double> scores, uint32_t seed = 0);
// Of that mean; 0 for no questions.
double standard_error(std::span<const double> scores);

// Two schedules on the same questions, by their scores.
struct PairedTest {
  int64_t questions = 0;
  bool graded = false;    // some score is neither 0 nor 1
  Pairs pairs;            // who scored higher; where all scores are 0 or 1, who alone was right
  double difference = 0;  // mean score of the first minus that of the second
  Interval interval;      // of the difference: percentile bootstrap over questions
  // Two-sided. McNemar's exact test where all scores are 0 or 1, else a paired permutation test: the share of
  // 10,000 draws that swap each question's two scores with probability 1/2 whose difference is at least as
  // large, the observed assignment counted among them.
  double p_value = 1;

  // "exact McNemar test" or "paired permutation test".
  const char* method() const { return graded ? "paired permutation test" : "exact McNemar test"; }
  friend bool operator==(const PairedTest&, const PairedTest&) = default;
};
// `first` and `second` are scores of the same questions in the same order. Draws are Philox under `seed`, so
// the same scores give the same result. Takes 10,000 steps a question.
PairedTest compare_scores(std::span<const double> first, std::span<const double> second, uint32_t seed = 0);

}  // namespace allot::evaluation
