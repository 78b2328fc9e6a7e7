#include "emulation.h"

#include <cassert>
#include <cstdio>
#include <cstdlib>

namespace emulation {

Blocks* Blocks::running_ = nullptr;
Index Blocks::grid;

void Blocks::run(int count, const Index& first, int block_threads, int64_t shared_bytes,
                 const std::function<void()>& body) {
  assert(running_ == nullptr && block_threads % 32 == 0);
  const int threads = count * block_threads;
  constexpr size_t kStackBytes = size_t{256} << 10;
  static std::vector<char> stacks;
  stacks.resize(std::max(stacks.size(), kStackBytes * static_cast<size_t>(threads)));
  const auto each = static_cast<size_t>(shared_bytes) / sizeof(double) + 2;
  std::vector<double> shared(each * static_cast<size_t>(count), std::nan(""));

  Blocks blocks;
  blocks.first_ = first;
  blocks.block_threads_ = block_threads;
  blocks.threads_.resize(static_cast<size_t>(threads));
  blocks.warps_.resize(static_cast<size_t>(threads) / 32);
  for (Warp& warp : blocks.warps_) warp.barrier.members = 32;
  blocks.of_blocks_.resize(static_cast<size_t>(count));
  blocks.of_some_.resize(static_cast<size_t>(count));
  for (int b = 0; b < count; ++b) {
    blocks.of_blocks_[static_cast<size_t>(b)].members = block_threads;
    const auto start = reinterpret_cast<uintptr_t>(shared.data() + each * static_cast<size_t>(b));
    blocks.shared_.push_back(reinterpret_cast<char*>((start + 15) / 16 * 16));
  }
  blocks.all_.members = blocks.left_ = threads;
  blocks.body_ = &body;
  running_ = &blocks;
  for (size_t i = 0; i < blocks.threads_.size(); ++i) {
    ucontext_t& context = blocks.threads_[i].first_context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.data() + i * kStackBytes;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, &Blocks::start, 0);
  }
  if (_setjmp(blocks.outside_) == 0) {
    blocks.threads_[0].started = true;
    setcontext(&blocks.threads_[0].first_context);
  }
  running_ = nullptr;
}

void Blocks::start() {
  (*running_->body_)();
  Blocks& block = *running_;
  Thread& self = block.threads_[static_cast<size_t>(block.current_)];
  self.ended = true;
  // Threads that ended are waited for no more.
  block.leave(block.warps_[static_cast<size_t>(block.current_ / 32)].barrier);
  block.leave(block.of_blocks_[static_cast<size_t>(block.rank())]);
  block.leave(block.all_);
  if (--block.left_ == 0) _longjmp(block.outside_, 1);
  block.change_place();
}

void Blocks::leave(Barrier& barrier) {
  --barrier.members;
  if (barrier.members > 0 && barrier.arrived == barrier.members) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
}

void Blocks::wait_for(Barrier& barrier) {
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == barrier.members) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  Thread& self = threads_[static_cast<size_t>(current_)];
  self.barrier = &barrier;
  self.generation = generation;
  change_place();
  self.barrier = nullptr;
}

void Blocks::change_place() {
  Thread& from = threads_[static_cast<size_t>(current_)];
  const int count = static_cast<int>(threads_.size());
  int next = current_;
  do {
    next = next + 1 == count ? 0 : next + 1;
    if (next == current_ && !from.can_run()) {
      // Some wait in one place and some in another: a fault of the kernel.
      std::fprintf(stderr, "every thread of block %u, %u, %u waits\n", first_.x, first_.y, first_.z);
      std::abort();
    }
  } while (!threads_[static_cast<size_t>(next)].can_run());
  if (next == current_) return;
  current_ = next;
  Thread& to = threads_[static_cast<size_t>(next)];
  if (_setjmp(from.place) != 0) return;
  if (to.started) _longjmp(to.place, 1);
  to.started = true;
  setcontext(&to.first_context);
}

}  // namespace emulation

int __syncthreads_and(int value) {
  static bool all;
  all = true;
  __syncthreads();
  if (value == 0) all = false;
  __syncthreads();
  const bool result = all;
  __syncthreads();
  return result ? 1 : 0;
}
