#include "model/fidelity_passes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "model/attention_plan.h"

namespace allot::model {
namespace {

int64_t first_measured(const FidelityText& text, FidelityMode mode) {
  return mode == FidelityMode::kPrefill ? 0 : text.prompt_tokens - 1;
}

int64_t size_of(const FidelityText& text) {
  return static_cast<int64_t>(text.ids.size());
}

int64_t measured(const FidelityText& text, FidelityMode mode) {
  return size_of(text) - first_measured(text, mode);
}

// One pass of a text, exact or under a pair's schedule, and what became of it.
struct Run {
  const FidelityText* text;
  const FidelityPair* pair = nullptr;  // null = exact
  Fidelity* result = nullptr;          // of the pair
  OwnedPages pages = {};
  int64_t first_state = 0;
};

// What pairs that share passes have in common.
struct PassSettings {
  kernels::AttentionMethod attention;
  kernels::CacheFormats simulated_cache = {};
  friend bool operator==(const PassSettings&, const PassSettings&) = default;
};
PassSettings settings_of(const FidelityPair& pair) {
  return {.attention = pair.attention, .simulated_cache = pair.simulated_cache};
}

// Runs the passes of the same settings. A text's states depend on nothing but the text, whatever shares its
// passes: a text that is longer than a pass is cut at places of its own.
class Passes {
 public:
  Passes(Backend& backend, PageAllocator& allocator, const EngineOptions& engine, int32_t num_layers,
         const FidelityOptions& options)
      : backend_(backend),
        allocator_(allocator),
        chunk_(prefill_chunk(engine)),
        most_tokens_(max_pass_tokens(engine)),
        // A text under a schedule has two parts where its prompt ends.
        most_parts_(std::max<size_t>(2, static_cast<size_t>(engine.max_sequences))),
        num_layers_(num_layers),
        page_size_(engine.page_size),
        options_(options) {}

  // Keeps the states of the measured positions of all runs, one run behind the other from `first_state` on.
  void run(std::span<Run> runs, const PassSettings& settings, int64_t first_state) {
    next_state_ = first_state;
    int64_t state = first_state;
    for (Run& run : runs) {
      run.first_state = state;
      state += measured(*run.text, options_.mode);
      take_pages(run, settings);
      const int64_t size = size_of(*run.text);
      for (int64_t begin = 0; begin < size;) {
        const int64_t end = begin + prefill_tokens(size, size - begin, chunk_);
        add(run, begin, end, settings);
        begin = end;
      }
      whole_.push_back(&run);
    }
    flush(settings);
  }

 private:
  void take_pages(Run& run, const PassSettings& settings) {
    const int64_t needed = pages_for(size_of(*run.text), page_size_);
    run.pages = allocator_.allocate(needed);
    if (!run.pages.empty()) return;
    flush(settings);
    run.pages = allocator_.allocate(needed);
    if (!run.pages.empty()) return;
    throw InvalidArgument(
        fmt::format("fidelity of a text of {} tokens needs {} pages of the KV cache, but requests in flight "
                    "leave {}; finish them first",
                    size_of(*run.text), needed, allocator_.free_pages()));
  }

  // What is put together for one pass of the backend.
  struct Pass {
    std::vector<SequencePart> parts;
    std::vector<Run*> runs;  // of each part
    int64_t tokens = 0;

    bool takes(int64_t more, int64_t most_tokens, size_t most_parts) const {
      return tokens + more <= most_tokens && parts.size() + 2 <= most_parts;
    }
    bool ends_with(const Run& run) const { return !runs.empty() && runs.back() == &run; }
  };

  // A prompt of which only the last position is measured runs in a pass that is exact as a whole: devices
  // have faster attention for one than for a pass in which other sequences are sampled.
  void add(Run& run, int64_t begin, int64_t end, const PassSettings& settings) {
    const bool sampled = run.pair != nullptr && !run.pair->samples.empty();
    const bool exact_prompt = sampled && options_.mode == FidelityMode::kDecode;
    const int64_t prompt = run.text->prompt_tokens;
    const int64_t apart = exact_prompt ? std::clamp(prompt - 1, begin, end) : begin;
    const int64_t cut = exact_prompt ? std::clamp(prompt, begin, end) : sampled ? begin : end;
    if (prompts_.ends_with(run) || pass_.ends_with(run) ||
        !prompts_.takes(apart - begin, most_tokens_, most_parts_) ||
        !pass_.takes(end - apart, most_tokens_, most_parts_))
      flush(settings);
    add_part(prompts_, run, begin, apart, {});
    add_part(pass_, run, apart, cut, {});
    if (cut < end) add_part(pass_, run, cut, end, run.pair->samples);
  }

  void add_part(Pass& pass, Run& run, int64_t begin, int64_t end, std::span<const int32_t> samples) {
    if (begin == end) return;
    pass.parts.push_back({.tokens = run.text->ids,
                          .begin = begin,
                          .end = end,
                          .pages = run.pages.numbers(),
                          .samples = samples,
                          .draws = {run.text->key, run.text->question},
                          .first_output = first_measured(*run.text, options_.mode)});
    pass.runs.push_back(&run);
    pass.tokens += end - begin;
  }

  // Runs the passes that were put together; the pages of runs that are whole now are free again.
  void flush(const PassSettings& settings) {
    run_pass(prompts_, settings);
    run_pass(pass_, settings);
    for (Run* run : whole_) run->pages = {};
    whole_.clear();
  }

  void run_pass(Pass& pass, const PassSettings& settings) {
    if (pass.parts.empty()) return;
    ForwardBatch batch = make_batch(pass.parts, num_layers_, page_size_);
    batch.simulated_cache = settings.simulated_cache;
    std::vector<int64_t> rows_read(options_.count_rows ? pass.parts.size() : 0);
    const auto start = std::chrono::steady_clock::now();
    backend_.keep_states(batch, settings.attention, next_state_, rows_read);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    next_state_ += static_cast<int64_t>(batch.output_rows.size());
    for (size_t i = 0; i < pass.parts.size(); ++i) {
      Fidelity* const result = pass.runs[i]->result;
      if (result == nullptr) continue;
      const int64_t tokens = pass.parts[i].end - pass.parts[i].begin;
      result->seconds += took.count() * static_cast<double>(tokens) / static_cast<double>(pass.tokens);
      if (pass.parts[i].samples.empty()) continue;
      result->sampled_tokens += tokens;
      if (options_.count_rows) result->rows_read += rows_read[i];
    }
    pass = {};
  }

  Backend& backend_;
  PageAllocator& allocator_;
  int64_t chunk_;
  int64_t most_tokens_;
  size_t most_parts_;
  int32_t num_layers_;
  int32_t page_size_;
  FidelityOptions options_;

  Pass prompts_;             // runs before pass_
  Pass pass_;                // what is measured, and what is not kept apart from it
  std::vector<Run*> whole_;  // runs whose last part is in these passes
  int64_t next_state_ = 0;
};

// The end of the longest stretch of `count` items from `begin` on whose states fit, of at least one item.
template <class Rows>
size_t stretch_end(size_t begin, size_t count, int64_t most_rows, const Rows& rows) {
  int64_t total = rows(begin);
  size_t end = begin + 1;
  for (; end < count; ++end) {
    total += rows(end);
    if (total > most_rows) break;
  }
  return end;
}

// Texts whose states lie one behind the other: exact ones from `dense` on, those under a schedule from each
// of `sampled` on.
struct Stretch {
  struct Text {
    int64_t rows;
    std::vector<Fidelity*> results;  // as `sampled`
  };
  int64_t dense;
  std::vector<int64_t> sampled;
  std::vector<Text> texts;
  int64_t rows = 0;  // of all texts

  // Takes in a text of one's own where it follows.
  bool append(const Stretch& next) {
    const auto follows = [&](int64_t from, int64_t state) { return from + rows == state; };
    if (!follows(dense, next.dense) || !std::ranges::equal(sampled, next.sampled, follows)) return false;
    texts.insert(texts.end(), next.texts.begin(), next.texts.end());
    rows += next.rows;
    return true;
  }
};

// The sampled runs by text, in the order of the exact runs, in as few stretches as can be: a product of many
// rows with the vocabulary reads its weights less often.
std::vector<Stretch> stretches_of(std::span<const Run> sampled, std::span<const Run> dense,
                                  FidelityMode mode) {
  std::vector<Stretch> stretches;
  for (const Run& exact : dense) {
    Stretch of_text{
        .dense = exact.first_state, .sampled = {}, .texts = {}, .rows = measured(*exact.text, mode)};
    Stretch::Text text{.rows = of_text.rows, .results = {}};
    for (const Run& run : sampled) {
      if (run.text != exact.text) continue;
      of_text.sampled.push_back(run.first_state);
      text.results.push_back(run.result);
    }
    if (of_text.sampled.empty()) continue;
    of_text.texts.push_back(std::move(text));
    if (stretches.empty() || !stretches.back().append(of_text)) stretches.push_back(std::move(of_text));
  }
  return stretches;
}

// Compares the states of sampled runs with those of their texts' exact runs.
void compare(Backend& backend, std::span<const Run> sampled, std::span<const Run> dense,
             const FidelityOptions& options) {
  for (const Stretch& stretch : stretches_of(sampled, dense, options.mode)) {
    std::vector<kernels::RowDivergence> compared(stretch.sampled.size() * static_cast<size_t>(stretch.rows));
    const auto start = std::chrono::steady_clock::now();
    backend.compare_states(stretch.dense, stretch.sampled, stretch.rows, compared);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    size_t first = 0;
    for (const Stretch::Text& text : stretch.texts) {
      const auto rows = static_cast<size_t>(text.rows);
      for (size_t i = 0; i < text.results.size(); ++i) {
        const size_t of_schedule = i * static_cast<size_t>(stretch.rows);
        take_comparison(std::span(compared).subspan(of_schedule + first, rows), options.positions,
                        text.results[i]);
        text.results[i]->comparison_seconds =
            took.count() * static_cast<double>(rows) / static_cast<double>(compared.size());
      }
      first += rows;
    }
  }
}

// Where a text's states lie among those of others: a group of texts has its exact states side by side, a
// block of a group its states under each schedule.
struct TextPlace {
  size_t group = 0;
  int64_t block = 0;
};
constexpr int64_t kBlockRows = 1024;

// The pairs in the order in which they run: those of a group of texts together, then by settings, by block,
// so that the schedules of a block's texts meet in a pass and its exact logits serve all of them, by schedule
// and by text. Where passes are timed, a schedule's blocks stay together.
std::vector<size_t> order_of_pairs(std::span<const FidelityPair> pairs,
                                   std::span<const TextPlace> place_of_text, bool timed) {
  // Settings and schedules have no order of their own: each gets the number of its first appearance.
  const auto numbers = [&](const auto& same) {
    std::vector<size_t> number(pairs.size());
    std::vector<size_t> first;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto known = std::ranges::find_if(first, [&](size_t j) { return same(pairs[i], pairs[j]); });
      number[i] = static_cast<size_t>(known - first.begin());
      if (known == first.end()) first.push_back(i);
    }
    return number;
  };
  const std::vector<size_t> settings =
      numbers([](const FidelityPair& a, const FidelityPair& b) { return settings_of(a) == settings_of(b); });
  const std::vector<size_t> schedule =
      numbers([](const FidelityPair& a, const FidelityPair& b) { return a.samples == b.samples; });
  std::vector<size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) {
    const TextPlace place = place_of_text[pairs[i].text];
    return std::tuple(place.group, settings[i], timed ? 0 : place.block, schedule[i], pairs[i].text);
  });
  return order;
}

}  // namespace

std::vector<Fidelity> measure_fidelity(Backend& backend, PageAllocator& allocator,
                                       const EngineOptions& engine, int32_t num_layers,
                                       std::span<const FidelityText> texts,
                                       std::span<const FidelityPair> pairs, const FidelityOptions& options) {
  std::vector<Fidelity> results(pairs.size());
  if (pairs.empty()) return results;
  const int64_t most_rows = max_pass_tokens(engine);
  const auto rows_of_text = [&](size_t text) { return measured(texts[text], options.mode); };

  std::vector<size_t> used;  // texts that pairs name, rising
  for (const FidelityPair& pair : pairs) used.push_back(pair.text);
  std::ranges::sort(used);
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::vector<TextPlace> place_of_text(texts.size());
  std::vector<std::span<const size_t>> groups;
  for (size_t begin = 0; begin < used.size();) {
    const size_t end =
        stretch_end(begin, used.size(), most_rows, [&](size_t i) { return rows_of_text(used[i]); });
    int64_t rows = 0;
    for (size_t i = begin; i < end; ++i) {
      place_of_text[used[i]] = {.group = groups.size(), .block = rows / kBlockRows};
      rows += rows_of_text(used[i]);
    }
    groups.push_back(std::span(used).subspan(begin, end - begin));
    begin = end;
  }
  const std::vector<size_t> order = order_of_pairs(pairs, place_of_text, options.timed);

  // A group's or a wave's states, where the longest text may be more than most_rows.
  const auto longest = std::ranges::max(used, {}, rows_of_text);
  backend.reserve_states(2 * std::max(most_rows, rows_of_text(longest)));

  Passes passes(backend, allocator, engine, num_layers, options);
  for (size_t group = 0, next = 0; group < groups.size(); ++group) {
    std::vector<Run> dense;
    int64_t dense_rows = 0;
    for (const size_t text : groups[group]) {
      dense.push_back({.text = &texts[text]});
      dense_rows += rows_of_text(text);
    }
    passes.run(dense, {.attention = {.estimator = kernels::Estimator::kExact}}, 0);

    size_t group_end = next;
    while (group_end < order.size() && place_of_text[pairs[order[group_end]].text].group == group)
      ++group_end;
    while (next < group_end) {
      // Pairs that share passes.
      const FidelityPair& first = pairs[order[next]];
      size_t like_end = next;
      for (; like_end < group_end; ++like_end) {
        const FidelityPair& pair = pairs[order[like_end]];
        if (!(settings_of(pair) == settings_of(first)) || (options.timed && pair.samples != first.samples))
          break;
      }
      const size_t end = stretch_end(next, like_end, most_rows,
                                     [&](size_t i) { return rows_of_text(pairs[order[i]].text); });
      std::vector<Run> sampled;
      for (; next < end; ++next) {
        const FidelityPair& pair = pairs[order[next]];
        Fidelity& result = results[order[next]];
        result.tokens = size_of(texts[pair.text]);
        sampled.push_back({.text = &texts[pair.text], .pair = &pair, .result = &result});
      }
      passes.run(sampled, settings_of(first), dense_rows);
      compare(backend, sampled, dense, options);
    }
  }
  return results;
}

}  // namespace allot::model
