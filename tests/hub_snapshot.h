// A snapshot in a cache of the Hugging Face hub, laid out as `hf download` does: files as links into blobs.
#pragma once

#include <filesystem>
#include <string>

#include "base/file.h"

namespace allot {

// Moves the files of `from` into the cache as commit `commit` of `repository` ("org/name"), to which
// `revision` then points. Returns the snapshot's directory.
inline std::filesystem::path write_snapshot(const std::filesystem::path& cache, std::string repository,
                                            const std::string& revision, const std::string& commit,
                                            const std::filesystem::path& from) {
  const std::filesystem::path folder =
      cache / ("models--" + repository.replace(repository.find('/'), 1, "--"));
  const std::filesystem::path snapshot = folder / "snapshots" / commit;
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(folder / "blobs");
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::filesystem::path name = entry.path().filename();
    const std::string blob = commit.substr(0, 4) + "-" + name.string();
    std::filesystem::rename(entry.path(), folder / "blobs" / blob);
    std::filesystem::create_symlink(std::filesystem::path("../../blobs") / blob, snapshot / name);
  }
  write_file_atomically(folder / "refs" / revision, commit);
  return snapshot;
}

}  // namespace allot
