// The lease table under any sequence of events: its invariants hold after each, an event that it refuses
// changes nothing, and no question about any lease or episode disturbs it.
#include <stdexcept>
#include <vector>

#include "aggregator/lease_table.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"

namespace allot::fuzz {
namespace {

using aggregator::LeaseEnd;
using aggregator::LeaseTable;
using aggregator::Standing;

// More episodes and leases than this find nothing new and cost time: each check looks at all of them.
constexpr int kMaxOffers = 12;
constexpr int kMaxEvents = 48;
// A refused event changes nothing, and its exception costs as much as ten that fit.
constexpr int kMaxRefused = 4;
// The invariants look at the whole table, so they are checked after each of the first events, which short
// inputs reach, then after some, and at the end: what is broken once stays broken.
constexpr int kCheckedEach = 16;
constexpr int kCheckedEvery = 8;

class Session {
 public:
  explicit Session(ByteSource source)
      : source_(source), table_(Duration{1 + source_.byte()}, 1 + source_.below(3)) {}

  void run() {
    int refused = 0;
    for (int event = 0; event < kMaxEvents && refused < kMaxRefused && !source_.empty(); ++event) {
      try {
        step();
      } catch (const std::logic_error&) {
        ++refused;  // an event that does not fit: documented to change nothing
      }
      if (event < kCheckedEach || event % kCheckedEvery == 0) check();
    }
    check();
  }

 private:
  void check() const {
    const std::vector<std::string> broken = table_.broken_invariants();
    require(broken.empty(), broken.empty() ? "" : broken.front());
  }

  // Around the known ids, so that one too low and one too high come up as well.
  LeaseId lease() { return {source_.below(static_cast<int>(table_.next_lease().value) + 2) - 1}; }
  EpisodeId episode() { return {source_.below(static_cast<int>(offered_) + 2) - 1}; }
  std::string worker() { return std::string(1, static_cast<char>('a' + source_.below(3))); }

  void step() {
    switch (source_.below(11)) {
      case 0:
        if (offered_ == kMaxOffers) return;
        table_.offer({offered_});
        ++offered_;
        return;
      case 1:
        return table_.offer(episode_not_next());
      case 2:
        if (const auto waiting = table_.next_waiting()) {
          const int attempt = table_.attempt(*waiting);
          require(attempt >= 1, "the attempts of an episode are numbered from 1");
          table_.grant(table_.next_lease(), *waiting, worker(), now_);
        }
        return;
      case 3:
        return table_.grant(lease(), episode(), worker(), now_);
      case 4:
        return table_.end(lease(), static_cast<LeaseEnd>(source_.below(5)));
      case 5:
        return done();
      case 6:
        return table_.give_up(episode());
      case 7:
        for (const EpisodeId exhausted : table_.exhausted()) table_.give_up(exhausted);
        return;
      case 8:
        return renew();
      case 9:
        now_ += Duration{source_.byte()};
        for (const LeaseId due : table_.due(now_)) table_.end(due, LeaseEnd::kExpired);
        require(!table_.next_deadline() || *table_.next_deadline() > now_, "what is due has been ended");
        return;
      case 10:
        return table_.renew_all(now_);
    }
  }

  EpisodeId episode_not_next() {
    const EpisodeId any = episode();
    return any.value == offered_ ? EpisodeId{-1} : any;
  }

  void done() {
    const LeaseId answered = lease();
    const EpisodeId of = episode();
    const Standing standing = table_.judge(answered, of).standing;
    const auto superseded = table_.done(of, answered, aggregator::AckVerdict::kAccepted);
    require(standing == Standing::kLive || standing == Standing::kLate,
            "a result is taken from a lease that is held or late only");
    require(!superseded || *superseded != answered, "a lease does not supersede itself");
    require(table_.judge(answered, of).standing == Standing::kDuplicate, "a second result is a duplicate");
  }

  void renew() {
    const std::string name = worker();
    const std::vector<int64_t> listed = {lease().value, lease().value, INT64_MAX, INT64_MIN};
    const std::vector<int64_t> unknown = table_.renew(name, listed, now_);
    require(unknown.size() >= 2, "leases that were never granted are unknown");
    for (const int64_t id : listed) {
      const bool named = std::find(unknown.begin(), unknown.end(), id) != unknown.end();
      require(table_.held_episode({id}, name).has_value() != named,
              "unknown is what the worker does not hold");
    }
  }

  ByteSource source_;
  LeaseTable table_;
  Timestamp now_{};
  int64_t offered_ = 0;
};

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allot::fuzz::Session(allot::fuzz::ByteSource({data, size})).run();
  return 0;
}
