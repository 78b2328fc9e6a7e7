#include "model/scheduler.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace allot::model {
namespace {

using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

constexpr int32_t kAwaited = -1;

}  // namespace

Scheduler::Scheduler(Backend& backend, PageAllocator& allocator, const EngineOptions& options,
                     const ModelConfig& config, std::span<const int32_t> eos_token_ids)
    : backend_(&backend),
      allocator_(&allocator),
      options_(&options),
      config_(&config),
      eos_token_ids_(eos_token_ids.begin(), eos_token_ids.end()) {
  for (int32_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  if (!options.count_execution) return;
  execution_.resize(static_cast<size_t>(config.num_layers));
  rows_read_.resize(execution_.size());
  if (!backend.count_rows(rows_read_)) rows_read_.clear();
}

void Scheduler::add(GenerationRequest request) {
  queue_.push_back(std::move(request));
}

std::vector<LayerExecution> Scheduler::execution() const {
  std::vector<LayerExecution> layers = execution_;
  for (size_t i = 0; i < rows_read_.size(); ++i) layers[i].rows = rows_read_[i];
  return layers;
}

void Scheduler::admit() {
  while (!queue_.empty() && !free_slots_.empty()) {
    GenerationRequest& next = queue_.front();
    const auto prompt = static_cast<int64_t>(next.prompt.size());
    // All its pages are allocated at once: a sequence that was admitted can always finish, so none
    // is ever preempted.
    OwnedPages pages = allocator_->allocate(pages_for(prompt + next.max_new_tokens, options_->page_size));
    if (pages.empty()) return;
    const int32_t slot = free_slots_.back();
    backend_->open_slot(slot, next.prompt);
    free_slots_.pop_back();
    Sequence& sequence = running_.emplace_back();
    sequence.tokens = next.prompt;
    sequence.pages = std::move(pages);
    sequence.slot = slot;
    sequence.prefill_end = prompt;
    if (options_->skip_prefill) sequence.prefill_end = sequence.cached = prompt - 1;
    sequence.request = std::move(next);
    queue_.pop_front();
  }
}

std::vector<Scheduler::Advance> Scheduler::next_replies() {
  std::vector<Advance> advances;
  for (Place place = running_.begin(); place != running_.end(); ++place) {
    if (!place->in_prefill() && place->new_tokens() < place->request.max_new_tokens)
      advances.push_back({place, 1, true});
  }
  return advances;
}

std::vector<Scheduler::Advance> Scheduler::next_prompts(int64_t room) {
  std::vector<Advance> advances;
  for (Place place = running_.begin(); place != running_.end() && room > 0; ++place) {
    const Sequence& sequence = *place;
    if (!sequence.in_prefill()) continue;
    const int64_t new_tokens =
        prefill_tokens(sequence.prefill_end, sequence.prefill_end - sequence.cached, room);
    if (new_tokens == 0) break;
    advances.push_back({place, new_tokens, sequence.cached + new_tokens == sequence.size()});
    room -= new_tokens;
  }
  return advances;
}

// Prompts first; with chunked prefill, while replies are decoded, no more of them than its bound, and a
// decode step after each pass of prompts.
std::vector<Scheduler::Advance> Scheduler::next_advances() {
  std::vector<Advance> replies = next_replies();
  const bool take_turns = options_->chunked_prefill_tokens && !replies.empty();
  if (take_turns && after_prefill_) return replies;
  std::vector<Advance> prompts =
      next_prompts(take_turns ? *options_->chunked_prefill_tokens : prefill_chunk(*options_));
  return prompts.empty() ? replies : prompts;
}

bool Scheduler::submit_next() {
  admit();
  Pass pass{.advances = next_advances()};
  if (pass.advances.empty()) return false;
  pass.prefill = pass.advances.front().sequence->in_prefill();
  pass.after_prefill = after_prefill_;
  const bool dense = pass.prefill && options_->attention.prefill == kernels::Prefill::kDense;
  std::vector<SequencePart> parts;
  std::vector<TokenChoice> choices;
  for (const Advance& advance : pass.advances) {
    const Sequence& sequence = *advance.sequence;
    const kernels::SequenceDraws draws{sequence.request.key, sequence.request.question};
    const int64_t end = sequence.cached + advance.new_tokens;
    assert(end <= static_cast<int64_t>(sequence.pages.numbers().size()) * options_->page_size);
    parts.push_back({.tokens = sequence.tokens,
                     .chosen_before = sequence.awaited > 0 ? sequence.choice : -1,
                     .begin = sequence.cached,
                     .end = end,
                     .pages = sequence.pages.numbers(),
                     .samples = dense ? std::span<const int32_t>() : sequence.request.samples,
                     .draws = draws,
                     .first_output = sequence.size() - 1});
    if (!advance.ready) continue;
    choices.push_back({.slot = sequence.slot,
                       .sampling = sequence.request.sampling,
                       .draws = draws,
                       .position = static_cast<uint32_t>(sequence.size() - 1)});
  }
  const ForwardBatch batch = make_batch(parts, config_->num_layers, options_->page_size);
  backend_->submit(batch, options_->attention, choices);
  count_pass(batch, options_->attention, config_->num_q_heads, config_->num_kv_heads, execution_);

  int32_t choice = 0;
  for (const Advance& advance : pass.advances) {
    Sequence& sequence = *advance.sequence;
    sequence.cached += advance.new_tokens;
    ++sequence.passes;
    if (!advance.ready) continue;
    sequence.choice = choice++;
    sequence.tokens.push_back(kAwaited);
    ++sequence.awaited;
  }
  after_prefill_ = pass.prefill;
  submitted_.push_back(std::move(pass));
  return true;
}

std::vector<GenerationResult> Scheduler::step() {
  const auto start = SteadyClock::now();
  while (static_cast<int32_t>(submitted_.size()) < backend_->max_submitted()) {
    if (!submit_next()) break;
  }
  if (submitted_.empty()) return {};
  const bool prefill = submitted_.front().prefill;
  std::vector<GenerationResult> results = take_oldest();
  (prefill ? counters_.prefill_seconds : counters_.decode_seconds) +=
      Seconds(SteadyClock::now() - start).count();
  return results;
}

std::vector<GenerationResult> Scheduler::take_oldest() {
  Pass pass = std::move(submitted_.front());
  submitted_.pop_front();
  std::span<const int32_t> tokens;
  try {
    tokens = backend_->take();
    size_t choice = 0;
    for (const Advance& advance : pass.advances) {
      if (!advance.ready) continue;
      if (tokens[choice++] < 0 && !advance.sequence->left) throw_not_a_number();
    }
  } catch (...) {
    take_back(std::move(pass));
    throw;
  }
  std::vector<Place> grown;
  size_t choice = 0;
  for (const Advance& advance : pass.advances) {
    Sequence& sequence = *advance.sequence;
    if (pass.prefill) counters_.prefill_tokens += advance.new_tokens;
    const int32_t token = advance.ready ? tokens[choice++] : kAwaited;
    if (advance.ready && !sequence.left) {
      sequence.tokens[sequence.tokens.size() - static_cast<size_t>(sequence.awaited)] = token;
      --sequence.awaited;
      grown.push_back(advance.sequence);
    }
    let_go(advance.sequence);
  }
  if (!pass.prefill) counters_.decode_tokens += std::ssize(grown);
  std::vector<GenerationResult> results;
  for (const Place sequence : grown) {
    const std::optional<Finish> finish = finished(*sequence);
    if (!finish) continue;
    const std::span<const int32_t> output = sequence->output();
    results.push_back({.id = sequence->request.id,
                       .tokens = {output.begin(), output.end()},
                       .finish = *finish,
                       .prompt_tokens = static_cast<int32_t>(sequence->request.prompt.size())});
    leave(sequence);
  }
  return results;
}

std::optional<Finish> Scheduler::finished(const Sequence& sequence) const {
  const std::span<const int32_t> output = sequence.output();
  const bool is_eos = std::ranges::find(eos_token_ids_, output.back()) != eos_token_ids_.end();
  if (is_eos && !sequence.request.ignore_eos) return Finish::kEos;
  if (sequence.request.stop && sequence.request.stop(output)) return Finish::kStop;
  if (static_cast<int32_t>(output.size()) == sequence.request.max_new_tokens) return Finish::kLength;
  return std::nullopt;
}

void Scheduler::leave(Place sequence) {
  sequence->left = true;
  sequence->pages = {};
  free_slots_.push_back(sequence->slot);
  leaving_.splice(leaving_.end(), running_, sequence);
  if (sequence->passes == 0) leaving_.erase(sequence);
}

void Scheduler::let_go(Place sequence) {
  if (--sequence->passes == 0 && sequence->left) leaving_.erase(sequence);
}

void Scheduler::take_back(Pass failed) {
  const auto behind = submitted_.size();
  submitted_.push_front(std::move(failed));
  for (size_t i = 0; i < behind; ++i) {
    try {
      (void)backend_->take();
    } catch (const Error&) {  // what follows from the failure is no news
    }
  }
  for (; !submitted_.empty(); submitted_.pop_back()) {
    after_prefill_ = submitted_.back().after_prefill;
    for (const Advance& advance : submitted_.back().advances) {
      Sequence& sequence = *advance.sequence;
      sequence.cached -= advance.new_tokens;
      if (advance.ready) {
        sequence.tokens.pop_back();
        --sequence.awaited;
      }
      // Its slot has not seen what was chosen.
      if (advance.ready && !sequence.left && sequence.awaited == 0)
        backend_->open_slot(sequence.slot, sequence.tokens);
      let_go(advance.sequence);
    }
  }
}

bool Scheduler::cancel(uint64_t id) {
  const auto queued = std::ranges::find(queue_, id, &GenerationRequest::id);
  if (queued != queue_.end()) {
    queue_.erase(queued);
    return true;
  }
  const auto running =
      std::ranges::find_if(running_, [id](const Sequence& sequence) { return sequence.request.id == id; });
  if (running == running_.end()) return false;
  leave(running);
  return true;
}

}  // namespace allot::model
