// Whether a run that went through faults is what it would have been without them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "wire/messages.pb.h"

namespace allot::chaos {

struct Audit {
  std::vector<std::string> faults;  // what is not as promised, in words; empty for a sound run
  int64_t epochs = 0;
  int64_t episodes = 0;  // asked, of both stages
  int64_t outcomes = 0;  // told
  int64_t stale = 0;     // of these, too old to learn from
  int64_t given_up = 0;  // given up instead
  int64_t leases = 0;
  int64_t answers_kept = 0;       // questions answered in an earlier part
  int64_t answered_in_parts = 0;  // outcomes that hold such answers
  wire::Counters counters;
  // Of a replay of the history: the final policy.
  int64_t policy_version = 0;
  std::vector<double> shares;
  std::vector<int32_t> recommended;
  std::string policy_state;
  // What the policy was told, in order, a line each: episode, schedule, questions, answers.
  std::vector<std::string> tells;
};

// Reads the run directory of a finished run of simulated workers. Expected: `allot history check` finds
// nothing; every episode that was asked has one outcome or was given up; every outcome and every kept answer
// is what the simulated model gives for that episode, whoever answered; every lease ended once; the counters
// agree with the rows; the core's replay and a replay by hand give the recorded policy bit for bit. Nothing
// failed and nothing was refused, unless someone worked against the run (`hostile`).
Audit audit_run(const std::filesystem::path& run_directory, bool hostile = false);

// The faults of a live aggregator whose run is finished, beside what its history gives.
std::vector<std::string> compare(const Audit& audit, const wire::Status& live);

}  // namespace allot::chaos
