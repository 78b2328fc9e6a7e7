// A backend made of one backend for each rank of a model (model_split.h): every call goes to all of them at
// once, each in a thread of its own. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/backend.h"

namespace allot::model {

// A thread for each rank, rank 0 being the caller's, so that all ranks reach what they do together.
class RankThreads {
 public:
  explicit RankThreads(int32_t ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int32_t ranks() const;
  // Calls body(rank) for every rank, always on the rank's thread, and returns when all have returned. When
  // one throws, `on_failure` is called at once, in its thread, so that no rank goes on waiting for it; the
  // first exception is rethrown at the end. Not for use by several threads at once.
  void run(const std::function<void(int32_t rank)>& body, const std::function<void()>& on_failure);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SplitBackendParts {
  std::unique_ptr<RankThreads> threads;
  std::vector<std::unique_ptr<Backend>> ranks;  // with caches of the same number of pages
  // Ends the waiting of ranks for one that failed. After it every call throws Error.
  std::function<void()> abort;
};

// All ranks choose tokens from the same logits, so each one's are the model's; take() throws Error when they
// differ. Value rows are counted in keep_states() alone.
std::unique_ptr<Backend> make_split_backend(SplitBackendParts parts);

}  // namespace allot::model
