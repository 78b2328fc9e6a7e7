// A run directory as its one aggregator holds it: locked against a second one, and bound to one spec.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "wire/messages_fwd.h"

namespace allot::aggregator {

std::filesystem::path spec_path(const std::filesystem::path& run_directory);
std::filesystem::path history_path(const std::filesystem::path& run_directory);
std::filesystem::path endpoint_path(const std::filesystem::path& run_directory);
// The text of the run's task file, where it has one: what later commands name with --task.
std::filesystem::path task_path(const std::filesystem::path& run_directory);
// The file with the public key of the aggregator that serves this directory, if it has one.
std::filesystem::path server_key_path(const std::filesystem::path& run_directory);
// The file with the URL of the live page while one is served.
std::filesystem::path http_path(const std::filesystem::path& run_directory);
// The file with the URL of metrics and probes while they have an address of their own.
std::filesystem::path metrics_path(const std::filesystem::path& run_directory);

// Whether a process holds the directory's lock, as an aggregator does from its start to its end, also while
// it is stopped or hangs. Nothing where the lock cannot be looked at.
std::optional<bool> is_locked(const std::filesystem::path& run_directory);

class RunDirectory {
 public:
  // Makes the directory and its spec.json when they do not exist, and holds the lock until destroyed
  // (the system drops it with the process, however that ends). Throws Mismatch when the directory holds
  // a run of another spec, naming every field that differs; StorageError, also when another aggregator
  // works there; CorruptFile.
  RunDirectory(const std::filesystem::path& path, const wire::RunSpec& wanted);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The spec as stored: its names and paths are those of the first start.
  const wire::RunSpec& spec() const { return *spec_; }

 private:
  void lock();

  std::filesystem::path path_;
  std::unique_ptr<wire::RunSpec> spec_;
  int lock_file_ = -1;
};

}  // namespace allot::aggregator
