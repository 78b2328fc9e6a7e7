// What the two kernels of a launch share: their arguments, and where the intermediate results lie in the
// workspace. The score kernel writes, for every row (a query and a head), the statistics and the weights of
// each score tile of kScoreTile keys; the value kernel reads them.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/divisor.h"

namespace allot::kernels::cuda {

// Keys whose weights share one maximum.
inline constexpr int32_t kScoreTile = 64;
// Keys one step of the score kernel's pipeline loads: a page holds a whole number of them.
inline constexpr int32_t kStageKeys = 16;

// Maximum and sum of a score tile: weights are exp2(score - max), rounded to half precision; sum adds the
// rounded ones. Scores are in units of log2, so that one exp2 replaces exp.
struct TileStats {
  float max;
  float sum;
};

// Of a score tile in a head, where sizes of rows take in the norms of their values: the sum of weight times
// norm, and the largest of them.
struct NormStats {
  float sum;
  float max;
};

// What the groups of a query share where its rows are shared out among them.
struct Pool {
  double total;   // not finite where a score is not
  double step;    // of the targets, in mass that is not kept
  float tau;      // rows of that size or more are kept
  int32_t drawn;  // targets
};

// The first fault a launch found, kept until check_cuda reads it. code 0 = none.
struct Fault {
  int32_t code;
  int32_t tile;  // keys of one
  int64_t sequence;
  int64_t value;
  int64_t limit;
};
enum FaultCode : int32_t {
  kFaultNone = 0,
  kFaultLength,      // lengths[sequence] outside [number of queries, max_length] or beyond the page table
  kFaultBudget,      // budgets[sequence] outside [-1 or 0, max_budget]
  kFaultTileBudget,  // fewer samples (value) than tiles (limit), of which each needs one
  kFaultPage,        // page_table names a page outside the pool
  kFaultQueries,     // a sequence has more queries than max_queries, or less than none
};

// Largest number of score tiles that a warp takes at a time, so that there is a lane for each
// of their stages.
inline constexpr int32_t kMaxPieceTiles = 4;

// Every workspace starts with a header that is the same for every launch: the fault, and counters that are
// zero before and after every launch.
inline constexpr int64_t kFaultBytes = 256;
inline constexpr int32_t kMaxPairs = 1 << 16;     // of a sequence and a KV head, in decode
inline constexpr int32_t kMaxRows = 1 << 20;      // of a pass, where rows are shared by several blocks
inline constexpr int64_t kNextPieceOffset = 128;  // on a cache line of its own
inline constexpr int64_t kReadyOffset = kFaultBytes;
inline constexpr int64_t kConsumedOffset = kReadyOffset + 4 * kMaxPairs;
inline constexpr int64_t kArrivalsOffset = kConsumedOffset + 4 * kMaxPairs;
inline constexpr int64_t kHeaderBytes = kArrivalsOffset + 4 * kMaxRows;

// Entries of the value stage that one block gathers before it starts the next batch.
inline constexpr int32_t kBatchEntries = 512;
// Largest budget for which one warp works on a whole row.
inline constexpr int32_t kWarpRowBudget = 32;
// Most keys for which one warp chooses rows for a whole group.
inline constexpr int32_t kWarpGroupKeys = 1024;
// Most score tiles of a row whose sizes one warp holds in registers.
inline constexpr int32_t kShortTiles = 4;
// Most blocks that may share a row, each with its own contiguous part of the entries.
inline constexpr int32_t kMaxParts = 16;
// Floats behind a part's sums for that of its weights, where these are corrected.
inline constexpr int32_t kWeightSumRoom = 8;
// No row of value_pages: a launch has fewer.
inline constexpr uint32_t kNoRow = 0xFFFFFFFF;

// Entries (samples, or keys where all are wanted) that one part of a row takes: whole batches,
// few enough parts.
ALLOT_HOST_DEVICE constexpr int32_t part_entries(int32_t entries) {
  const int32_t batches = (entries + kBatchEntries - 1) / kBatchEntries;
  return kBatchEntries * ((batches + kMaxParts - 1) / kMaxParts);
}
// Number of parts of a row with `entries` entries; at least one, which writes the output even where
// nothing is drawn.
ALLOT_HOST_DEVICE constexpr int32_t part_count(int32_t entries) {
  return entries <= kBatchEntries ? 1 : (entries + part_entries(entries) - 1) / part_entries(entries);
}

// Parts of a row in exact decoding: a function of the row's keys and the number of KV heads alone, as its
// sums are.
inline constexpr int32_t kMostExactParts = 64;
// Of a long row: so many that one sequence occupies the multiprocessors of a GPU, and no more, since each is
// sums to write and to add.
ALLOT_HOST_DEVICE constexpr int32_t exact_most_parts(int32_t num_kv_heads) {
  const int32_t parts = 128 / num_kv_heads;
  return parts < 16 ? 16 : parts < kMostExactParts ? parts : kMostExactParts;
}
ALLOT_HOST_DEVICE constexpr int32_t exact_part_count(int32_t keys, int32_t most_parts) {
  if (keys <= 1536) return keys <= 768 ? 1 : 2;
  if (keys <= 4096) return (keys + 1023) / 1024;
  const int32_t parts = (keys + 511) / 512;
  return parts < most_parts ? parts : most_parts;
}
// Neighbouring parts of a row, a span of some 2,048 keys, are added first, in their order. So a block that
// takes a span leaves the sums that blocks with a part each would leave, to the bit, but writes and counts
// them once: that costs the launch more time than its bytes.
inline constexpr int32_t kMostSpanParts = 4;
inline constexpr int32_t kMostExactSpans = kMostExactParts / 2;
ALLOT_HOST_DEVICE constexpr int32_t exact_span_parts(int32_t keys, int32_t most_parts) {
  const int32_t parts = exact_part_count(keys, most_parts);
  if (keys <= parts * 512) return kMostSpanParts;
  return keys <= parts * 1024 || parts > kMostExactSpans ? 2 : 1;
}
ALLOT_HOST_DEVICE constexpr int32_t exact_span_count(int32_t keys, int32_t most_parts) {
  const int32_t of_span = exact_span_parts(keys, most_parts);
  return (exact_part_count(keys, most_parts) + of_span - 1) / of_span;
}
// Where part `part` begins among `count` pieces of a row.
ALLOT_HOST_DEVICE constexpr int32_t exact_part_begin(int32_t count, int32_t part, int32_t parts) {
  return count * part / parts;
}

ALLOT_HOST_DEVICE constexpr int32_t score_tiles(int32_t keys) {
  return (keys + kScoreTile - 1) / kScoreTile;
}

// Parts of a query whose heads read rows together: blocks to which its tiles are dealt. As many as have
// enough tiles, and rows to read, of which there are at most those wanted (rows_of_group) and one more. Every
// part forms the CDF of all tiles, so more of them are slower where many queries are served at once.
ALLOT_HOST_DEVICE constexpr int32_t shared_part_count(int64_t wanted, int32_t keys) {
  constexpr int32_t kTiles = 32;
  constexpr int64_t kRows = 96;
  constexpr int32_t kMost = 8;
  const int64_t rows = ((wanted < 0 ? 0 : wanted) + kRows) / kRows;
  const int32_t by_tiles = (score_tiles(keys) + kTiles - 1) / kTiles;
  const int32_t parts = rows < by_tiles ? static_cast<int32_t>(rows) : by_tiles;
  return parts < 1 ? 1 : parts < kMost ? parts : kMost;
}

// Parts of a row whose sizes are held (kernels/methods/shared/held_select.cuh) where a block serves it or
// several do: as many as have enough tiles, whatever is read of them, since each looks into its own tiles
// alone.
inline constexpr int32_t kMostRowParts = 8;
inline constexpr int32_t kRowPartTiles = 16;
ALLOT_HOST_DEVICE constexpr int32_t row_part_count(int32_t tiles) {
  const int32_t parts = (tiles + kRowPartTiles - 1) / kRowPartTiles;
  return parts < 1 ? 1 : parts < kMostRowParts ? parts : kMostRowParts;
}
// Most tiles of the parts that one of `blocks` blocks has of a row of up to that many.
ALLOT_HOST_DEVICE constexpr int32_t most_held_tiles(int32_t tiles, int32_t blocks) {
  const int32_t of_longest = (tiles + kMostRowParts - 1) / kMostRowParts;
  const int32_t slots = (row_part_count(tiles) + blocks - 1) / blocks;
  return slots * (of_longest > kRowPartTiles ? of_longest : kRowPartTiles);
}

// Sequences that a score kernel serves. Where dense sequences share a launch with others whose queries are
// Bernoulli estimates, each kind has a score kernel of its own.
enum class Scored : int32_t {
  kEvery,
  kEstimated,  // those without exact scores
  kExact,
};

struct Args {
  AttentionParams p;  // device pointers
  int32_t group;      // query heads that share a KV head
  Divisor page_size;  // p.page_size and p.num_kv_heads once more
  Divisor num_kv_heads;
  int32_t max_length;
  int32_t max_budget;
  int32_t max_queries;
  bool any_dense;
  bool one_query_each;  // decode: query b belongs to sequence b
  bool settled_keys;    // that of LaunchBounds, in decode
  bool few_rows;        // heads of all queries, no more of them than there are multiprocessors
  Scored scored;        // by this score kernel
  // Dense sequences with a single query are left to the exact decode kernel, by all others; and whether that
  // kernel has the launch to itself.
  bool exact_decode;
  bool exact_alone;
  // Of the estimator's row.
  bool samples;
  bool sample_in_every_tile;

  // The pass: queries first_query .. first_query + pass_queries of the launch.
  int32_t first_query;
  int32_t pass_queries;

  // Workspace. The score tiles of a row (query q of the pass, head h) begin at tile (q * num_q_heads +
  // h) * row_tiles.
  Fault* fault;
  int32_t row_tiles;      // score tiles of max_length keys, or one more: an even number
  TileStats* stats;       // [pass_queries, num_q_heads, row_tiles]
  uint16_t* weights;      // [pass_queries, num_q_heads, row_tiles, kScoreTile] half precision, in stage order
  NormStats* norm_stats;  // [pass_queries, num_q_heads, row_tiles]; null where no such sums are needed
  float* partial;         // [pass_queries, num_q_heads, parts, head_dim], or kWeightSumRoom more
  int32_t* arrivals;      // [pass_queries, num_q_heads] parts of a row that are done
  int32_t piece_tiles;    // score tiles a warp takes at a time
  Divisor full_pieces;    // pieces of a decode row of max_length keys
  // Pieces handed out; zero before and after every launch.
  int32_t* next_piece;
  // Decode: of the first `announced` sequences, the finished score tiles of a sequence and KV head (`ready`),
  // so that the value kernel can work on their rows while other keys are still being read, and the blocks
  // that have taken them (`consumed`), the last of which clears both. Rows of the others wait for the whole
  // score kernel.
  int32_t announced;
  int32_t* ready;     // [batch, num_kv_heads]
  int32_t* consumed;  // [batch, num_kv_heads]
  int32_t parts;      // most parts of a row
  // Exact decoding: sums of the parts of a row, relative to each part's largest score, which lies with the
  // part's sum of weights in `stats`. Null where no row has parts.
  float* exact_partial;      // [batch, num_q_heads, exact_parts, head_dim]
  int32_t exact_parts;       // most parts of a row that the launch may have
  int32_t exact_most_parts;  // and of any row: exact_most_parts() of all KV heads
  // Parts of all rows and KV heads together: as many from which on blocks take spans, and up to which what is
  // read leaves L2 first.
  int32_t exact_many_parts;
  int32_t exact_parts_beside_l2;
  // Null where groups do not share out their rows.
  Pool* pools;         // [pass_queries]
  double* rest_below;  // [pass_queries, num_kv_heads + 1] what is not kept in the groups before
  // Null where value rows are not counted, or heads choose together: hash tables of the rows that a group's
  // heads have read, row_slots (a power of two) entries each.
  uint32_t* row_table;  // [pass_queries, num_kv_heads, row_slots], kNoRow where empty
  int32_t row_slots;
};

}  // namespace allot::kernels::cuda
