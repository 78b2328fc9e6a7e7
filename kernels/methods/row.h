// What an estimator declares about itself: its row of the table in list.h, from which names, options, --help,
// checks, reports, benches and the dispatch of all kernels follow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"

namespace allot::kernels {

enum class DType : uint8_t;
namespace cpu {
struct Picks;
struct Workspace;
}  // namespace cpu
namespace cuda {
struct ValueKernel;
enum class Workers : uint8_t;
}  // namespace cuda

// A number of an estimator's own: an option of this name, a key in JSON files and in a run's spec.
struct MethodParameter {
  const char* name;  // unique among all estimators, as an option writes it: "page-budget"
  const char* hint;  // its unit, in capitals
  const char* help;
  double min;
  double max;
  double value;          // what files and specs mean that do not name it
  double usual = value;  // what commands take where nothing is asked; files then name it
  bool whole = false;
  bool norms = false;  // other values than 0 need the norms of value rows (AttentionParams::value_norms)
};

// The query heads of a token that choose value rows together.
enum class Scope : uint8_t {
  kHead,   // every head for itself
  kGroup,  // the heads that read one KV head
  kLayer,  // all heads
};

// What a budget counts.
enum class BudgetUnit : uint8_t {
  kSamples,  // samples of a query head
  kRows,     // value rows of a KV head, for the group of heads that read it; of estimators with a wider scope
};

// The value rows that a budget asks for, for a group of `heads` heads that choose together: itself, or its
// samples in every head.
ALLOT_HOST_DEVICE constexpr int64_t rows_of_group(BudgetUnit unit, int32_t budget, int32_t heads) {
  return unit == BudgetUnit::kRows ? budget : int64_t{budget} * heads;
}

struct EstimatorRow {
  const char* name;     // on the command line and in files
  const char* summary;  // one line for people
  std::span<const MethodParameter> parameters = {};
  // Properties of the estimator; kernels and checks use these instead of asking for estimators by name.
  bool samples = true;                // uses budgets; false: every row is exact
  bool draws = true;                  // uses random numbers
  bool tiled = false;                 // works by tiles of AttentionMethod::tile keys
  bool sample_in_every_tile = false;  // a budget above 0 is at least the number of tiles
  Scope scope = Scope::kHead;
  // Of a wider scope than a head: rows at targets of one spacing, so that a token may read fewer rows than
  // its budget allows, or one more. The others read all of them where there are as many keys.
  bool spaced = false;
  // A key's weight is floor(S P_n + u) - floor(S P_{n-1} + u) samples over the whole row, which the CPU's
  // prefill counts for sixteen rows at a time instead of asking for picks.
  bool counts_row = false;
};

// What a selection depends on, besides the row's probabilities and draws.
struct Choice {
  int32_t samples = 0;                     // S > 0, or the rows R of a group where the unit says so
  int32_t tile = 256;                      // keys per tile
  std::span<const double> parameters;      // the estimator's own, in the order of its row
  BudgetUnit unit = BudgetUnit::kSamples;  // of `samples`
};

// The probabilities of the heads that choose together: those of a group follow one another, the groups in the
// order of their KV heads.
struct SharedRows {
  std::span<const double> p;  // [groups, heads, keys]
  int32_t groups = 1;
  int32_t heads = 1;  // of each group
  int32_t keys = 0;
  std::span<const double> norms = {};  // [groups, keys] of the value rows; empty where the method uses none
};

// Every estimator is a struct in the method.h of a folder beside this file, named in methods.cmake, with
//   static constexpr EstimatorRow kRow;
//   static void select(std::span<const double> p, const Choice&, const DrawRow&,
//                      std::vector<double>& weights);
//     The reference, in double precision: adds to weights[n], which are 0, the factor of value vector n,
//     given the probabilities p of the row's keys.
//   static cpu::Picks pick(const float* weights, int32_t keys, const Choice&, const DrawRow&,
//                          cpu::Workspace&);
//     The same on the CPU from weights proportional to p, followed by zeros up to a multiple of 16.
//     kernels/cpu/select.h may have a vectorised overload in its place.
//     An estimator of a wider scope than a head has instead of both
//   static void select_shared(const SharedRows&, const Choice&, const DrawRow&,
//                             std::vector<double>& weights);  // [groups, heads, keys]
//     and its code on the CPU in kernels/cpu/share.h. Its draws are those of the first head of the scope.
//   static cuda::ValueKernel cuda_kernel(DType, int32_t head_dim, cuda::Workers workers);
//     Its CUDA value kernel (kernels/cuda/kernel_table.h); defined by the build, from
//       template <class T, int kHeadDim> cuda::ValueKernel cuda::<folder>_kernel(Workers workers)
//     in the folder's value_kernel.cuh.
// `exact` has neither select nor pick: rows with all their keys have code of their own.

}  // namespace allot::kernels
