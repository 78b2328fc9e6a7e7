#include "app/report/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "aggregator/outlook.h"
#include "aggregator/run_spec.h"
#include "app/report/run_again.h"
#include "app/report/run_summary.h"
#include "base/number_text.h"
#include "episode/samples.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

std::optional<policy::Outlook> last_outlook(const aggregator::RunData& run) {
  if (run.versions.empty()) return std::nullopt;
  return aggregator::outlook_of(run.versions.back().described);
}

std::string learning_text(const aggregator::RunData& run) {
  const auto outlook = last_outlook(run);
  const std::string episodes =
      run.learned_of_other_kinds == 0
          ? std::to_string(run.learned.size())
          : fmt::format("{} ({} of them divergences)", run.episodes_learned(), run.learned_of_other_kinds);
  if (!outlook) {
    return fmt::format(
        "Whether more episodes would bring more is not known: the learner {} keeps no estimate of it.",
        run.spec.policy().name());
  }
  const RewardKindRow& kind = row_of(run.kind);
  const std::string expects = fmt::format(
      "The learner expects {} over the even schedule on new questions, and at most {} more from going on.",
      kind.format_difference(outlook->over_even.mean, outlook->over_even.low, outlook->over_even.high),
      kind.format_amount(outlook->left_to_gain));
  if (run.settled) return fmt::format("Settled after {} episodes. {}", episodes, expects);
  if (run.stage == "learn") return expects;
  return fmt::format("Not settled: learning ended after {} episodes{}. {}", episodes,
                     run.until_settled ? ", the most that it may take (--most-episodes)" : "", expects);
}

std::string no_update_text(const aggregator::RunData& run) {
  const bool even = run.recommended == aggregator::even_schedule(run.spec).samples;
  if (run.policy_version == 0 && !run.versions.empty()) {
    return fmt::format("The policy made no update{}.", even ? ", so the schedule is the even one" : "");
  }
  if (!even || run.policy_version == 0) return "";
  return fmt::format("After {} updates the recommended schedule still is the even one.", run.policy_version);
}

std::vector<ReplyCounts> count_replies(const aggregator::RunData& run) {
  std::vector<ReplyCounts> counts;
  for (const aggregator::ScoreRow& score : run.scores) {
    if (score.results.empty()) continue;
    ReplyCounts& replies = counts.emplace_back();
    replies.label = score.label;
    for (const QuestionResult& result : score.results) {
      ++replies.all;
      replies.cut_off += result.finish == Finish::kLength;
      replies.no_answer += result.no_answer;
      replies.tokens += result.output_tokens;
    }
  }
  return counts;
}

void add_lost(const aggregator::ScoreRow& dense, const aggregator::ScoreRow& learned, Verdict* verdict) {
  for (size_t i = 0; i < dense.questions.size(); ++i) {
    const auto at = std::ranges::lower_bound(learned.questions, dense.questions[i]);
    if (at == learned.questions.end() || *at != dense.questions[i]) continue;
    const auto other = static_cast<size_t>(at - learned.questions.begin());
    if (dense.scores[i] < 1 || learned.scores[other] >= 1) continue;
    ++verdict->lost;
    if (verdict->lost_questions.size() == Verdict::kMostLost) continue;
    LostQuestion& lost = verdict->lost_questions.emplace_back();
    lost.question = dense.questions[i];
    if (i < dense.results.size()) lost.dense = dense.results[i];
    if (other < learned.results.size()) lost.learned = learned.results[other];
  }
}

std::vector<RowsRead> rows_of(const aggregator::RunData& run) {
  const wire::ModelIdentity& model = run.spec.model();
  const int64_t kv_heads = model.num_kv_heads();
  if (kv_heads < 1 || model.head_dim() < 1 || run.recommended.empty()) return {};
  const auto group = static_cast<int32_t>(model.num_q_heads() / kv_heads);
  const kernels::BudgetUnit unit = unit_of(run.spec);
  const int64_t row_bytes = model.head_dim() * (run.spec.generation().dtype() == "float32" ? 4 : 2);
  std::vector<RowsRead> rows;
  for (int64_t context = 1024; context <= 128 * 1024; context *= 2) {
    RowsRead& read = rows.emplace_back();
    read.context = context;
    for (const int32_t samples : run.recommended) {
      read.dense += kv_heads * context;
      read.learned += kv_heads * (samples == kExactLayer
                                      ? context
                                      : std::min(context, kernels::rows_of_group(unit, samples, group)));
    }
    read.dense_bytes = read.dense * row_bytes;
    read.learned_bytes = read.learned * row_bytes;
  }
  return rows;
}

}  // namespace

Verdict verdict_of(const aggregator::RunData& run, const std::string& directory, const std::string& grader) {
  Verdict verdict;
  verdict.command = run_again(run.spec, directory, grader).line();
  if (stopped_by_preflight(run)) return verdict;
  verdict.learning = learning_text(run);
  verdict.no_update = no_update_text(run);
  verdict.replies_of = count_replies(run);
  verdict.rows = rows_of(run);
  const aggregator::ScoreRow *dense = find_score(run, "dense"), *learned = find_score(run, "learned");
  if (dense == nullptr || learned == nullptr) return verdict;
  if (!dense->questions.empty() && dense->questions == learned->questions)
    verdict.to_dense = evaluation::compare_scores(learned->scores, dense->scores);
  add_lost(*dense, *learned, &verdict);
  return verdict;
}

std::string text(const ReplyCounts& replies) {
  const auto share = [&](int64_t count) {
    return percent(static_cast<double>(count) / static_cast<double>(replies.all));
  };
  return fmt::format("{}: {} of the replies cut off, {} without an answer, {:.0f} tokens each", replies.label,
                     share(replies.cut_off), share(replies.no_answer),
                     static_cast<double>(replies.tokens) / static_cast<double>(replies.all));
}

std::string reply_text(const QuestionResult& result) {
  if (result.finish == Finish::kLength) return fmt::format("cut off after {} tokens", result.output_tokens);
  return fmt::format("{} in {} tokens",
                     result.no_answer    ? "no answer"
                     : result.score >= 1 ? "right"
                                         : "wrong",
                     result.output_tokens);
}

}  // namespace allot::app
