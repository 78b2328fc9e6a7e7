#include "app/cli/config_lines.h"

#include <optional>
#include <sstream>
#include <string_view>

#include "base/ascii.h"
#include "base/file.h"

namespace allot::app {
namespace {

// The value after `=` on a line of a config file; nothing when a quote is not closed or is followed
// by other text.
std::optional<std::string> parse_config_value(std::string_view text) {
  if (!text.starts_with('"')) {
    for (size_t at = text.find('#'); at != std::string_view::npos; at = text.find('#', at + 1)) {
      if (at == 0 || text[at - 1] == ' ' || text[at - 1] == '\t') {
        text = text.substr(0, at);
        break;
      }
    }
    return std::string(trim(text));
  }
  std::string value;
  for (size_t at = 1; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) {
      value += text[++at];
    } else if (text[at] == '"') {
      const std::string_view rest = trim(text.substr(at + 1));
      if (rest.empty() || rest.starts_with('#')) return value;
      return std::nullopt;
    } else {
      value += text[at];
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<ConfigLine> read_config_lines(const std::filesystem::path& file,
                                          std::vector<std::string>* faults) {
  std::istringstream lines(read_file(file));
  std::vector<ConfigLine> read;
  std::string line, section;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const std::string_view text = trim(line);
    if (text.empty() || text.starts_with('#')) continue;
    const std::string where = file.string() + ":" + std::to_string(number) + ": ";
    if (text.starts_with('[') && text.ends_with(']')) {
      section = trim(text.substr(1, text.size() - 2));
      if (section.empty())
        faults->push_back(where + "'" + std::string(text) + "' names no section");
      else
        read.push_back({where, section, "", ""});
      continue;
    }
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      faults->push_back(where + "'" + std::string(text) + "' is no 'name = value'");
      continue;
    }
    const std::string name(trim(text.substr(0, equals)));
    const auto value = parse_config_value(trim(text.substr(equals + 1)));
    if (!value)
      faults->push_back(where + name + " has an open quote or text after its quote");
    else
      read.push_back({where, section, name, *value});
  }
  return read;
}

}  // namespace allot::app
