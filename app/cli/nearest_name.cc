#include "app/cli/nearest_name.h"

#include <algorithm>
#include <vector>

namespace allot::app {
namespace {

// Optimal string alignment distance, the dynamic programme over prefixes of both words.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t replace = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> known) {
  std::optional<std::string> best;
  size_t fewest = 0;
  for (const std::string& name : known) {
    const size_t edits = edit_distance(word, name);
    const size_t allowed = std::max<size_t>(2, std::max(word.size(), name.size()) / 3);
    // Two edits turn any two-letter word into any other, so a short word must share a letter.
    if (edits > allowed || edits >= std::max(word.size(), name.size())) continue;
    if (!best || edits < fewest) {
      best = name;
      fewest = edits;
    }
  }
  return best;
}

}  // namespace allot::app
