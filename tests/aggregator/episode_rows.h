// All accepted episodes of a run, for tests of short ones; the product reads them one at a time.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "aggregator/run_data.h"

namespace allot::aggregator {

// Of the stage "learn" or "verify", or of both, in the order they were told.
inline std::vector<EpisodeRow> episode_rows(const std::filesystem::path& run_directory,
                                            std::string_view stage = "") {
  std::vector<EpisodeRow> rows;
  RunFollower(run_directory).new_episodes([&](const EpisodeRow& row) {
    if (stage.empty() || row.stage == stage) rows.push_back(row);
  });
  return rows;
}

}  // namespace allot::aggregator
