#include "app/cli/options.h"

#include <charconv>
#include <cmath>

#include "app/cli/nearest_name.h"
#include "app/cli/options_impl.h"
#include "base/device.h"
#include "base/error.h"

namespace allot::app {
namespace {

template <class Number>
std::string format_number(Number value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

// Reads the whole text as a number, else gives nothing. NaN and infinities do not count as numbers.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

}  // namespace

template <class Number, class Field>
void OptionSet::Impl::number(const char* name, Field* field, Number min, Number max, const char* hint,
                             const char* help) {
  const std::string range = max == std::numeric_limits<Number>::max()
                                ? "at least " + format_number(min)
                                : "from " + format_number(min) + " to " + format_number(max);
  add({.name = name,
       .hint = hint,
       .help = help,
       .range = range,
       .set =
           [=](const std::string& text) {
             const auto value = parse_number<Number>(text);
             const char* kind = std::is_integral_v<Number> ? "a whole number " : "a number ";
             if (!value || *value < min || *value > max) return kind + range + " is expected";
             *field = *value;
             return std::string();
           },
       // A default outside the range means that there is no default.
       .get =
           [=] {
             const std::optional<Number> value = *field;
             const bool unset = !value || *value < min || *value > max;
             return unset ? std::vector<std::string>() : std::vector{format_number(*value)};
           }});
}

OptionSet::OptionSet(std::string command, std::string summary, std::string example)
    : impl_(std::make_unique<Impl>()) {
  impl_->command = std::move(command);
  impl_->summary = std::move(summary);
  impl_->example = std::move(example);
}

OptionSet::~OptionSet() = default;

void OptionSet::text(const char* name, std::string* field, const char* hint, const char* help) {
  impl_->add({.name = name,
              .hint = hint,
              .help = help,
              .set =
                  [=](const std::string& value) {
                    *field = value;
                    return std::string();
                  },
              .get = [=] { return std::vector{*field}; }});
}

void OptionSet::path(const char* name, std::filesystem::path* field, const char* help) {
  impl_->add({.name = name,
              .hint = "PATH",
              .help = help,
              .set =
                  [=](const std::string& value) {
                    *field = value;
                    return std::string();
                  },
              .get = [=] { return std::vector{field->string()}; }});
}

void OptionSet::path(const char* name, std::optional<std::filesystem::path>* field, const char* help) {
  impl_->add({.name = name,
              .hint = "PATH",
              .help = help,
              .set =
                  [=](const std::string& value) {
                    field->reset();
                    if (!value.empty()) *field = value;
                    return std::string();
                  },
              .get = [=] { return *field ? std::vector{(*field)->string()} : std::vector<std::string>{}; }});
}

void OptionSet::choice(const char* name, std::string* field, std::vector<std::string> choices,
                       const char* help) {
  choice(
      name, std::move(choices), [=](const std::string& value) { *field = value; }, [=] { return *field; },
      help);
}

void OptionSet::choice(const char* name, std::vector<std::string> choices,
                       std::function<void(const std::string&)> set, std::function<std::string()> get,
                       const char* help) {
  impl_->add({.name = name,
              .hint = "NAME",
              .help = help,
              .range = "one of " + join(choices, ", "),
              .values = choices,
              .set =
                  [=](const std::string& value) {
                    if (std::ranges::find(choices, value) == choices.end()) {
                      const auto nearest = nearest_name(value, choices);
                      return "one of " + join(choices, ", ") + " is expected" +
                             (nearest ? "; did you mean " + *nearest + "?" : "");
                    }
                    set(value);
                    return std::string();
                  },
              .get = [=] { return std::vector{get()}; }});
}

void OptionSet::integer(const char* name, int64_t* field, int64_t min, int64_t max, const char* hint,
                        const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::integer(const char* name, int32_t* field, int32_t min, int32_t max, const char* hint,
                        const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::integer(const char* name, std::optional<int64_t>* field, int64_t min, int64_t max,
                        const char* hint, const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::integer(const char* name, std::optional<int32_t>* field, int32_t min, int32_t max,
                        const char* hint, const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::real(const char* name, std::optional<double>* field, double min, double max, const char* hint,
                     const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::real(const char* name, double* field, double min, double max, const char* hint,
                     const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::device(std::string* field) {
  impl_->add({.name = "device",
              .hint = "DEVICE",
              .help = "where the model runs: cpu, cuda, cuda:N, or cuda:A-B to spread it over these devices",
              .values = {"cpu", "cuda"},
              .set =
                  [=, may_be_empty = field->empty()](const std::string& value) {
                    if (value.empty() && may_be_empty) return std::string();
                    try {
                      *field = parse_device(value).name();
                    } catch (const InvalidArgument&) {
                      return std::string("cpu, cuda, cuda:N or cuda:A-B is expected");
                    }
                    return std::string();
                  },
              .get = [=] { return std::vector{*field}; }});
}

void OptionSet::devices(std::string* field, const char* help) {
  impl_->add({.name = "devices",
              .hint = "LIST",
              .help = help,
              .values = {"all", "cpu", "cuda"},
              .set =
                  [=](const std::string& value) {
                    if (value.empty() || value == "all") {
                      *field = value;
                      return std::string();
                    }
                    try {
                      std::string names;
                      for (const Device& device : parse_device_list(value)) {
                        if (!names.empty()) names += ',';
                        names += device.name();
                      }
                      *field = names;
                    } catch (const InvalidArgument& error) {
                      return std::string("all or a list like cuda:0,cuda:2,cpu is expected (") +
                             error.what() + ")";
                    }
                    return std::string();
                  },
              .get = [=] { return std::vector{*field}; }});
}

void OptionSet::flag(const char* name, bool* field, const char* help) {
  impl_->add({.name = name,
              .help = help,
              .is_flag = true,
              .set =
                  [=](const std::string& value) {
                    if (value != "true" && value != "false") return std::string("true or false is expected");
                    *field = value == "true";
                    return std::string();
                  },
              .get = [=] { return std::vector<std::string>{*field ? "true" : "false"}; }});
}

void OptionSet::texts(const char* name, std::vector<std::string>* field, const char* hint, const char* help) {
  impl_->add({.name = name,
              .hint = hint,
              .help = help,
              .repeatable = true,
              .set =
                  [=](const std::string& value) {
                    field->push_back(value);
                    return std::string();
                  },
              .get = [=] { return *field; },
              .clear = [=] { field->clear(); }});
}

void OptionSet::custom(Custom option) {
  impl_->add({.name = std::move(option.name),
              .hint = std::move(option.hint),
              .help = std::move(option.help),
              .range = std::move(option.range),
              .repeatable = option.repeatable,
              .belongs_to = option.belongs_to,
              .shows_default = false,
              .set = std::move(option.set),
              .get = std::move(option.get),
              .clear = std::move(option.clear),
              .require_files = std::move(option.require_files)});
}

void OptionSet::positional(const char* name, std::string* field, const char* hint, const char* help) {
  text(name, field, hint, help);
  impl_->positionals.emplace_back(name);
}

void OptionSet::positional_choice(const char* name, std::string* field, std::vector<std::string> choices,
                                  const char* hint, const char* help) {
  choice(name, field, std::move(choices), help);
  impl_->declared(name).hint = hint;
  impl_->positionals.emplace_back(name);
}

void OptionSet::suggest(const char* name, std::vector<std::string> values) {
  impl_->declared(name).values = std::move(values);
}

void OptionSet::require(const char* name) {
  impl_->declared(name).required = true;
}

void OptionSet::require_unless(const char* other, const char* name) {
  impl_->declared(name).required = true;
  impl_->declared(name).required_unless = impl_->declared(other).name;
}

void OptionSet::resolve_with(std::function<void()> resolve) {
  impl_->resolve = std::move(resolve);
}

bool OptionSet::changed(const char* name) const {
  const Impl::Option& option = impl_->declared(name);
  return option.given && option.get() != option.initial;
}

bool OptionSet::has(const char* name) const {
  return impl_->find(name) != nullptr;
}

void OptionSet::fill(const char* name, const std::string& value) {
  const Impl::Option& option = impl_->declared(name);
  if (option.given) return;
  const std::string fault = option.set(value);
  if (!fault.empty()) throw UsageError("--" + option.name + " cannot be '" + value + "'; " + fault);
}

std::string OptionSet::value(const char* name) const {
  const std::vector<std::string> values = impl_->declared(name).get();
  return values.empty() ? "" : values.front();
}

bool OptionSet::dry_run() const {
  return impl_->dry_run;
}

bool OptionSet::given(const char* name) const {
  const auto* option = impl_->find(name);
  return option != nullptr && option->given;
}

std::vector<std::string> OptionSet::names() const {
  return impl_->names();
}

const std::string& OptionSet::log_level() const {
  return impl_->log_level;
}

}  // namespace allot::app
