// The table of estimators, made from the rows of methods.cmake. Nothing outside kernels/methods knows single
// estimators, except the code of those that are named there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/methods/estimators.h"
#include "kernels/methods/row.h"

namespace allot::kernels {

template <class... Method>
struct MethodList {
  static constexpr EstimatorRow kRows[] = {Method::kRow...};
  // A table with a constant for every estimator, in their order: `of` is called with each struct as
  // its template argument.
  template <class Value, class Of>
  struct Table {
    Value values[sizeof...(Method)] = {Of::template of<Method>()...};
    constexpr const Value& operator[](Estimator estimator) const {
      return values[static_cast<size_t>(estimator)];
    }
  };
};

inline constexpr std::span<const EstimatorRow> kEstimatorRows = Methods::kRows;
inline constexpr auto kEstimators = static_cast<int>(kEstimatorRows.size());

// The row of an estimator, which must be one of the table.
constexpr const EstimatorRow& row_of(Estimator estimator) {
  return Methods::kRows[static_cast<size_t>(estimator)];
}

// The parameters of all estimators are in one array, with those of one estimator together.
constexpr size_t first_parameter(Estimator estimator) {
  size_t first = 0;
  for (size_t i = 0; i < static_cast<size_t>(estimator); ++i) first += kEstimatorRows[i].parameters.size();
  return first;
}
// The same for code on the device, which cannot call the function.
template <Estimator kEstimator>
inline constexpr size_t kFirstParameter = first_parameter(kEstimator);
inline constexpr size_t kParameters = first_parameter(static_cast<Estimator>(kEstimators));

struct ParameterValues {
  double values[kParameters == 0 ? 1 : kParameters] = {};
  friend constexpr bool operator==(const ParameterValues&, const ParameterValues&) = default;
};

constexpr ParameterValues parameters_at(double MethodParameter::*value) {
  ParameterValues result;
  size_t next = 0;
  for (const EstimatorRow& row : kEstimatorRows) {
    for (const MethodParameter& parameter : row.parameters) result.values[next++] = parameter.*value;
  }
  return result;
}
constexpr ParameterValues default_parameters() {
  return parameters_at(&MethodParameter::value);
}
constexpr ParameterValues usual_parameters() {
  return parameters_at(&MethodParameter::usual);
}

// Options of two estimators must not share a name.
constexpr bool has_distinct_names() {
  for (const EstimatorRow& a : kEstimatorRows) {
    for (const MethodParameter& x : a.parameters) {
      int same = 0;
      for (const EstimatorRow& b : kEstimatorRows) {
        for (const MethodParameter& y : b.parameters) same += std::string_view(x.name) == y.name ? 1 : 0;
      }
      if (same != 1) return false;
    }
  }
  return true;
}
static_assert(has_distinct_names(), "two parameters of estimators have the same name");

}  // namespace allot::kernels
