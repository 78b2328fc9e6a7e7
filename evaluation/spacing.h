// How the samples of a query lie on the CDF of its weights, and random states to draw from, for the analyses
// that need no model.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/philox.h"

namespace allot::evaluation {

// Independent (SANTA), one in each of S equal strata, or evenly spaced from one draw (S2ANTA paper, section
// 2.2).
enum class Spacing { kIndependent, kStratified, kSystematic };
Spacing parse_spacing(std::string_view name);  // "iid", "strat" or "sys"; throws InvalidArgument
std::string_view name(Spacing spacing);

// Point of the CDF, in (0, 1], of sample `s` of `samples` under the draws of a row.
double target_of(Spacing spacing, const DrawRow& draws, int64_t s, int64_t samples);

// Draws of a stream of a repetition, at a position of it.
DrawRow stream_draws(uint32_t seed, int64_t repetition, uint32_t stream, int64_t position);

// Standard normal elements, two a pair of draws (Box and Muller, 1958).
void fill_normal(const DrawRow& draws, std::span<float> elements);

}  // namespace allot::evaluation
