#include "app/files/model_directory.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "app/files/schedule_file.h"
#include "base/error.h"
#include "base/file.h"
#include "model/merged_checkpoint.h"

namespace allot::app {
namespace {

namespace fs = std::filesystem;

bool holds_weights(const fs::path& file) {
  const std::string name = file.filename().string();
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{".safetensors", ".safetensors.index.json", ".bin",
                                              ".bin.index.json", ".pt", ".pth", ".gguf"},
      [&](std::string_view end) { return name.ends_with(end); });
}

// Links the files of `model` that `wanted` takes into `directory`.
void link_files(const fs::path& model, const fs::path& directory,
                const std::function<bool(const fs::path&)>& wanted) {
  fs::create_directories(directory);
  for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
    const fs::path link = directory / entry.path().filename();
    if (!entry.is_regular_file() || link.filename() == "config.json" || !wanted(link)) continue;
    if (fs::is_symlink(link)) {
      fs::remove(link);
    } else if (fs::exists(link)) {
      throw InvalidArgument(link.string() +
                            " is there and is no link of an earlier export; choose another folder");
    }
    fs::create_symlink(fs::canonical(entry.path()), link);
  }
}

// Makes room for the merged weights: links of an earlier export go, and what one merged.
void remove_earlier_weights(const fs::path& directory) {
  bool was_merged = false;
  if (fs::exists(directory / "config.json")) {
    const auto earlier = read_own_schedule(directory);
    was_merged = earlier && earlier->merged_from;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (!holds_weights(entry.path())) continue;
    const bool ours = was_merged && entry.path().filename() == "model.safetensors";
    if (!fs::is_symlink(entry.path()) && !ours)
      throw InvalidArgument(entry.path().string() +
                            " is there and was not written by an earlier export; choose another folder");
    fs::remove(entry.path());
  }
}

}  // namespace

void link_model(const fs::path& model, const fs::path& directory) {
  try {
    link_files(model, directory, [](const fs::path&) { return true; });
  } catch (const fs::filesystem_error& error) {
    throw StorageError(error.what());
  }
}

void merge_model(const fs::path& model, const fs::path& adapter, const fs::path& directory) {
  try {
    link_files(model, directory, [](const fs::path& file) { return !holds_weights(file); });
    remove_earlier_weights(directory);
    const fs::path partial = directory / "model.safetensors.partial";
    fs::remove(partial);
    model::write_merged_checkpoint(model, adapter, partial);
    fs::rename(partial, directory / "model.safetensors");
    write_file_atomically(directory / "config.json", read_file(model / "config.json"));
  } catch (const fs::filesystem_error& error) {
    throw StorageError(error.what());
  }
}

}  // namespace allot::app
