// Weights of -1, 0 and 1 times one number a tensor, those of BitNet b1.58 ("The Era of 1-bit LLMs", section
// 2): how they are stored, four in a byte or as full numbers that are rounded when they are read, and the
// numbers that both stand for. The definitions are those of transformers (integrations/bitnet.py), whose
// files these are. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace allot::model {

// Four weights in a byte. Bits 2 q and 2 q + 1 of byte (i, j) of [rows / 4, columns] are one more than weight
// (q rows / 4 + i, j) of [rows, columns]; a tensor's rows are a multiple of 4.
struct PackedTernary {
  std::span<const std::byte> bytes;
  float scale = 1;  // the number that -1, 0 and 1 are multiplied with
};
// Place of the first byte that holds a number other than 0, 1 and 2, or the number of bytes.
size_t first_invalid(std::span<const std::byte> packed);
// Weights [first, first + out.size()), row major.
void unpack(const PackedTernary& packed, int64_t first, std::span<float> out);

// Full numbers in place of ternary weights, which are round(w / m) limited to -1 and 1, times m: m is the
// mean of all |w| of the tensor, at least 1e-5; ties go to the even number.
class TernaryRounding {
 public:
  // From the mean of |w|.
  explicit TernaryRounding(float mean);
  void round(std::span<float> weights) const;

 private:
  float inverse_;
};

}  // namespace allot::model
