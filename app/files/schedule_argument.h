// Schedules as they are written on the command line.
#pragma once

#include <cstdint>
#include <filesystem>
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
  std::optional<policy::Schedule> schedule;  // nothing = dense; of prompts longer than all bands
  std::optional<ScheduleFile> file;          // where it came from one

  // Of a prompt of so many tokens; empty = dense.
  std::vector<int32_t> samples_of_prompt(int64_t tokens) const;
  bool has_bands() const { return file && !file->bands.empty(); }
};

// How --schedule and its like are written, for help texts and messages.
inline constexpr const char* kScheduleForms =
    "dense, uniform:N, exact:K+uniform:N (the first K layers exact), a,b,c,… (numbers or exact), config (the one "
    "that the model's config.json carries) or a schedule.json";

// The schedule argument that means the key "allot" of the model's config.json.
inline constexpr const char* kOwnSchedule = "config";

// "dense", "uniform:N", "exact:K+uniform:N" (the first K layers exact, N samples in the others), "a,b,c,…"
// with numbers or "exact", "config" (what the model's `directory` carries: read_own_schedule), or the path of
// a schedule.json, which may be the one that the directory's was exported from. Throws InvalidArgument for a
// list that does not fit the model's layers, Mismatch when the file is of another model, NotFound where there
// is no file or no such key, and the errors of the reader.
NamedSchedule parse_schedule_argument(const std::string& text, const model::ModelIdentity& model,
                                      const std::filesystem::path& directory, Bands bands = Bands::kRefused);

// "60 samples over 4 layers, of run 'r'", of the schedule that a model directory carries.
std::string describe_own(const ScheduleFile& own);

// Warns of a schedule that the model's `directory` carries and that does not run, so that it is never passed
// over in silence, whatever is wrong with it. `instead`: what runs, or how to run it.
void note_unread_schedule(const std::filesystem::path& directory, std::string_view instead);

// Totals as --total takes them, "60,120": each >= 1 and once. Throws UsageError naming the option and the
// entry.
std::vector<int64_t> parse_totals(std::string_view text, std::string_view option = "--total");

}  // namespace allot::app
