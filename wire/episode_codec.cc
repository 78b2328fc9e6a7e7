#include "wire/episode_codec.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "base/error.h"
#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

using Outcomes = google::protobuf::RepeatedPtrField<QuestionOutcome>;

FinishReason to_wire(Finish finish) {
  static constexpr std::array kReasons = {FINISH_REASON_EOS, FINISH_REASON_STOP, FINISH_REASON_LENGTH};
  return kReasons[static_cast<size_t>(finish)];  // [Finish]
}

std::optional<Finish> from_wire(FinishReason reason) {
  switch (reason) {
    case FINISH_REASON_EOS:
      return Finish::kEos;
    case FINISH_REASON_STOP:
      return Finish::kStop;
    case FINISH_REASON_LENGTH:
      return Finish::kLength;
    default:
      return std::nullopt;
  }
}

void fill_outcomes(std::span<const QuestionResult> results, Outcomes* outcomes) {
  outcomes->Clear();
  outcomes->Reserve(static_cast<int>(results.size()));
  for (const QuestionResult& result : results) {
    QuestionOutcome& outcome = *outcomes->Add();
    outcome.set_question(result.question);
    outcome.set_correct(result.score == 1);
    if (result.score != 0 && result.score != 1) outcome.set_score(result.score);
    outcome.set_finish(to_wire(result.finish));
    outcome.set_prompt_tokens(result.prompt_tokens);
    outcome.set_output_tokens(result.output_tokens);
    outcome.set_no_answer(result.no_answer);
  }
}

std::string read_outcomes(const Outcomes& outcomes, std::vector<QuestionResult>* results) {
  results->clear();
  results->reserve(static_cast<size_t>(outcomes.size()));
  for (int i = 0; i < outcomes.size(); ++i) {
    const QuestionOutcome& outcome = outcomes[i];
    const std::optional<Finish> finish = from_wire(outcome.finish());
    if (!finish) {
      return fmt::format("outcome {} has finish reason {}, 1 to 3 is expected", i,
                         static_cast<int>(outcome.finish()));
    }
    if (outcome.prompt_tokens() < 0 || outcome.output_tokens() < 0) {
      return fmt::format("outcome {} counts {} prompt and {} output tokens, at least 0 is expected", i,
                         outcome.prompt_tokens(), outcome.output_tokens());
    }
    results->push_back({.question = outcome.question(),
                        .score = outcome.has_score() ? outcome.score()
                                 : outcome.correct() ? 1.0
                                                     : 0.0,
                        .finish = *finish,
                        .prompt_tokens = outcome.prompt_tokens(),
                        .output_tokens = outcome.output_tokens(),
                        .no_answer = outcome.no_answer()});
  }
  return "";
}

void fill_texts(std::span<const ReplyText> texts, Outcomes* outcomes) {
  for (size_t i = 0; i < texts.size(); ++i) {
    QuestionOutcome& outcome = (*outcomes)[static_cast<int>(i)];
    outcome.set_reply(texts[i].reply);
    if (texts[i].answer) outcome.set_answer(*texts[i].answer);
  }
}

std::string read_texts(const Outcomes& outcomes, std::vector<ReplyText>* texts) {
  texts->clear();
  texts->reserve(static_cast<size_t>(outcomes.size()));
  for (int i = 0; i < outcomes.size(); ++i) {
    const QuestionOutcome& outcome = outcomes[i];
    if (!outcome.has_reply()) return fmt::format("outcome {} has no reply, which its lease asks for", i);
    ReplyText& text = texts->emplace_back();
    text.reply = outcome.reply();
    if (outcome.has_answer()) text.answer = outcome.answer();
  }
  return "";
}

}  // namespace

LeaseKind to_wire(RewardKind kind) {
  return kind == RewardKind::kDivergence ? LEASE_KIND_DIVERGENCE : LEASE_KIND_ANSWERS;
}

std::optional<RewardKind> kind_of(LeaseKind kind) {
  switch (kind) {
    case LEASE_KIND_ANSWERS:
      return RewardKind::kAnswers;
    case LEASE_KIND_DIVERGENCE:
      return RewardKind::kDivergence;
    default:
      return std::nullopt;
  }
}

void fill(const Episode& episode, Lease* lease) {
  lease->set_episode(episode.id.value);
  lease->set_kind(to_wire(episode.kind));
  lease->set_split(episode.split == allot::Split::kTrain ? SPLIT_TRAIN : SPLIT_HELDOUT);
  lease->mutable_samples()->Assign(episode.samples.begin(), episode.samples.end());
  lease->mutable_questions()->Assign(episode.questions.begin(), episode.questions.end());
  lease->set_sampling_seed(episode.sampling_seed);
  lease->set_replies(episode.replies);
  lease->set_task(episode.task);
}

Episode episode_of(const Lease& lease) {
  Episode episode;
  episode.id = {lease.episode()};
  const std::optional<RewardKind> kind = kind_of(lease.kind());
  if (!kind)
    throw InvalidArgument(
        fmt::format("a lease of kind {} is not known to this release; start a worker of "
                    "the aggregator's release",
                    static_cast<int>(lease.kind())));
  episode.kind = *kind;
  if (lease.split() != SPLIT_TRAIN && lease.split() != SPLIT_HELDOUT)
    throw InvalidArgument(
        fmt::format("a lease of split {} is not known to this release; start a worker of "
                    "the aggregator's release",
                    static_cast<int>(lease.split())));
  episode.split = lease.split() == SPLIT_TRAIN ? allot::Split::kTrain : allot::Split::kHeldout;
  episode.samples = {lease.samples().begin(), lease.samples().end()};
  episode.questions = {lease.questions().begin(), lease.questions().end()};
  episode.sampling_seed = lease.sampling_seed();
  episode.replies = lease.replies();
  episode.task = lease.task();
  return episode;
}

void fill(std::span<const QuestionResult> results, std::span<const ReplyText> texts, EpisodeResult* message) {
  fill_outcomes(results, message->mutable_outcomes());
  fill_texts(texts, message->mutable_outcomes());
}

void fill(std::span<const QuestionResult> results, std::span<const ReplyText> texts, PartialResult* message) {
  fill_outcomes(results, message->mutable_outcomes());
  fill_texts(texts, message->mutable_outcomes());
}

std::string read_results(const EpisodeResult& message, std::vector<QuestionResult>* results) {
  return read_outcomes(message.outcomes(), results);
}

std::string read_replies(const EpisodeResult& message, std::vector<ReplyText>* texts) {
  return read_texts(message.outcomes(), texts);
}

std::string read_results(const PartialResult& message, std::vector<QuestionResult>* results) {
  return read_outcomes(message.outcomes(), results);
}

std::string read_replies(const PartialResult& message, std::vector<ReplyText>* texts) {
  return read_texts(message.outcomes(), texts);
}

}  // namespace allot::wire
