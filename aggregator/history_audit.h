// Who did what in a run, from its history: what each holder of a key was granted and what came of it, and
// every command of an operator.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "aggregator/history.h"
#include "aggregator/lease_table.h"
#include "aggregator/records.h"
#include "base/clock.h"

namespace allot::aggregator {

// Of the workers of one key; without keys, of one worker (holder.h).
struct HolderAudit {
  std::set<std::string> workers;          // their names
  int64_t granted = 0;                    // leases
  int64_t held = 0;                       // of these, with neither a result nor an end yet
  std::map<AckVerdict, int64_t> results;  // stored ones: kAccepted, kLate, kStale
  std::map<LeaseEnd, int64_t> ended;      // leases without a stored result
  int64_t answers_kept = 0;               // questions answered by leases that were given back
  double seconds = 0;                     // of work, as the workers reported it
  Timestamp first, last;                  // of its events
};

struct Audit {
  std::map<std::string, HolderAudit> holders;  // by name
  std::vector<RunControlled> controls;         // in their order, those of the run itself included
};

// Reads the whole history. Memory grows with the leases that are held at once, the workers and the controls.
// Throws as History::replay does.
Audit audit(const History& history);

}  // namespace allot::aggregator
