// Rows of several tables in the order in which they were written.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/sqlite.h"

namespace allot::aggregator {

// Merges queries of which each gives `seq`, ascending, as its first column.
class MergedRows {
 public:
  MergedRows(const Database& database, std::span<const std::string> queries) {
    for (const std::string& query : queries) {
      cursors_.push_back({Statement(database, query)});
      cursors_.back().step();
    }
  }

  // Which query has the next row by seq; nothing after the last row.
  std::optional<size_t> next() const {
    std::optional<size_t> next;
    for (size_t query = 0; query < cursors_.size(); ++query) {
      if (cursors_[query].more && (!next || cursors_[query].seq < cursors_[*next].seq)) next = query;
    }
    return next;
  }
  const Statement& row(size_t query) const { return cursors_[query].rows; }
  int64_t seq(size_t query) const { return cursors_[query].seq; }
  void step(size_t query) { cursors_[query].step(); }

 private:
  struct Cursor {
    Statement rows;
    bool more = false;
    int64_t seq = 0;

    void step() {
      more = rows.step();
      if (more) seq = rows.integer(0);
    }
  };
  std::vector<Cursor> cursors_;
};

}  // namespace allot::aggregator
