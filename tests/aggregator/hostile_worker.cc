#include "tests/aggregator/hostile_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>
#include <thread>

#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/simulated_spec.h"
#include "wire/codec.h"
#include "wire/endpoint.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 500ms;
// Between two names; honest work must not starve for want of a processor.
constexpr auto kRest = 20ms;

class HostileWorker {
 public:
  HostileWorker(const std::string& endpoint, const std::optional<wire::ClientKeys>& keys, uint64_t seed)
      : random_(seed), client_(endpoint, keys) {}

  // One name: hello, some leases, and something bad with each. False when the aggregator does not answer.
  bool misbehave(uint64_t name) {
    wire::Envelope hello;
    *hello.mutable_hello() = example_hello(simulated_spec(1), fmt::format("sybil-{}", name));
    const std::optional<wire::Envelope> welcome = ask(std::move(hello));
    if (!welcome) return false;
    wire::Envelope request;
    request.mutable_lease_request()->set_count(below(6));
    request.mutable_lease_request()->set_capacity(std::numeric_limits<int32_t>::max());
    const std::optional<wire::Envelope> grant = ask(std::move(request));
    if (!grant) return false;
    for (const wire::Lease& lease : grant->grant().leases()) abuse(lease);
    if (last_lease_.lease() > 0) disturb_others();
    return true;
  }

 private:
  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }

  std::optional<wire::Envelope> ask(wire::Envelope message) {
    message.set_number(++number_);
    const uint64_t number = number_;
    client_.send(wire::encode(std::move(message)));
    while (const std::optional<std::string> frame = client_.receive(kPatience)) {
      const auto decoded = wire::decode(*frame);
      const auto* answer = std::get_if<wire::Envelope>(&decoded);
      if (answer == nullptr || answer->in_reply_to() != number) continue;
      for (const wire::Lease& lease : answer->grant().leases()) last_lease_ = lease;
      return *answer;
    }
    return std::nullopt;
  }

  void send_result(wire::EpisodeResult result) {
    wire::Envelope message;
    *message.mutable_result() = std::move(result);
    (void)ask(std::move(message));
  }

  void abuse(const wire::Lease& lease) {
    wire::EpisodeResult result = result_of(lease, 4);
    switch (below(6)) {
      case 0:
        return;  // held without a word until it expires
      case 1:
        result.clear_outcomes();
        result.set_error("false");
        break;
      case 2:
        result.set_seconds(1e300);
        break;
      case 3:
        result.mutable_outcomes(0)->set_score(-7);
        break;
      case 4:
        result.mutable_outcomes()->RemoveLast();
        break;
      default:
        result.set_error("broke");
        result.set_crashed(true);
        result.clear_outcomes();
    }
    send_result(std::move(result));
  }

  void disturb_others() {
    wire::Lease other = last_lease_;
    // Some guess right, of leases that are held or that have expired.
    other.set_lease(std::max<int64_t>(1, other.lease() - 1 - below(20)));
    other.set_episode(std::max<int64_t>(0, other.episode() - below(20)));
    wire::Envelope message;
    switch (below(4)) {
      case 0:
        return send_result(result_of(other, 0));
      case 1:
        message.mutable_release()->add_leases(other.lease());
        *message.mutable_release()->add_partial() = CoreDriver::partial_of(other, {0, 1});
        break;
      case 2:
        message.mutable_control()->set_action(wire::Control::ACTION_STOP);
        message.mutable_control()->set_by("the boss");
        break;
      default:
        client_.send("these are no words of the protocol");
        return;
    }
    (void)ask(std::move(message));
  }

  std::mt19937_64 random_;
  wire::Client client_;
  uint64_t number_ = 0;
  wire::Lease last_lease_;  // that it was granted
};

}  // namespace

void work_against(const std::string& endpoint, const std::optional<wire::ClientKeys>& keys, uint64_t seed,
                  const std::atomic<bool>& stop) {
  uint64_t name = 0;
  while (!stop) {
    HostileWorker worker(endpoint, keys, seed + name);
    while (!stop && worker.misbehave(++name)) std::this_thread::sleep_for(kRest);
  }
}

}  // namespace allot::aggregator
