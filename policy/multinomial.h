// The policy of Algorithm 1: `draws` samples fall on the layers independently, each with the softmax of
// the policy logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/draws.h"

namespace allot::policy {

// exp(logit) / sum(exp), without overflow. [layers]
std::vector<double> softmax(std::span<const double> logits);

// How many of `draws` samples fall on each layer; a function of the stream alone. [layers]
std::vector<int32_t> draw_multinomial(std::span<const double> logits, int64_t draws, DrawStream stream);

// Log of the multinomial probability of `counts`.
double multinomial_log_prob(std::span<const int32_t> counts, std::span<const double> logits);

// Gradient of multinomial_log_prob by the logits: counts - draws * softmax(logits). [layers]
std::vector<double> multinomial_score(std::span<const int32_t> counts, std::span<const double> logits);

}  // namespace allot::policy
