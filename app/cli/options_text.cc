#include "app/cli/options_impl.h"

namespace allot::app {
namespace {

// What the word after an option is, by its hint.
Takes takes_by(std::string_view hint) {
  for (const std::string_view file : {"PATH", "FILE", "KEY", "SCHEDULE"})
    if (hint == file) return Takes::kFile;
  if (hint == "DIR") return Takes::kDirectory;
  return hint.empty() ? Takes::kNothing : Takes::kValue;
}

}  // namespace

std::string OptionSet::help() const {
  return help_text(describe());
}

CommandDescription OptionSet::describe() const {
  CommandDescription command = {.name = impl_->command,
                                .summary = {},
                                .title = impl_->summary,
                                .example = impl_->example,
                                .positionals = impl_->positionals,
                                .options = {}};
  for (const Impl::Option& option : impl_->options) {
    std::string facts = option.range;
    const auto values = option.get();
    if (option.required) {
      facts += facts.empty() ? "required" : "; required";
      if (!option.required_unless.empty()) facts += " without --" + option.required_unless;
    } else if (option.shows_default && !option.is_flag && !values.empty() && !values.front().empty()) {
      facts += (facts.empty() ? "default " : "; default ") + values.front();
    }
    const std::string_view hint = option.hint;
    command.options.push_back({.name = option.name,
                               .hint = option.hint,
                               .help = option.help,
                               .facts = facts,
                               .takes = takes_by(hint),
                               .values = option.values,
                               .list = hint == "LIST" || hint.ends_with(",…") || hint.ends_with(",..."),
                               .repeatable = option.repeatable});
  }
  return command;
}

}  // namespace allot::app
