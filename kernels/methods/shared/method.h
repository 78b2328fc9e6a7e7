// Estimators whose value rows serve several query heads. Heads of a group mostly want the same rows, and a
// row that was read costs nothing more for the others.
//
// For a query token and a KV head with heads of probabilities p_h,n, the size of row n is q_n = sum over the
// heads of p_h,n: the mass that the group gives it. With a threshold tau, row n is read with probability pi_n
// = min(1, q_n / tau): rows of pi_n = 1 are kept, the others drawn systematically. Every head weighs a row
// that was read by p_h,n / pi_n, at most tau where it was drawn, which makes its estimate unbiased (Horvitz
// and Thompson 1952). The estimators differ in tau. Other sizes than the sum do hardly better
// (docs/estimators.md); the sum's CDF over long rows follows from sums that every head has anyway.
//
// A budget is S samples of each of the g heads of a group, or R value rows of the group: R = S g is the same,
// bit for bit, and R may lie between.
#pragma once

#include "kernels/methods/row.h"

namespace allot::kernels::methods {

// tau such that the pi_n of a group of g heads add up to R = S g: as many rows as g heads with S samples each
// may read, all different. Groups of one head make it `threshold`.
//
// With value-norms the size of a row is q_n |V_n|: among rows of equal attention the long ones matter more
// (docs/estimators.md). Rows without length are never read, and weigh nothing.
struct Joint {
  static constexpr MethodParameter kParameters[] = {
      {.name = "value-norms",
       .hint = "0|1",
       .help = "1 makes a row's chance proportional to the norm of its values, too",
       .min = 0,
       .max = 1,
       .value = 0,
       .usual = 1,
       .whole = true,
       .norms = true}};
  static constexpr EstimatorRow kRow{.name = "joint",
                                     .summary = "S rows a head, which all heads of a group use",
                                     .parameters = kParameters,
                                     .scope = Scope::kGroup};
  static void select_shared(const SharedRows& rows, const Choice& choice, const DrawRow& draws,
                            std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

// One tau for all groups of the layer, R times the groups in all: groups that need few rows leave theirs
// to the others.
struct Pooled {
  static constexpr EstimatorRow kRow{.name = "pooled",
                                     .summary = "joint, with the rows of a token shared out among its groups",
                                     .scope = Scope::kLayer};
  static void select_shared(const SharedRows& rows, const Choice& choice, const DrawRow& draws,
                            std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

// tau = 1 / S = g / R whatever the row: systematic sampling over the sizes with targets 1 / S apart, where a
// row counts once however many targets fall in it. A token reads as many rows as its attention is spread out,
// at most R + 1 of a group, far fewer where it is concentrated; so tokens, groups and layers share out what a
// budget may read in all.
struct Level {
  static constexpr EstimatorRow kRow{
      .name = "level",
      .summary = "one sample per 1/S of a group's attention, rows read once for all heads",
      .scope = Scope::kGroup,
      .spaced = true};
  static void select_shared(const SharedRows& rows, const Choice& choice, const DrawRow& draws,
                            std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

}  // namespace allot::kernels::methods
