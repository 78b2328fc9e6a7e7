// A directory that lives as long as a test, with what the tests of model files write into it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/temporary_directory.h"

namespace allot::model {

class TestDirectory : public TemporaryDirectory {
 public:
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(path() / name, std::ios::binary) << content;
    return path() / name;
  }
};

// What `action` throws, of exactly this type; empty, with a failure noted, when it throws nothing or another
// type.
template <typename Expected, typename Action>
std::string message_of(Action action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "thrown was another type: " << error.what();
  }
  return "";
}

}  // namespace allot::model
