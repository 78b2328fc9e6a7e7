// allot verify --executed: whether an engine did what a schedule asks for, by what the engine counted. No
// model runs, so this half of verify is in the light executable.
#include <iostream>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/files/executed_file.h"
#include "app/run/run_directory.h"
#include "base/error.h"
#include "base/json.h"

namespace allot::app {

int run_verify_executed(std::span<const std::string> arguments) {
  std::filesystem::path executed, schedule, run;
  bool json = false;
  OptionSet set("verify",
                "say whether an engine executed a schedule: compares what it counted, layer by layer, with "
                "what the schedule asks for; exit code 0 where they agree, 3 where they differ",
                "allot verify --executed executed.json --schedule runs/quickstart/schedule.json");
  set.path(
      "executed", &executed,
      "what the engine counted: of eval, generate or serve --executed-out, or of save_report of allot_attention, "
      "allot_vllm or allot_sglang");
  set.path("schedule", &schedule, "the schedule.json that was to be executed");
  set.path("run", &run, "run directory, whose schedule.json it was");
  set.flag("json", &json, "print the result as JSON");
  set.require("executed");
  set.resolve_with([&] {
    if (set.given("schedule") == set.given("run"))
      throw UsageError(
          "name the schedule that was to be executed, with one of --schedule FILE and --run DIR");
    if (set.given("run")) schedule = schedule_file(run);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const ExecutedFile file = read_executed_file(executed);
  const ExecutedVerdict verdict = judge(file, read_schedule_file(schedule));
  std::cout << (json ? to_json(verdict, file).dump(2) + "\n" : describe(verdict, file));
  return verdict.as_asked() ? 0 : Mismatch("").exit_code();
}

}  // namespace allot::app
