#include "worker/model_runner.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "evaluation/grader.h"

namespace allot::worker {
namespace {

double seconds_between(Timestamp start, Timestamp end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<evaluation::Generator> generator,
                         std::unique_ptr<evaluation::Task> task, Questions questions,
                         const ModelRunnerOptions& options, const Clock& clock)
    : generator_(std::move(generator)),
      task_(std::move(task)),
      questions_(std::move(questions)),
      options_(options),
      clock_(clock) {
  if (options_.questions_per_episode < 1)
    throw InvalidArgument(fmt::format("model runner: questions_per_episode is {}, expected at least 1",
                                      options_.questions_per_episode));
}

int ModelRunner::capacity() const {
  // Learners ask for fewer or more questions; whole episodes count, so that the number of those of usual size
  // is the same from their start to their end.
  int64_t room = generator_->max_prompts();
  for (const auto& [id, running] : running_) room -= std::ssize(running.episode.questions);
  const int64_t usual = options_.questions_per_episode;
  return static_cast<int>(std::ssize(running_) + std::max<int64_t>(room + usual - 1, 0) / usual);
}

const evaluation::Question& ModelRunner::question(Split split, uint32_t id) const {
  const std::vector<evaluation::Question>& questions =
      split == Split::kTrain ? questions_.train : questions_.heldout;
  if (id >= questions.size())
    throw InvalidArgument(fmt::format("question {} of the {} split, which has {} questions", id,
                                      split == Split::kTrain ? "train" : "held-out", questions.size()));
  return questions[id];
}

void ModelRunner::start(Episode episode) {
  cancel(episode.id);  // an episode that is leased once more starts afresh
  Running running;
  running.episode = std::move(episode);
  running.started = clock_.now();
  const EpisodeId id = running.episode.id;
  try {
    submit(&running);
  } catch (const InvalidArgument& error) {
    withdraw(running);
    finished_.push_back({.episode = id, .results = {}, .seconds = 0, .error = error.what()});
    return;
  }
  running_.emplace(id, std::move(running));
}

void ModelRunner::submit(Running* running) {
  const Episode& episode = running->episode;
  if (episode.questions.empty())
    throw InvalidArgument(fmt::format("episode {} has no questions", episode.id.value));
  running->results.resize(episode.questions.size());
  if (episode.replies) running->texts.resize(episode.questions.size());
  running->unanswered = episode.questions.size();
  for (size_t index = 0; index < episode.questions.size(); ++index) {
    const evaluation::Question& asked = question(episode.split, episode.questions[index]);
    running->results[index].question = episode.questions[index];
    evaluation::Prompt prompt;
    prompt.id = next_prompt_++;
    prompt.text = task_->prompt(asked);
    prompt.samples = episode.samples;
    prompt.key = {.run_seed = options_.run_seed, .sampling_seed = episode.sampling_seed};
    prompt.question = episode.questions[index];
    prompt.completing = task_->completing_characters();
    if (!prompt.completing.empty())
      prompt.complete = [this](std::string_view reply) { return task_->complete(reply); };
    prompt.continuations.assign(task_->continuations().begin(), task_->continuations().end());
    generator_->submit(prompt);
    running->prompts.push_back(prompt.id);
    places_.emplace(prompt.id, Place{episode.id, index});
  }
}

void ModelRunner::withdraw(const Running& running) {
  for (const uint64_t prompt : running.prompts)
    if (places_.erase(prompt) > 0) generator_->cancel(prompt);
}

std::vector<EpisodeResult> ModelRunner::advance() {
  if (!places_.empty()) {
    const double slots = generator_->max_prompts();
    const double in_use = std::min(static_cast<double>(places_.size()), slots) / slots;
    const Timestamp start = clock_.now();
    for (const evaluation::Reply& reply : generator_->step()) take(reply);
    const double seconds = seconds_between(start, clock_.now());
    done_.busy_seconds += seconds;
    done_.slot_seconds += in_use * seconds;
  }
  return std::exchange(finished_, {});
}

void ModelRunner::take(const evaluation::Reply& reply) {
  const auto place = places_.find(reply.id);
  if (place == places_.end()) return;  // withdrawn while it was being answered
  const auto [episode, index] = place->second;
  places_.erase(place);
  const auto found = running_.find(episode);
  Running& running = found->second;

  evaluation::Grade grade;
  try {
    grade = task_->grade(question(running.episode.split, running.episode.questions[index]), reply.text);
  } catch (const evaluation::GradingFailure& error) {
    // An episode with a reply that nobody graded has no reward.
    withdraw(running);
    finished_.push_back({.episode = episode, .results = {}, .seconds = 0, .error = error.what()});
    running_.erase(found);
    return;
  }
  QuestionResult& result = running.results[index];
  result.score = grade.score;
  result.finish = reply.finish;
  result.prompt_tokens = reply.prompt_tokens;
  result.output_tokens = reply.output_tokens;
  result.no_answer = !grade.extracted;
  done_.prompt_tokens += reply.prompt_tokens;
  done_.output_tokens += reply.output_tokens;
  if (running.episode.replies) running.texts[index] = {.reply = reply.text, .answer = grade.answer};
  if (observer_) observer_(running.episode, index, reply, grade);
  if (--running.unanswered > 0) return;

  finished_.push_back({.episode = episode,
                       .results = std::move(running.results),
                       .texts = std::move(running.texts),
                       .seconds = seconds_between(running.started, clock_.now()),
                       .error = ""});
  running_.erase(found);
}

EpisodeResult ModelRunner::answered_so_far(EpisodeId episode) const {
  EpisodeResult result{.episode = episode, .results = {}, .seconds = 0, .error = ""};
  const auto found = running_.find(episode);
  if (found == running_.end()) return result;
  const Running& running = found->second;
  for (size_t index = 0; index < running.prompts.size(); ++index) {
    if (places_.contains(running.prompts[index])) continue;
    result.results.push_back(running.results[index]);
    if (running.episode.replies) result.texts.push_back(running.texts[index]);
  }
  result.seconds = seconds_between(running.started, clock_.now());
  return result;
}

void ModelRunner::cancel(EpisodeId episode) {
  std::erase_if(finished_, [&](const EpisodeResult& result) { return result.episode == episode; });
  const auto found = running_.find(episode);
  if (found == running_.end()) return;
  withdraw(found->second);
  running_.erase(found);
}

}  // namespace allot::worker
