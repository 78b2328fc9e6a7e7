// A learner behind JSON lines, so that programs in any language can rehearse it on surfaces of their own
// (`allot policy --stdio`). docs/policy.md holds the protocol.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "policy/policy.h"

namespace allot::policy {

class Session {
 public:
  // `floor` is the least number of samples of a layer, for requests "init" that do not say "floor".
  Session(std::string method, int32_t floor) : method_(std::move(method)), floor_(floor) {}

  // The answer to one request, both without a line end: an object, {"ok":false,"error":"…"} for a request
  // that is not understood or holds wrong values, which changes nothing.
  std::string answer(std::string_view request);
  // True once "stop" was answered.
  bool stopped() const { return stopped_; }

 private:
  struct Asked {
    std::vector<int32_t> samples;
    std::vector<uint32_t> questions;
    bool told = false;
  };

  nlohmann::json respond(const nlohmann::json& request);
  nlohmann::json init(const nlohmann::json& request);
  nlohmann::json ask(const nlohmann::json& request);
  nlohmann::json tell(const nlohmann::json& request);
  // The proposal that a result belongs to: by its id, else the first with its schedule and questions, if
  // possible one that was not told yet.
  int64_t number_of(const nlohmann::json& result) const;
  Policy& policy();
  // The questions of a group: `batch` different ones of the pool, a function of seed and group.
  std::vector<uint32_t> questions_of(int64_t group) const;

  std::string method_;
  int32_t floor_;
  bool stopped_ = false;
  // Of the last init.
  std::unique_ptr<Policy> policy_;
  PolicyConfig config_;
  int64_t batch_ = 0;
  int64_t pool_ = 0;
  std::vector<Asked> asked_;                                         // by number
  std::multimap<std::vector<int32_t>, int64_t> numbers_by_samples_;  // of all asked
};

}  // namespace allot::policy
