// Cuts a launch into items, a few hundred rows of one sequence and KV head each, and runs them on
// the thread pool.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/round_up.h"
#include "kernels/attention.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/launch.h"
#include "kernels/thread_pool.h"

namespace allot::kernels {
namespace cpu {
namespace {

// Rows of a prefill item: enough that widening the keys is small beside using them, few enough to
// share a prompt.
constexpr int64_t kItemRows = 256;

// A decode step reads the heads of a page together when sequences alone keep the threads busy.
std::vector<Item> make_items(const AttentionParams& p, int num_threads) {
  const int64_t group = p.num_q_heads / p.num_kv_heads;
  const bool split_heads = p.batch < 4 * int64_t{num_threads};
  const bool one_choice = row_of(p.method.estimator).scope == Scope::kLayer;
  std::vector<Item> items;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t queries = p.query_start[b + 1] - p.query_start[b];
    const bool all_heads = (one_choice && p.budgets[b] > 0) || (queries == 1 && !split_heads);
    const int32_t kv_heads = all_heads ? p.num_kv_heads : 1;
    const int64_t item_queries = round_up(std::max<int64_t>(1, kItemRows / (group * kv_heads)), kLanes);
    for (int64_t first = 0; first < queries; first += item_queries) {
      for (int32_t kv_head = 0; kv_head < p.num_kv_heads; kv_head += kv_heads) {
        items.push_back({b, kv_head, kv_heads, first, std::min(item_queries, queries - first)});
      }
    }
  }
  return items;
}

}  // namespace

void attend(const AttentionParams& params, int num_threads, Isa isa) {
  validate(params);
  if (params.dtype == DType::kFloat16) {
    throw Unsupported("attention: float16 has CUDA kernels only; on the CPU use bfloat16 or float32");
  }
  if (params.split.high != nullptr)
    throw Unsupported("attention: split keys have CUDA kernels only; on the CPU use 16-bit or 32-bit keys");
  const std::vector<Item> items = make_items(params, num_threads);
  const auto attend_item = kernels_of(isa).attend;
  ThreadPool::of_this_thread().for_each(static_cast<int64_t>(items.size()), num_threads, [&](int64_t i) {
    thread_local Workspace workspace;
    // Later items of a prompt see more keys. The long items come first, so that no thread still works on one
    // at the end.
    attend_item(params, items[items.size() - 1 - i], workspace);
  });
}

}  // namespace cpu

void attend_cpu(const AttentionParams& params, int num_threads) {
  cpu::attend(params, num_threads, cpu::best_isa());
}

}  // namespace allot::kernels
