// Collectives of ranks that are threads of this process and have their data in its memory, for tests.
#pragma once

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/bfloat16.h"
#include "model/collective.h"

namespace allot::model {

class ThreadGroup {
 public:
  explicit ThreadGroup(int32_t ranks) : given_(static_cast<size_t>(ranks)) {
    for (int32_t rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<Member>(*this, rank));
  }

  Collective& of_rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }

  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  class Member final : public Collective {
   public:
    Member(ThreadGroup& group, int32_t rank) : group_(group), rank_(static_cast<size_t>(rank)) {}

    void sum(void* data, int64_t count, kernels::DType dtype, kernels::CudaStream) override {
      group_.meet(rank_, data);
      sums_.assign(static_cast<size_t>(count), 0);
      for (const void* of_rank : group_.given_) add(of_rank, dtype);
      group_.meet(rank_, data);  // all have read
      for (size_t i = 0; i < sums_.size(); ++i) {
        if (dtype == kernels::DType::kFloat32) {
          static_cast<float*>(data)[i] = sums_[i];
        } else {
          static_cast<uint16_t*>(data)[i] = kernels::bfloat16_from_float(sums_[i]);
        }
      }
    }

    void gather(const void* part, void* all, int64_t bytes, kernels::CudaStream) override {
      group_.meet(rank_, const_cast<void*>(part));
      for (size_t rank = 0; rank < group_.given_.size(); ++rank) {
        std::memcpy(static_cast<std::byte*>(all) + static_cast<int64_t>(rank) * bytes, group_.given_[rank],
                    static_cast<size_t>(bytes));
      }
      group_.meet(rank_, const_cast<void*>(part));
    }

   private:
    void add(const void* data, kernels::DType dtype) {
      for (size_t i = 0; i < sums_.size(); ++i) {
        sums_[i] += dtype == kernels::DType::kFloat32
                        ? static_cast<const float*>(data)[i]
                        : kernels::float_from_bfloat16(static_cast<const uint16_t*>(data)[i]);
      }
    }

    ThreadGroup& group_;
    size_t rank_;
    std::vector<float> sums_;
  };

  // Gives the others `data` and returns when all have given theirs.
  void meet(size_t rank, void* data) {
    std::unique_lock lock(mutex_);
    given_[rank] = data;
    const uint64_t round = round_;
    if (++arrived_ == given_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || aborted_; });
    if (round_ == round) throw Error("aborted");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<void*> given_;  // [ranks]
  size_t arrived_ = 0;
  uint64_t round_ = 0;
  bool aborted_ = false;
  std::vector<std::unique_ptr<Member>> ranks_;
};

}  // namespace allot::model
