// How measured numbers are written in tables, reports and messages: one form for each, so that the same
// number looks the same wherever it is read. Ratios are given as they are, 0.984 for 98.4%.
#pragma once

#include <string>

namespace allot {

// "98.4%"; with no decimals "98%".
std::string percent(double ratio, int decimals = 1);
// "96.1 to 99.4%".
std::string percent_range(double low, double high);
// A ratio with its interval: "98.4% (96.1 to 99.4)".
std::string percent_with_range(double ratio, double low, double high);

// The difference of two ratios: "+3.1 points", "-0.4 points".
std::string points(double difference);
// "+1.0 to +5.2".
std::string points_range(double low, double high);
// A difference with its interval: "+3.1 points (+1.0 to +5.2)".
std::string points_with_range(double difference, double low, double high);

// A p-value with its relation: "= 0.032", "= 3.1e-24", and "< 1e-300" where an exact test underflows, since a
// zero would claim more than was computed.
std::string p_value_text(double p);

// A time in its two largest units: "45s", "3m 05s", "2h 07m"; "?" for one that is not known (negative).
std::string duration_text(double seconds);

}  // namespace allot
