// Runs a target on files, and on every file of directories: the committed inputs as an ordinary test, or one
// input that a fuzzer found. A crash, a hang or a broken promise ends it; it names the file first.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& place) {
  if (!std::filesystem::is_directory(place)) return {place};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(place)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::filesystem::path& file : files_of(argv[i])) {
      std::cerr << file.string() << std::endl;
      try {
        const std::string bytes = allot::read_file(file);
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      } catch (const std::exception& error) {
        std::cerr << "threw what a reader must not throw: " << error.what() << std::endl;
        return 1;
      }
      ++inputs;
    }
  }
  std::cerr << inputs << " inputs" << std::endl;
  if (inputs > 0) return 0;
  std::cerr << "no input was found; give files, or directories with files" << std::endl;
  return 2;
}
