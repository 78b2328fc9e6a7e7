// Episodes and results of questions (episode/) as they cross the wire, both ways.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "episode/episode.h"
#include "episode/question_result.h"
#include "episode/reply_text.h"
#include "wire/messages_fwd.h"

namespace allot::wire {

LeaseKind to_wire(RewardKind kind);
// Nothing for a kind that this release does not know.
std::optional<RewardKind> kind_of(LeaseKind kind);

// Sets those fields of a lease that say which episode it is for.
void fill(const Episode& episode, Lease* lease);
// The episode of a lease. A kind or split that this release does not know throws InvalidArgument naming it.
Episode episode_of(const Lease& lease);

// Sets the outcomes of a message. `correct` is set beside the score, for peers of the previous release.
// `texts` has the reply of each result, or is empty where they are not wanted.
void fill(std::span<const QuestionResult> results, std::span<const ReplyText> texts, EpisodeResult* message);
void fill(std::span<const QuestionResult> results, std::span<const ReplyText> texts, PartialResult* message);

// Reads the outcomes of a message, which may hold anything, into `results`. Returns what is wrong with them,
// empty when nothing is: each must have a finish reason and no negative number of tokens. The caller has to
// check that the questions are those that were asked and that the scores are in range.
std::string read_results(const EpisodeResult& message, std::vector<QuestionResult>* results);
std::string read_results(const PartialResult& message, std::vector<QuestionResult>* results);

// Reads the replies of a message's outcomes, one for each, into `texts`. Returns which outcome has none,
// empty when all have theirs.
std::string read_replies(const EpisodeResult& message, std::vector<ReplyText>* texts);
std::string read_replies(const PartialResult& message, std::vector<ReplyText>* texts);

}  // namespace allot::wire
