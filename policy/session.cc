#include "policy/session.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "policy/draws.h"
#include "policy/learner.h"

namespace allot::policy {
namespace {

using nlohmann::json;

// Proposals of one answer at most: more could not profit from each other's outcomes.
constexpr int64_t kMostProposals = 8;
constexpr int64_t kMostOfAnything = std::numeric_limits<int32_t>::max();

// A whole number of a request, or `otherwise` where it says none.
int64_t whole(const json& request, const char* field, int64_t least, std::optional<int64_t> otherwise) {
  const auto found = request.find(field);
  if (found == request.end() && otherwise) return *otherwise;
  const bool given = found != request.end() && found->is_number_integer();
  const bool fits =
      given && (found->is_number_unsigned() ? found->get<uint64_t>() <= uint64_t{kMostOfAnything}
                                            : found->get<int64_t>() <= kMostOfAnything);
  if (fits && found->get<int64_t>() >= least) return found->get<int64_t>();
  throw InvalidArgument(std::string(field) + " is " + (found == request.end() ? "missing" : found->dump()) +
                        "; expected a whole number from " + std::to_string(least) + " to " +
                        std::to_string(kMostOfAnything));
}

template <class Number>
std::vector<Number> whole_numbers(const json& request, const char* field) {
  const json& list = request.at(field);
  std::vector<Number> numbers;
  bool valid = list.is_array();
  for (const json& one : valid ? list : json::array()) {
    valid = valid && one.is_number_unsigned() && one.get<uint64_t>() <= uint64_t{kMostOfAnything};
    if (valid) numbers.push_back(one.get<Number>());
  }
  if (valid) return numbers;
  throw InvalidArgument(std::string(field) + " is " + list.dump() +
                        "; expected a list of whole numbers, each at least 0");
}

// Scores of the questions, each from 0 to 1.
std::vector<double> scores(const json& list) {
  std::vector<double> all;
  bool valid = list.is_array() && !list.empty();
  for (const json& one : valid ? list : json::array()) {
    const double score = one.is_boolean()  ? (one.get<bool>() ? 1 : 0)
                         : one.is_number() ? one.get<double>()
                                           : -1;
    valid = valid && score >= 0 && score <= 1;
    all.push_back(score);
  }
  if (valid) return all;
  throw InvalidArgument("correct is " + list.dump() + "; expected a list of 0 and 1, one for each question");
}

}  // namespace

std::string Session::answer(std::string_view request) {
  json reply;
  try {
    const json parsed = json::parse(request, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) throw InvalidArgument("the request is no JSON object; send one object a line");
    reply = respond(parsed);
  } catch (const InvalidArgument& error) {
    reply = {{"ok", false}, {"error", error.what()}};
  }
  return reply.dump(-1, ' ', false, json::error_handler_t::replace);
}

json Session::respond(const json& request) {
  const json op = request.value("op", json());
  if (op == "init") return init(request);
  if (op == "ask") return ask(request);
  if (op == "tell") return tell(request);
  if (op == "recommend") return {{"schedule", policy().recommend().samples}};
  if (op == "stop") {
    stopped_ = true;
    return {{"ok", true}};
  }
  throw InvalidArgument("op is " + op.dump() + "; expected init, ask, tell, recommend or stop");
}

Policy& Session::policy() {
  if (policy_ == nullptr) throw InvalidArgument("there is no learner yet; send init first");
  return *policy_;
}

json Session::init(const json& request) {
  PolicyConfig config{.name = method_};
  config.layers = static_cast<int>(whole(request, "layers", 1, {}));
  config.total = whole(request, "samples", 1, {});
  config.floor = static_cast<int32_t>(whole(request, "floor", 0, floor_));
  config.seed = static_cast<uint64_t>(whole(request, "seed", 0, 0));
  config.max_policy_lag = find_learner(method_)->max_policy_lag;
  const int64_t batch = whole(request, "batch", 1, 16);
  const int64_t pool = whole(request, "pool", 1, batch);
  if (pool < batch) {
    throw InvalidArgument("pool is " + std::to_string(pool) + ", batch " + std::to_string(batch) +
                          "; expected a pool of at least one batch");
  }
  whole(request, "budget", 1, 1);
  if (request.contains("checkpoints")) whole_numbers<int64_t>(request, "checkpoints");
  policy_ = make_policy(config);
  config_ = config;
  batch_ = batch;
  pool_ = pool;
  asked_.clear();
  numbers_by_samples_.clear();
  return {{"ok", true}, {"name", method_}};
}

std::vector<uint32_t> Session::questions_of(int64_t group) const {
  DrawStream draws(config_.seed, static_cast<uint64_t>(group), draw_purpose("session-questions"));
  // Floyd's algorithm: each set of `batch` numbers is as likely as any other.
  std::vector<uint32_t> questions;
  for (int64_t bound = pool_ - batch_; bound < pool_; ++bound) {
    const uint32_t drawn = draws.below(static_cast<uint32_t>(bound + 1));
    const bool taken = std::ranges::find(questions, drawn) != questions.end();
    questions.push_back(taken ? static_cast<uint32_t>(bound) : drawn);
  }
  return questions;
}

json Session::ask(const json& request) {
  const auto count = static_cast<int>(std::min(whole(request, "max", 1, 1), kMostProposals));
  json episodes = json::array();
  for (const Proposal& proposal : policy().ask(count)) {
    asked_.push_back({proposal.schedule.samples, questions_of(proposal.group)});
    numbers_by_samples_.emplace(proposal.schedule.samples, proposal.number);
    episodes.push_back({{"id", proposal.number},
                        {"schedule", proposal.schedule.samples},
                        {"questions", asked_.back().questions}});
  }
  return {{"episodes", std::move(episodes)}};
}

int64_t Session::number_of(const json& result) const {
  if (result.contains("id")) {
    const int64_t number = whole(result, "id", 0, {});
    if (number < std::ssize(asked_)) return number;
    throw InvalidArgument("id is " + std::to_string(number) + ", but only " + std::to_string(asked_.size()) +
                          " episodes were asked; send the id of the episode");
  }
  if (!result.contains("schedule"))
    throw InvalidArgument("a result has neither id nor schedule; send one of them");
  const auto samples = whole_numbers<int32_t>(result, "schedule");
  const auto [begin, end] = numbers_by_samples_.equal_range(samples);
  if (begin == end) {
    throw InvalidArgument("schedule " + Schedule{samples}.to_string() +
                          " was never asked; send the schedule as it was asked, or the id");
  }
  std::vector<uint32_t> questions;
  if (result.contains("questions")) questions = whole_numbers<uint32_t>(result, "questions");
  // Smaller is better: not told before, the same questions, early.
  const auto rank = [&](const auto& entry) {
    const Asked& asked = asked_[static_cast<size_t>(entry.second)];
    return std::tuple(asked.questions != questions, asked.told, entry.second);
  };
  return std::ranges::min_element(begin, end, {}, rank)->second;
}

json Session::tell(const json& request) {
  Policy& learner = policy();
  const auto list = request.find("results");
  if (list == request.end() || !list->is_array())
    throw InvalidArgument("results is no list; send a list of results");
  struct Told {
    int64_t number = 0;
    double reward = 0;
    std::vector<QuestionResult> results = {};
  };
  // All are read before the first is told, so that a wrong one changes nothing.
  std::vector<Told> all;
  std::vector<int64_t> marked;
  try {
    for (const json& result : *list) {
      if (!result.is_object()) throw InvalidArgument("result " + result.dump() + " is no object");
      Told told{.number = number_of(result)};
      Asked& asked = asked_[static_cast<size_t>(told.number)];
      if (result.contains("correct")) {
        const std::vector<double> correct = scores(result.at("correct"));
        const auto questions =
            result.contains("questions") ? whole_numbers<uint32_t>(result, "questions") : asked.questions;
        if (questions.size() != correct.size()) {
          throw InvalidArgument("a result has " + std::to_string(correct.size()) + " answers to " +
                                std::to_string(questions.size()) + " questions; send one for each");
        }
        for (size_t k = 0; k < correct.size(); ++k) {
          told.results.push_back({.question = questions[k], .score = correct[k]});
        }
        told.reward = mean_score(told.results);
      }
      if (const auto reward = result.find("reward"); reward != result.end()) {
        if (!reward->is_number() || !std::isfinite(reward->get<double>())) {
          throw InvalidArgument("reward is " + reward->dump() + "; expected a finite number");
        }
        told.reward = reward->get<double>();
      } else if (told.results.empty()) {
        throw InvalidArgument("a result has neither correct nor reward; send one of them");
      }
      if (!asked.told) {
        asked.told = true;
        marked.push_back(told.number);
      }
      all.push_back(std::move(told));
    }
  } catch (const InvalidArgument&) {
    for (const int64_t number : marked) asked_[static_cast<size_t>(number)].told = false;
    throw;
  }
  for (const Told& told : all)
    learner.tell({.number = told.number, .reward = told.reward, .results = told.results});
  return {{"ok", true}};
}

}  // namespace allot::policy
