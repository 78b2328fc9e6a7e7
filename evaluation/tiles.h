// Attention by tiles of keys: in how many tiles the weights of a query lie, where the estimators read, and
// how near they come to exact attention: tables 28 to 30 of the S2ANTA paper (Appendix U).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "evaluation/variance.h"
#include "kernels/estimator.h"

namespace allot::evaluation {

// The share of the weights that a head's tile support holds.
inline constexpr double kSupportedShare = .9;

// The table's classes of tile support: as many of the heaviest tiles as hold kSupportedShare of the weights.
inline constexpr std::array<std::string_view, 5> kSupportClasses = {"1", "2", "3-4", "5-8", "9+"};
size_t support_class(int64_t tiles);  // place in kSupportClasses of a number of at least 1

// The fewest tiles whose masses add up to `share` of all, or to within rounding of it. Masses in any order.
int64_t tile_support(std::span<const double> masses, double share);

// Estimates beside exact attention's output: means over the replicates of heads, and over the heads.
struct Closeness {
  int64_t heads = 0;
  double error = 0;  // |estimate - exact| / |exact|, Euclidean norms
  // Of the error, from the spread of the heads; nothing for a single one.
  std::optional<double> error_standard_error = {};
  double cosine = 0;  // of the angle between estimate and exact output
  // |mean of all possible estimates - exact| / |exact|, exactly; nothing for an estimator without tiles.
  std::optional<double> bias = {};
  double rows = 0;  // distinct value rows read
};

struct TileRow {
  kernels::Estimator estimator = {};
  int64_t tile = 0;  // keys of a tile
  int64_t samples = 0;
  // All heads; nothing where the estimator needs a sample in every tile and there are more tiles.
  std::optional<Closeness> all = {};
  // The heads of each of kSupportClasses; nothing for a class without heads.
  std::array<std::optional<Closeness>, kSupportClasses.size()> by_support = {};
  // Share of the distinct rows that lie in the 1, 2, 4, … heaviest tiles of their head, up to all of them:
  // mean over replicates and heads. As many as TileMasses::share has.
  std::vector<double> share = {};
};

// How the weights of the heads lie in tiles.
struct TileMasses {
  int64_t tile = 0;
  int64_t tiles = 0;
  double support = 0;                                        // mean over the heads
  std::array<int64_t, kSupportClasses.size()> classes = {};  // heads
  std::vector<double> share = {};  // of the weights in the 1, 2, 4, … heaviest tiles, mean over the heads
};

struct TileResults {
  std::vector<TileMasses> masses;  // in the order of the tiles
  std::vector<TileRow> rows;       // by estimator, then tile, then samples, each in the order given
};

// Of the states of measure_variance, whose spacing plays no part: an estimator chooses as its reference in
// double precision does (kernels/reference.h). Estimates of one head, budget and replicate have the same
// draws for every estimator and tile, so an estimator without tiles repeats itself for each. The result
// depends on the setting alone, not on threads. `progress` is told how many heads are done, from any thread,
// one call at a time; empty results when `stop` was set before all were. Throws InvalidArgument where a
// number is too small, and for an estimator that draws nothing by itself in a head: exact, or one whose heads
// choose together.
TileResults measure_tiles(const VarianceSetting& setting, std::span<const kernels::Estimator> estimators,
                          std::span<const int64_t> tiles,
                          const std::function<void(int64_t heads)>& progress = {},
                          const std::atomic<bool>* stop = nullptr);

}  // namespace allot::evaluation
