// How small a difference in accuracy a comparison can show, before it is made and after.
#pragma once

#include <cstdint>
#include <optional>

namespace allot::evaluation {

// Probability that McNemar's exact test (statistics.h) at 5 % finds the better of two schedules better, where
// each of `questions` questions tells them apart with probability `telling` (one is right, the other wrong),
// and the better is ahead by `difference` in accuracy. Sums over how many questions tell and how many of
// these the better one gets; nothing is approximated but sums below 1e-12. Throws InvalidArgument unless 0 <=
// difference <= telling <= 1 and questions >= 0.
double power_of_paired_test(int64_t questions, double telling, double difference);

// Smallest difference that the test finds with a probability of 80 %, to 1e-4; nothing where even
// difference = telling, every telling question for the better one, is found less often.
std::optional<double> detectable_difference(int64_t questions, double telling);

}  // namespace allot::evaluation
