// allot history: maintains the history of a run. check verifies all of it, audit says who did what, export
// writes its rows as text, backup copies it while the aggregator goes on writing, restore puts a backup in
// place of it, accept goes on with what it holds.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>

#include "aggregator/history_audit.h"
#include "aggregator/history_backup.h"
#include "aggregator/history_check.h"
#include "aggregator/history_export.h"
#include "aggregator/history_format.h"
#include "aggregator/history_restore.h"
#include "aggregator/peer_text.h"
#include "aggregator/run_directory.h"
#include "aggregator/wire_conversion.h"
#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

struct HistoryOptions {
  std::string action;
  std::string place;
  std::string destination;
  std::string what = "episodes";
  std::string format = "jsonl";
  std::filesystem::path output;
  std::filesystem::path run;
  bool json = false;
};

// The run directory: the given place itself, or the directory of the given file.
struct Place {
  std::filesystem::path history;
  std::filesystem::path spec;
};

Place find(const std::string& given) {
  const std::filesystem::path path(given);
  if (std::filesystem::is_directory(path))
    return {aggregator::history_path(path), aggregator::spec_path(path)};
  return {path, aggregator::spec_path(path.parent_path())};
}

// Reports a file that cannot even be opened in the same form as other problems, so that a script sees
// only one form.
aggregator::HistoryReport check(const Place& place) {
  if (!std::filesystem::exists(place.history)) {
    throw NotFound(fmt::format("there is no history {}; give a run directory or a history.sqlite",
                               place.history.string()));
  }
  if (!std::filesystem::exists(place.spec)) {
    throw NotFound(
        fmt::format("there is no {}; a history is checked by replaying it under the spec of its run, so put "
                    "the run's spec.json there",
                    place.spec.string()));
  }
  try {
    return aggregator::check_history(place.history, wire::read_spec(place.spec));
  } catch (const CorruptFile& error) {
    aggregator::HistoryReport report;
    report.problems = {{"file", error.what(), "restore a copy (allot history backup makes them)"}};
    return report;
  }
}

// A problem may quote a damaged cell, which can hold any bytes: those that are not UTF-8 become U+FFFD,
// control characters spaces.
std::string readable(const std::string& text) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  const auto valid = nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, kReplace));
  return aggregator::one_line(valid.get<std::string>(), SIZE_MAX);
}

int run_check(const HistoryOptions& options) {
  const Place place = find(options.place);
  aggregator::HistoryReport report = check(place);
  for (auto& problem : report.problems) problem.what = readable(problem.what);
  if (options.json) {
    nlohmann::ordered_json json = {{"history", place.history.string()},
                                   {"schema_version", report.schema_version},
                                   {"epochs", report.epochs},
                                   {"rows", nlohmann::ordered_json::object()},
                                   {"replayed", report.replayed},
                                   {"policy_version", report.policy_version},
                                   {"exact", report.exact},
                                   {"problems", nlohmann::ordered_json::array()}};
    for (const auto& [table, count] : report.rows) json["rows"][table] = count;
    for (const auto& problem : report.problems) {
      json["problems"].push_back(
          {{"where", problem.where}, {"what", problem.what}, {"remedy", problem.remedy}});
    }
    std::cout << json.dump() << '\n';
  } else {
    std::cout << fmt::format("{}: schema version {}, {} starts\n", place.history.string(),
                             report.schema_version, report.epochs);
    for (const auto& [table, count] : report.rows)
      std::cout << fmt::format("  {:<14}{:>10} rows\n", table, count);
    if (report.replayed) {
      std::cout << fmt::format("  replay gives policy version {}, its state {}\n", report.policy_version,
                               report.exact ? "bit for bit" : "within rounding");
    }
    for (const auto& problem : report.problems) {
      std::cout << fmt::format("PROBLEM {}: {}\n  remedy: {}\n", problem.where, problem.what, problem.remedy);
    }
    std::cout << (report.problems.empty() ? std::string("the history is whole\n")
                                          : fmt::format("{} problems\n", report.problems.size()));
  }
  return report.problems.empty() ? 0 : 1;
}

int64_t milliseconds(Timestamp at) {
  return at.time_since_epoch().count();
}

int64_t count_of(const aggregator::HolderAudit& holder, aggregator::AckVerdict verdict) {
  const auto found = holder.results.find(verdict);
  return found == holder.results.end() ? 0 : found->second;
}

nlohmann::ordered_json audit_json(const aggregator::Audit& audit) {
  using aggregator::AckVerdict;
  nlohmann::ordered_json json = {{"holders", nlohmann::ordered_json::array()},
                                 {"controls", nlohmann::ordered_json::array()}};
  for (const auto& [name, holder] : audit.holders) {
    nlohmann::ordered_json ended = nlohmann::ordered_json::object();
    for (const auto& [how, count] : holder.ended) ended[aggregator::lease_end_text(how)] = count;
    json["holders"].push_back({{"holder", name},
                               {"workers", holder.workers},
                               {"granted", holder.granted},
                               {"held", holder.held},
                               {"accepted", count_of(holder, AckVerdict::kAccepted)},
                               {"late", count_of(holder, AckVerdict::kLate)},
                               {"stale", count_of(holder, AckVerdict::kStale)},
                               {"ended", ended},
                               {"answers_kept", holder.answers_kept},
                               {"seconds", holder.seconds},
                               {"first_ms", milliseconds(holder.first)},
                               {"last_ms", milliseconds(holder.last)}});
  }
  for (const auto& control : audit.controls) {
    json["controls"].push_back({{"at_ms", milliseconds(control.at)},
                                {"by", control.by},
                                {"action", aggregator::control_action_text(control.action)},
                                {"what", control_text(aggregator::to_wire(control))}});
  }
  return json;
}

int run_audit(const HistoryOptions& options) {
  using aggregator::AckVerdict;
  const aggregator::Audit audit =
      aggregator::audit(*aggregator::read_sqlite_history(find(options.place).history));
  if (options.json) {
    std::cout << audit_json(audit).dump() << '\n';
    return 0;
  }
  size_t width = std::string_view("holder").size();
  for (const auto& [name, holder] : audit.holders) width = std::max(width, name.size());
  std::cout << fmt::format("{:<{}} {:>7} {:>9} {:>9} {:>6} {:>6} {:>6} {:>8}  {:<23}  {:<23}  {}\n", "holder",
                           width, "workers", "granted", "accepted", "late", "stale", "held", "hours", "first",
                           "last", "leases without a result");
  for (const auto& [name, holder] : audit.holders) {
    std::string ended;
    for (const auto& [how, count] : holder.ended)
      ended += fmt::format("{}{} {}", ended.empty() ? "" : ", ", count, aggregator::lease_end_text(how));
    std::cout << fmt::format("{:<{}} {:>7} {:>9} {:>9} {:>6} {:>6} {:>6} {:>8.2f}  {}  {}  {}\n", name, width,
                             holder.workers.size(), holder.granted, count_of(holder, AckVerdict::kAccepted),
                             count_of(holder, AckVerdict::kLate), count_of(holder, AckVerdict::kStale),
                             holder.held, holder.seconds / 3600, utc_text(holder.first),
                             utc_text(holder.last), ended.empty() ? "none" : ended);
  }
  for (const auto& control : audit.controls) {
    std::cout << fmt::format("{}  {} by {}\n", utc_text(control.at),
                             control_text(aggregator::to_wire(control)), control.by);
  }
  if (audit.controls.empty()) std::cout << "nobody controlled the run\n";
  return 0;
}

int run_export(const HistoryOptions& options) {
  const Place place = find(options.place);
  const auto format =
      options.format == "csv" ? aggregator::ExportFormat::kCsv : aggregator::ExportFormat::kJsonLines;
  if (options.output.empty()) {
    aggregator::export_history(place.history, options.what, format, std::cout);
    return 0;
  }
  std::ofstream out(options.output, std::ios::binary);
  if (!out) throw StorageError("cannot write " + options.output.string());
  aggregator::export_history(place.history, options.what, format, out);
  out.close();
  if (!out) throw StorageError("cannot write " + options.output.string() + "; is the disk full?");
  return 0;
}

int run_backup(const HistoryOptions& options) {
  if (options.destination.empty()) {
    throw UsageError("give the directory for the backup: allot history backup DIR DEST");
  }
  const Place place = find(options.place);
  const std::filesystem::path destination(options.destination);
  if (!std::filesystem::exists(place.history)) {
    throw NotFound(fmt::format("there is no history {}; give a run directory or a history.sqlite",
                               place.history.string()));
  }
  std::error_code error;
  std::filesystem::create_directories(destination, error);
  if (error) throw StorageError("cannot make " + destination.string() + ": " + error.message());
  const int64_t bytes = aggregator::backup_history(place.history, aggregator::history_path(destination));
  // The spec never changes, so its copy fits the history of any moment.
  write_file_atomically(aggregator::spec_path(destination), read_file(place.spec));
  std::cout << fmt::format("{} holds the run as it was now, {} bytes; allot history check {} verifies it\n",
                           destination.string(), bytes, destination.string());
  return 0;
}

void print(const aggregator::RestoredHistory& restored, const std::string& run) {
  std::cout << fmt::format("{} continues after record {}, with {} episodes; its next epoch is {}\n", run,
                           restored.seq, restored.episodes, restored.next_epoch);
  if (restored.episodes_lost) {
    std::cout << fmt::format("{} episodes that were acked later are asked again\n", *restored.episodes_lost);
  } else {
    std::cout << "no mark said how many episodes were acked later; they are asked again\n";
  }
  if (restored.put_aside)
    std::cout << fmt::format("the replaced files lie in {}\n", restored.put_aside->string());
}

int run_restore(const HistoryOptions& options) {
  if (options.run.empty()) {
    throw UsageError("name the run directory that gets the backup: allot history restore BACKUP --run DIR");
  }
  print(aggregator::restore_history(options.place, options.run), options.run.string());
  return 0;
}

}  // namespace

int run_history(std::span<const std::string> arguments) {
  HistoryOptions options;
  OptionSet set("history", "check, audit, export, back up or restore the history of a run",
                "allot history check runs/quickstart");
  set.positional_choice("action", &options.action,
                        {"check", "audit", "export", "backup", "restore", "accept"}, "ACTION",
                        "what to do; audit: what each holder of a key got and did, and every control");
  set.positional(
      "place", &options.place, "PATH",
      "run directory, or a history.sqlite with its spec.json beside it; restore: the backup's directory");
  set.positional("destination", &options.destination, "DIR",
                 "backup: directory for the copy, created when needed");
  set.choice("what", &options.what, aggregator::exported_tables(), "export: the table to write");
  set.choice("format", &options.format, {"jsonl", "csv"}, "export: one JSON object a line, or CSV");
  set.path("output", &options.output, "export: file to write; standard output without it");
  set.path("run", &options.run, "restore: run directory that gets the backup; what is there is put aside");
  set.flag("json", &options.json, "check, audit: print one JSON object");
  set.require("action");
  set.require("place");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (options.action == "check") return run_check(options);
  if (options.action == "audit") return run_audit(options);
  if (options.action == "export") return run_export(options);
  if (options.action == "restore") return run_restore(options);
  if (options.action == "accept") {
    print(aggregator::accept_history(options.place), options.place);
    return 0;
  }
  return run_backup(options);
}

}  // namespace allot::app
