// Episodes and results of questions (episode/) as they cross the wire, both ways.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "episode/episode.h"
#include "episode/question_result.h"
#include "wire/messages_fwd.h"

namespace allot::wire {

// Sets what of a lease is its episode.
void fill(const Episode& episode, Lease* lease);
// The episode of a lease. A kind or split that this release does not know throws InvalidArgument naming it.
Episode episode_of(const Lease& lease);

// Sets the outcomes of a message. `correct` is set beside a score, for peers of the release before.
void fill(std::span<const QuestionResult> results, EpisodeResult* message);
void fill(std::span<const QuestionResult> results, PartialResult* message);

// Reads the outcomes of a message into `results`; what a peer sent may be anything. Returns why they are no
// results, empty when they are: each has a finish reason and no negative number of tokens. Whether questions
// and scores are those that were asked for is for the caller to see.
std::string read_results(const EpisodeResult& message, std::vector<QuestionResult>* results);
std::string read_results(const PartialResult& message, std::vector<QuestionResult>* results);

}  // namespace allot::wire
