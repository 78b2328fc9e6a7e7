// Hidden states of passes on the CPU, kept so that their logits can be compared. Logits exist only for blocks
// of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/rows.h"
#include "model/buffer.h"
#include "model/linear.h"

namespace allot::model {

class KeptStates {
 public:
  // `output_head` makes logits of states, all of `dtype`; it must outlive this.
  KeptStates(const Linear& output_head, kernels::DType dtype, int threads);

  // Makes room for `rows` states; what was kept is lost.
  void reserve(int64_t rows);
  // [in_features of the output head] from row `index` on.
  std::byte* row(int64_t index);

  // As Backend::compare_states.
  void compare(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
               std::span<kernels::RowDivergence> out);

 private:
  // Logits of a block of rows, dense and sampled.
  struct Logits {
    Buffer dense;
    Buffer sampled;
  };

  const Linear& output_head_;
  kernels::DType dtype_;
  int threads_;
  Buffer states_;
  std::vector<Logits> logits_;  // [threads], empty until they are used
};

}  // namespace allot::model
