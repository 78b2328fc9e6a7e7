// What a run says of itself in words, the same on the terminal and in the report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/method.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// The preflight in lines without indentation: a line for each schedule with answers, the estimate of the
// run's time and cost, warnings, and why the run should not learn. `workers` is the number that the estimate
// is divided among; 0 gives it for one worker alone.
std::vector<std::string> preflight_lines(const wire::Preflight& preflight, int64_t workers);

// Budgets on a chart: "Samples" or "Rows", and the title of their axis, "Samples per query head" or "Value
// rows per KV head".
std::string capital_of(kernels::BudgetUnit unit);
std::string budget_title(kernels::BudgetUnit unit);

}  // namespace allot::app
