// A directory that lives as long as a test, with what the tests of model files write into it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/temporary_directory.h"
#include "tests/message_of.h"

namespace allot::model {

class TestDirectory : public TemporaryDirectory {
 public:
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(path() / name, std::ios::binary) << content;
    return path() / name;
  }
};

}  // namespace allot::model
