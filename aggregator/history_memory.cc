#include "aggregator/history_memory.h"

#include <fmt/format.h>

#include "base/error.h"

namespace allot::aggregator {
namespace {

class MemoryHistory final : public History {
 public:
  MemoryHistory(MemoryStore* store, Timestamp now) : store_(store) {
    for (const MemoryStore::Epoch& earlier : store_->epochs) spent_before_ += earlier.last - earlier.started;
    store_->epochs.push_back({now, now});
    epoch_ = static_cast<int64_t>(store_->epochs.size());
  }

  int64_t epoch() const override { return epoch_; }
  Duration spent_before() const override { return spent_before_; }
  wire::Counters counters() const override { return store_->counters; }

  void replay(const std::function<void(const Record&)>& visit) const override {
    for (const Record& record : store_->records) visit(record);
  }

  void commit(std::span<const Record> records, const wire::Counters& counters, Timestamp now) override {
    if (static_cast<int64_t>(store_->epochs.size()) != epoch_) {
      throw StorageError(fmt::format("epoch {} is fenced out: epoch {} writes this history now", epoch_,
                                     store_->epochs.size()));
    }
    store_->records.insert(store_->records.end(), records.begin(), records.end());
    store_->counters = counters;
    store_->epochs.back().last = now;
  }

 private:
  MemoryStore* store_;
  Duration spent_before_{0};
  int64_t epoch_;
};

}  // namespace

std::unique_ptr<History> open_memory_history(MemoryStore* store, Timestamp now) {
  return std::make_unique<MemoryHistory>(store, now);
}

}  // namespace allot::aggregator
