// A metadata value of a GGUF file, with its key. Each reader throws CorruptFile naming file, key, value and
// what was expected. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace allot::model {

// The numbers are those of the format.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Bytes of a value of this type; 0 for strings and arrays, whose values have lengths of their own, and for
// numbers that are no type.
uint64_t gguf_type_bytes(GgufType type);
// "uint32"; "type 77" for a number that is no type.
std::string gguf_type_name(GgufType type);

// Where a value lies in the file: `count` elements of `type`, one after the other. A string is its length as
// uint64 and its bytes.
struct GgufValue {
  GgufType type = GgufType::kUint8;  // of the elements; never an array
  bool array = false;
  uint64_t count = 1;
  std::string_view bytes;  // exactly those of the elements
};

// Refers to the file, which must outlive it.
class GgufField {
 public:
  GgufField(std::string_view file, std::string_view key, GgufValue value)
      : file_(file), key_(key), value_(value) {}

  std::string_view text() const;  // UTF-8
  bool boolean() const;
  int64_t integer(int64_t min, int64_t max) const;  // of any integer type
  double real(double min, double max) const;        // float32 or float64
  // Arrays; texts are UTF-8.
  std::vector<std::string_view> texts() const;
  std::vector<int64_t> integers(int64_t min, int64_t max) const;
  uint64_t elements() const;  // of an array of anything

  // "FILE: metadata key KEY" for messages of the caller.
  std::string where() const;
  // The value, or what kind of array it is, cut to a length that fits a message.
  std::string shown() const;
  [[noreturn]] void fail(const std::string& expectation) const;

 private:
  bool is_integer() const;
  int64_t integer_at(uint64_t index, int64_t min, int64_t max) const;

  std::string_view file_;
  std::string_view key_;
  GgufValue value_;
};

// A text of a file for a message: in quotes, what cannot be printed escaped, long ones cut.
std::string shown_text(std::string_view text);

}  // namespace allot::model
