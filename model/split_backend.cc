#include "model/split_backend.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"

namespace allot::model {

struct RankThreads::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  const std::function<void(int32_t)>* body = nullptr;
  const std::function<void()>* on_failure = nullptr;
  uint64_t round = 0;  // counts calls of run()
  int32_t running = 0;
  bool ending = false;
  std::exception_ptr failure;
  std::vector<std::thread> threads;  // of ranks 1, 2, …

  void call(int32_t rank) {
    try {
      (*body)(rank);
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        if (failure != nullptr) return;
        failure = std::current_exception();
      }
      (*on_failure)();
    }
  }

  void serve(int32_t rank) {
    for (uint64_t served = 0;;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return ending || round != served; });
        if (ending) return;
        served = round;
      }
      call(rank);
      const std::lock_guard lock(mutex);
      if (--running == 0) changed.notify_all();
    }
  }
};

RankThreads::RankThreads(int32_t ranks) : impl_(std::make_unique<Impl>()) {
  for (int32_t rank = 1; rank < ranks; ++rank) {
    impl_->threads.emplace_back([impl = impl_.get(), rank] { impl->serve(rank); });
  }
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

int32_t RankThreads::ranks() const {
  return static_cast<int32_t>(impl_->threads.size()) + 1;
}

void RankThreads::run(const std::function<void(int32_t rank)>& body,
                      const std::function<void()>& on_failure) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->body = &body;
    impl_->on_failure = &on_failure;
    impl_->failure = nullptr;
    impl_->running = ranks() - 1;
    ++impl_->round;
  }
  impl_->changed.notify_all();
  impl_->call(0);
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return impl_->running == 0; });
  if (impl_->failure != nullptr) std::rethrow_exception(impl_->failure);
}

namespace {

class SplitBackend final : public Backend {
 public:
  explicit SplitBackend(SplitBackendParts parts)
      : threads_(std::move(parts.threads)), abort_(std::move(parts.abort)), ranks_(std::move(parts.ranks)) {}

  const KvCacheShape& cache_shape() const override { return ranks_[0]->cache_shape(); }

  void open_slot(int32_t slot, std::span<const int32_t> tokens) override {
    for (const auto& rank : ranks_) rank->open_slot(slot, tokens);
  }

  int32_t max_submitted() const override { return ranks_[0]->max_submitted(); }

  void submit(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
              std::span<const TokenChoice> choices) override {
    run_pass([&](int32_t rank) { ranks_[rank]->submit(batch, attention, choices); });
  }

  std::span<const int32_t> take() override {
    std::vector<std::span<const int32_t>> tokens(ranks_.size());
    // A pass that found a fault has ended on all ranks: nothing waits for it.
    threads_->run([&](int32_t rank) { tokens[rank] = ranks_[rank]->take(); }, [] {});
    for (size_t rank = 1; rank < tokens.size(); ++rank) {
      const auto [own, first] = std::ranges::mismatch(tokens[rank], tokens[0]);
      if (own == tokens[rank].end() && first == tokens[0].end()) continue;
      throw Error("rank " + std::to_string(rank) +
                  " of the model chose other tokens than rank 0, from output row " +
                  std::to_string(own - tokens[rank].begin()) +
                  " on; a device or its links compute wrongly: have them tested");
    }
    return tokens[0];
  }

  void wait() override {
    threads_->run([&](int32_t rank) { ranks_[rank]->wait(); }, [] {});
  }

  std::span<const float> logits(const ForwardBatch& batch,
                                const kernels::AttentionMethod& attention) override {
    std::span<const float> logits;
    run_pass([&](int32_t rank) {
      const std::span<const float> own = ranks_[rank]->logits(batch, attention);
      if (rank == 0) logits = own;
    });
    return logits;
  }

  void reserve_states(int64_t rows) override {
    threads_->run([&](int32_t rank) { ranks_[rank]->reserve_states(rows); }, [] {});
  }

  void keep_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention, int64_t first_state,
                   std::span<int64_t> rows_read) override {
    std::vector<std::vector<int64_t>> read(ranks_.size(), std::vector<int64_t>(rows_read.size(), 0));
    run_pass([&](int32_t rank) { ranks_[rank]->keep_states(batch, attention, first_state, read[rank]); });
    for (const std::vector<int64_t>& of_rank : read) {
      for (size_t i = 0; i < of_rank.size(); ++i) rows_read[i] += of_rank[i];
    }
  }

  void compare_states(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                      std::span<kernels::RowDivergence> out) override {
    std::vector<std::vector<kernels::RowDivergence>> others(ranks_.size());
    run_pass([&](int32_t rank) {
      if (rank > 0) others[rank].resize(out.size());
      ranks_[rank]->compare_states(dense, sampled, rows, rank == 0 ? out : std::span(others[rank]));
    });
  }

 private:
  void run_pass(const std::function<void(int32_t rank)>& body) {
    if (failed_) {
      throw Error(
          "an earlier pass of the model failed on one of its devices, which ended it on all; load it again");
    }
    threads_->run(body, [&] {
      failed_ = true;
      abort_();
    });
  }

  // Backends end before what they use.
  std::unique_ptr<RankThreads> threads_;
  std::function<void()> abort_;
  std::vector<std::unique_ptr<Backend>> ranks_;
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_split_backend(SplitBackendParts parts) {
  return std::make_unique<SplitBackend>(std::move(parts));
}

}  // namespace allot::model
