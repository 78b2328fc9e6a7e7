// Fidelity: how far the next-token distributions of a model under sampled attention are from those under
// exact attention, on given texts (teacher-forced). Engine::fidelity computes it; this header has what goes
// in and comes out, and the passes behind it. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"
#include "kernels/cache_format.h"
#include "kernels/method.h"
#include "kernels/rows.h"

namespace allot::model {

enum class FidelityMode : uint8_t {
  kPrefill,  // every position's attention is sampled, every position is measured
  // As a reply is generated after an exact prompt: attention is exact up to the last prompt token and sampled
  // behind it; measured from the last prompt token on, whose distribution is the first that chooses a token
  kDecode,
  // As a reply is generated after a sampled prompt: every position's attention is sampled, and those from the
  // last prompt token on are measured
  kReply,
};

struct FidelityText {
  std::vector<int32_t> ids = {};
  int32_t prompt_tokens = 1;  // the first of `ids`; does not count in kPrefill
  // Coordinates of the draws, as in a GenerationRequest.
  DrawKey key = {};
  uint32_t question = 0;
};

// A text under a schedule.
struct FidelityPair {
  size_t text = 0;
  // Per layer [layers], as in a GenerationRequest; empty = exact attention, which diverges by nothing unless
  // a cache is simulated.
  std::vector<int32_t> samples = {};
  kernels::AttentionMethod attention = {};  // `prefill` is not looked at
  // What all keys and values of the pair's passes are rounded to, those of an exact prompt, too; on the CPU
  // only. Exact attention, against which pairs are measured, has the cache as it is.
  kernels::CacheFormats simulated_cache = {};
};

struct FidelityOptions {
  FidelityMode mode = FidelityMode::kPrefill;
  bool positions = false;   // keep the divergence of every position
  bool count_rows = false;  // count the value rows that attention reads
  // Passes hold pairs of one schedule and method only, so that `seconds` of a pair are those of its like.
  bool timed = false;
};

struct Fidelity {
  int64_t positions = 0;            // measured
  double divergence = 0;            // mean KL(dense || sampled) of a position in nats
  double top1_agreement = 0;        // share of positions whose most likely token is the same
  std::vector<float> divergences;   // [positions] when asked for
  std::vector<uint8_t> agreements;  // [positions] when asked for
  int64_t sampled_tokens = 0;       // queries under the schedule
  // Distinct value rows read for these in layers that sample, summed over these layers and KV heads; 0 when
  // not counted.
  int64_t rows_read = 0;
  int64_t tokens = 0;  // of the text
  double seconds = 0;  // the text's share, by tokens, of the time of its passes, without the logits
  // Its share, by positions, of the time in which logits were made of states, exact ones too, and compared.
  double comparison_seconds = 0;
};

// Sets what the rows of the measured positions say: positions, divergence and agreement, with
// `of_each_position` those of each, too. Throws Error where a row's logits were not all numbers.
void take_comparison(std::span<const kernels::RowDivergence> rows, bool of_each_position, Fidelity* result);

}  // namespace allot::model
