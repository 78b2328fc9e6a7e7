// Matrix products through LibTorch, behind an interface without its headers: linear.cc is the
// only file of the CPU runtime that compiles against ATen (model/cuda/dense_prefill.cc does on a GPU).
// LibTorch picks oneDNN or MKL and with them AMX and AVX-512 where the processor has them.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/estimator.h"
#include "model/buffer.h"

namespace allot::model {

// Matrix products run on whole groups of this many rows. For one row or a few the libraries use other code,
// which sums in another order: padding makes a sequence's bits independent of the number of its batch mates.
inline constexpr int64_t kRowGroup = 16;
// A thread that computes a whole block of rows reads every weight. When a matrix is larger than this, the
// threads share each product instead.
inline constexpr int64_t kMaxPrivateMatrixBytes = int64_t{8} << 20;

// How products of bfloat16 matrices are computed. Both sum in float32 and round once; they sum in different
// orders.
enum class Bfloat16Products {
  kNative,   // by LibTorch's product of bfloat16 matrices
  kWidened,  // by its product of float32 matrices; the weights are held as float32, in twice the memory
};

// kWidened on x86 processors without AVX-512, where LibTorch multiplies bfloat16 matrices without vector
// instructions (docs/internals/engine-cpu.md, "Processors without AVX-512"), kNative elsewhere.
Bfloat16Products bfloat16_products();

// out = input * weight^T + bias. The weight is shared because a tied embedding is also the table of
// the first layer.
class Linear {
 public:
  // weight [out_features, in_features] and bias [out_features], or null for none, both of `dtype`. `products`
  // matters for bfloat16 alone. Where oneDNN can, the weight is copied into the order in which its products
  // read it, and `weight` is not kept; it is cut into columns for that many threads, at most `parts`, which
  // change no bit.
  Linear(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
         int64_t in_features, kernels::DType dtype, int parts,
         Bfloat16Products products = bfloat16_products());
  // In which weights and biases of `dtype` are held.
  static kernels::DType held_dtype(kernels::DType dtype, Bfloat16Products products = bfloat16_products());
  ~Linear();
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }

  // input [rows, in_features] and out [rows, out_features] of `dtype`, contiguous. Sums are float32, rounded
  // once when stored. Up to `threads` threads share the columns of out, at most as many as there are parts;
  // inside run_parallel it must be 1.
  void apply(const void* input, int64_t rows, void* out, int threads) const;

 private:
  struct Tensors;

  void apply_part(int64_t part, const void* input, int64_t rows, void* out) const;

  std::unique_ptr<Tensors> tensors_;
  int64_t out_features_;
  int64_t in_features_;
};

}  // namespace allot::model
