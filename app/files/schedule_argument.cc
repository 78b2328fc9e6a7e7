#include "app/files/schedule_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "base/ascii.h"
#include "base/error.h"
#include "base/log.h"

namespace allot::app {
namespace {

constexpr std::string_view kUniform = "uniform:";
constexpr std::string_view kExactThen = "exact:";

std::optional<int32_t> parse_count(std::string_view text) {
  int32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size() || count < 0) return std::nullopt;
  return count;
}

// "uniform:N", or "exact:K+uniform:N" with exact attention in the first K layers.
policy::Schedule parse_uniform(std::string_view text, int32_t layers) {
  std::string_view rest = text;
  std::optional<int32_t> exact = 0;
  if (rest.starts_with(kExactThen)) {
    const size_t plus = std::min(rest.find('+'), rest.size());
    exact = parse_count(rest.substr(kExactThen.size(), plus - kExactThen.size()));
    rest.remove_prefix(std::min(plus + 1, rest.size()));
  }
  const std::optional<int32_t> samples =
      rest.starts_with(kUniform) ? parse_count(rest.substr(kUniform.size())) : std::nullopt;
  if (!exact || !samples || *exact > layers)
    throw InvalidArgument(fmt::format(
        "schedule \"{}\": uniform:N takes one number >= 0, the samples of every layer, as in uniform:8; "
        "exact:K+uniform:N leaves the first K of the {} layers exact, as in exact:2+uniform:8",
        text, layers));
  policy::Schedule schedule = policy::uniform_schedule(layers, *samples);
  std::fill_n(schedule.samples.begin(), *exact, kExactLayer);
  return schedule;
}

// Whether the text is meant as a list: each entry is "exact" or made of what numbers are made of.
bool is_list(std::string_view text) {
  for (std::string_view entry : entries_of(text)) {
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    if (entry != kExactLayerText && entry.find_first_not_of("0123456789- ") != std::string_view::npos)
      return false;
  }
  return true;
}

// An export into the directory changed config.json, and so its hash; weights, tokenizer and shape still tell
// whether the model is the schedule's.
bool carries_schedule(const std::filesystem::path& directory) {
  try {
    return read_own_schedule(directory).has_value();
  } catch (const Error&) {
    return false;  // said elsewhere (note_unread_schedule)
  }
}

}  // namespace

std::vector<int32_t> NamedSchedule::samples_of_prompt(int64_t tokens) const {
  if (!schedule) return {};
  if (!has_bands()) return schedule->samples;
  return policy::schedule_of_prompt(file->bands, *schedule, tokens).samples;
}

NamedSchedule parse_schedule_argument(const std::string& text, const model::ModelIdentity& model,
                                      const std::filesystem::path& directory, Bands bands) {
  NamedSchedule named{.label = text, .schedule = std::nullopt, .file = std::nullopt};
  if (text == "dense") return named;
  if (text.starts_with(kUniform) || text.starts_with(kExactThen)) {
    named.schedule = parse_uniform(text, model.layers);
  } else if (is_list(text)) {
    named.schedule = policy::parse_schedule(text);
  } else if (text == kOwnSchedule) {
    named.file = read_own_schedule(directory);
    if (!named.file)
      throw NotFound(
          fmt::format("schedule \"{}\": {} has no key \"allot\"; `allot export --format hf-config` writes it",
                      text, (directory / "config.json").string()));
    check_matches(*named.file, model);
    named.schedule = named.file->schedule;
  } else {
    if (!std::filesystem::exists(text))
      throw NotFound(fmt::format("schedule \"{}\" is none of {}, and there is no file of that name", text,
                                 kScheduleForms));
    named.file = read_schedule_file(text, bands);
    if (carries_schedule(directory)) named.file->conditions.unknown.insert("model.config_sha256");
    check_matches(*named.file, model);
    named.schedule = named.file->schedule;
  }
  policy::check_schedule(*named.schedule, model.layers, /*floor=*/0);
  return named;
}

std::string describe_own(const ScheduleFile& own) {
  const std::vector<int32_t>& samples = own.schedule.samples;
  const int64_t exact = exact_layers(samples);
  const std::string resolved = resolved_text(own);
  return fmt::format("{} {} over {} layers{}, of run '{}'{}", own.total,
                     kernels::name(own.conditions.attention.unit), samples.size() - exact,
                     exact > 0 ? fmt::format(" and {} exact", exact) : "", own.run_id,
                     resolved.empty() ? "" : ", " + resolved);
}

void note_unread_schedule(const std::filesystem::path& directory, std::string_view instead) {
  try {
    if (const auto own = read_own_schedule(directory)) {
      spdlog::warn("{} carries a schedule ({}), which does not run here; {}",
                   (directory / "config.json").string(), describe_own(*own), instead);
    }
  } catch (const NotFound&) {
    // No model is there, which its readers say.
  } catch (const Error& error) {
    spdlog::warn("the schedule in the model directory does not run here and cannot be read: {}",
                 error.what());
  }
}

std::vector<int64_t> parse_totals(std::string_view text, std::string_view option) {
  std::vector<int64_t> totals;
  for (const std::string_view entry : entries_of(text)) {
    int64_t total = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), total);
    if (error != std::errc{} || end != entry.data() + entry.size() || total < 1)
      throw UsageError(fmt::format(
          "{}: \"{}\" is no number of samples; expected numbers >= 1 separated by commas, as in 60,120",
          option, entry));
    if (std::ranges::find(totals, total) != totals.end())
      throw UsageError(fmt::format("{}: {} is given twice", option, total));
    totals.push_back(total);
  }
  return totals;
}

}  // namespace allot::app
