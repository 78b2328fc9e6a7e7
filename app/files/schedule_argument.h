// Schedules as they are written on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/files/schedule_file.h"
#include "model/model_config.h"
#include "policy/schedule.h"

namespace allot::app {

// A schedule as asked for on the command line.
struct NamedSchedule {
  std::string label;                         // as given
  std::optional<policy::Schedule> schedule;  // nothing = dense
  std::optional<ScheduleFile> file;          // where it came from one
};

// How --schedule and its like are written, for help texts and messages.
inline constexpr const char* kScheduleForms =
    "dense, uniform:N, exact:K+uniform:N (the first K layers exact), a,b,c,… (numbers or exact) or a "
    "schedule.json";

// "dense", "uniform:N", "exact:K+uniform:N" (the first K layers exact, N samples in the others), "a,b,c,…"
// with numbers or "exact", or the path of a schedule.json. Throws InvalidArgument for a list that does not
// fit the model's layers, Mismatch when the file is of another model, and the errors of the reader.
NamedSchedule parse_schedule_argument(const std::string& text, const model::ModelIdentity& model);

// Totals as --total takes them, "60,120": each >= 1 and once. Throws UsageError naming the option and the
// entry.
std::vector<int64_t> parse_totals(std::string_view text, std::string_view option = "--total");

}  // namespace allot::app
