#include "worker/divergence_runner.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace allot::worker {
namespace {

using evaluation::MeteredText;

// Their exact passes are then a seventeenth of the work where they are of one group. More would only make
// learners wait longer for the first of them.
constexpr int kEpisodesAtOnce = 16;

// Of one split, whose question has one prompt and one solution.
bool same_text(const MeteredText& a, const MeteredText& b) {
  return a.question == b.question && a.key.sampling_seed == b.key.sampling_seed;
}

}  // namespace

DivergenceRunner::DivergenceRunner(std::unique_ptr<evaluation::DivergenceMeter> meter,
                                   std::unique_ptr<evaluation::Task> task, FindQuestion question,
                                   uint32_t run_seed, const Clock& clock)
    : meter_(std::move(meter)),
      task_(std::move(task)),
      question_(std::move(question)),
      run_seed_(run_seed),
      clock_(clock) {}

double DivergenceRunner::seconds_since(Timestamp start) const {
  return std::chrono::duration<double>(clock_.now() - start).count();
}

int DivergenceRunner::capacity() const {
  return kEpisodesAtOnce;
}

void DivergenceRunner::start(Episode episode) {
  cancel(episode.id);  // an episode that is leased once more starts afresh
  const EpisodeId id = episode.id;
  Running running{.episode = std::move(episode), .started = clock_.now()};
  try {
    if (running.episode.questions.empty())
      throw InvalidArgument(fmt::format("episode {} has no questions", id.value));
    for (const uint32_t number : running.episode.questions) {
      const evaluation::Question& asked = question_(running.episode.split, number);
      running.texts.push_back({.prompt = task_->prompt(asked),
                               .reply = asked.solution,
                               .key = {.run_seed = run_seed_, .sampling_seed = running.episode.sampling_seed},
                               .question = number});
      (void)meter_->tokens(running.texts.back());
      running.results.push_back({.question = number});
    }
  } catch (const InvalidArgument& error) {
    fail(id, error.what());
    return;
  }
  running.measured.resize(running.texts.size());
  running_.emplace(id, std::move(running));
}

std::vector<EpisodeResult> DivergenceRunner::advance() {
  if (!running_.empty()) {
    const Timestamp start = clock_.now();
    const Batch batch = next_batch();
    try {
      measure(batch);
    } catch (const InvalidArgument&) {
      measure_one_by_one(batch);
    }
    done_.busy_seconds += seconds_since(start);
    done_.slot_seconds = done_.busy_seconds;
  }
  return std::exchange(finished_, {});
}

DivergenceRunner::Batch DivergenceRunner::next_batch() {
  Batch batch;
  int64_t tokens = 0;
  for (const auto& [id, running] : running_) {
    for (size_t index = 0; index < running.texts.size(); ++index) {
      const bool taken = std::ranges::any_of(batch.places, [&, id = id](const Place& place) {
        return place.episode == id && place.index == index;
      });
      if (running.measured[index] || taken) continue;
      if (tokens >= meter_->tokens_at_once()) return batch;
      const size_t before = batch.pairs.size();
      add(running.texts[index], running.episode.split, &batch);
      tokens += meter_->tokens(running.texts[index]) * static_cast<int64_t>(batch.pairs.size() - before);
    }
  }
  return batch;
}

// The text under the schedules of all episodes that have it to measure.
void DivergenceRunner::add(const MeteredText& text, Split split, Batch* batch) const {
  for (const auto& [id, running] : running_) {
    if (running.episode.split != split) continue;
    for (size_t index = 0; index < running.texts.size(); ++index) {
      if (running.measured[index] || !same_text(running.texts[index], text)) continue;
      batch->pairs.push_back({.text = batch->texts.size(), .samples = running.episode.samples});
      batch->places.push_back({id, index});
    }
  }
  batch->texts.push_back(text);
}

void DivergenceRunner::measure(const Batch& batch) {
  const std::vector<evaluation::MeteredDivergence> measured = meter_->measure(batch.texts, batch.pairs);
  for (size_t i = 0; i < measured.size(); ++i) {
    const auto found = running_.find(batch.places[i].episode);
    Running& running = found->second;
    QuestionResult& result = running.results[batch.places[i].index];
    result.score = measured[i].divergence;
    result.finish = measured[i].finish;
    result.prompt_tokens = measured[i].prompt_tokens;
    result.output_tokens = measured[i].reply_tokens;
    running.measured[batch.places[i].index] = true;
    done_.prompt_tokens += measured[i].prompt_tokens;
    done_.output_tokens += measured[i].reply_tokens;
    if (std::ranges::find(running.measured, false) != running.measured.end()) continue;
    finished_.push_back({.episode = found->first,
                         .results = std::move(running.results),
                         .seconds = seconds_since(running.started),
                         .error = ""});
    running_.erase(found);
  }
}

void DivergenceRunner::measure_one_by_one(const Batch& batch) {
  std::set<EpisodeId> episodes;
  for (const Place& place : batch.places) episodes.insert(place.episode);
  for (const EpisodeId episode : episodes) {
    Batch part{.texts = batch.texts, .pairs = {}, .places = {}};
    for (size_t i = 0; i < batch.places.size(); ++i) {
      if (batch.places[i].episode != episode) continue;
      part.pairs.push_back(batch.pairs[i]);
      part.places.push_back(batch.places[i]);
    }
    try {
      measure(part);
    } catch (const InvalidArgument& error) {
      fail(episode, error.what());
    }
  }
}

void DivergenceRunner::fail(EpisodeId episode, const std::string& reason) {
  running_.erase(episode);
  finished_.push_back({.episode = episode, .results = {}, .seconds = 0, .error = reason});
}

EpisodeResult DivergenceRunner::answered_so_far(EpisodeId episode) const {
  EpisodeResult result{.episode = episode, .results = {}, .seconds = 0, .error = ""};
  const auto found = running_.find(episode);
  if (found == running_.end()) return result;
  const Running& running = found->second;
  for (size_t index = 0; index < running.results.size(); ++index)
    if (running.measured[index]) result.results.push_back(running.results[index]);
  result.seconds = seconds_since(running.started);
  return result;
}

void DivergenceRunner::cancel(EpisodeId episode) {
  std::erase_if(finished_, [&](const EpisodeResult& result) { return result.episode == episode; });
  running_.erase(episode);
}

}  // namespace allot::worker
