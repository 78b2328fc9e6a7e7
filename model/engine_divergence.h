// How far the next-token distributions of one engine are from those of another that runs the same model in
// another way: other weights (EngineOptions::weights), another dtype, another device. Under exact attention.
#pragma once

#include "model/engine.h"
#include "model/fidelity.h"

namespace allot::model {

// Of one text, teacher-forced: `divergence` is the mean KL(reference || measured) of the positions that
// Engine::fidelity measures in this mode, `top1_agreement` their share whose most likely token is the same.
// Samples, rows and seconds stay 0. Both engines' logits of the whole text, 4 bytes a token and entry of the
// vocabulary, are in the host's memory while it runs; both caches need pages for the text. Throws as
// Engine::logits does, Error where a logit of either is not a number, and InvalidArgument naming the sizes
// for engines of different vocabularies or a prompt that is not part of the text.
Fidelity engine_divergence(Engine& reference, Engine& measured, const FidelityText& text, FidelityMode mode);

}  // namespace allot::model
