// The lines of config files and of files with sections: `name = value`, # comments, [section] lines.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace allot::app {

struct ConfigLine {
  std::string where;    // "FILE:LINE: ", for messages
  std::string section;  // of the last [section] line before it; empty before the first
  std::string name;     // empty: the line of the section itself
  std::string value;    // without quotes and comment
};

// Lines in the order of the file; those that cannot be read become `faults`, each naming file and line.
// Throws what read_file throws.
std::vector<ConfigLine> read_config_lines(const std::filesystem::path& file,
                                          std::vector<std::string>* faults);

}  // namespace allot::app
