// Values of chat templates. A chat template is a program in Jinja, which is written in Python: a value
// behaves as Python's of the same type does. Text is UTF-8; lengths and indices count code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace allot::model::jinja {

// Why a template cannot go on; the interpreter adds the place and makes it an error of base/error.h.
class Fault : public std::exception {
 public:
  enum class Kind {
    kRaised,       // raise_exception of the template
    kError,        // what Python or Jinja would raise
    kUnsupported,  // beyond the subset, or beyond a limit
  };
  Fault(Kind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  Kind kind() const { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Kind kind_;
  std::string message_;
};
[[noreturn]] void fail(std::string message);              // kError
[[noreturn]] void fail_unsupported(std::string message);  // kUnsupported

// What a rendering may spend. Templates come with models from anywhere, and a few lines of one can ask for
// any amount of time or memory.
class Budget {
 public:
  Budget(int64_t steps, int64_t bytes) : steps_(steps), bytes_(bytes) {}
  void step(int64_t steps = 1);  // an expression, a statement, an element of a list
  void handle(size_t bytes);     // text that is made or looked through

 private:
  int64_t steps_;
  int64_t bytes_;
};

class Value;
using Values = std::vector<Value>;

// A list, or what else has elements in an order.
struct Sequence {
  enum class Kind {
    kList,
    kTuple,
    kRange,
    kView,       // of a mapping: its items, keys or values
    kGenerator,  // what map, select and the like give: can be gone through once
  };
  Kind kind = Kind::kList;
  Values values;
  int32_t depth = 1;  // of lists and mappings in it, and itself
  size_t taken = 0;   // elements that a generator has given
};

// In the order of insertion.
struct Mapping {
  std::vector<std::pair<Value, Value>> entries;
  int32_t depth = 1;
};

// namespace(): the values that a loop's body can set for what comes after the loop.
struct Namespace {
  std::vector<std::pair<std::string, Value>> entries;
};

// The variable `loop` of a loop's body.
struct Loop {
  const Values* values = nullptr;  // of the running loop
  size_t index0 = 0;
};

struct Undefined {
  std::string what;  // "'name' is undefined"
};
struct None {};
// A function of the language, a method of a value: known, and callable where it stands.
struct Function {
  std::string name;
};

class Value {
 public:
  Value() : data_(Undefined{"a value is undefined"}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None none) : data_(none) {}
  Value(Function function) : data_(std::move(function)) {}
  explicit Value(bool boolean) : data_(boolean) {}
  explicit Value(int64_t integer) : data_(integer) {}
  explicit Value(double real) : data_(real) {}
  explicit Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  explicit Value(std::string_view text) : Value(std::string(text)) {}
  explicit Value(const char* text) : Value(std::string(text)) {}
  explicit Value(std::shared_ptr<Namespace> variables) : data_(std::move(variables)) {}
  explicit Value(std::shared_ptr<const Loop> loop) : data_(std::move(loop)) {}
  // Throw a Fault for elements that check_part() refuses, and for lists in lists too deep: values are
  // printed, compared and freed by recursion.
  static Value sequence(Values values, Sequence::Kind kind = Sequence::Kind::kList);
  static Value mapping(std::vector<std::pair<Value, Value>> entries);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* text() const;
  Sequence* sequence() const;
  const Mapping* mapping() const;
  Namespace* variables() const;
  const Loop* loop() const;
  const Function* function() const { return std::get_if<Function>(&data_); }
  // An integer, or a boolean as 0 or 1.
  std::optional<int64_t> whole() const;
  // whole() or a real number.
  std::optional<double> number() const;
  size_t kind() const { return data_.index(); }

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<Sequence>, std::shared_ptr<const Mapping>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Loop>, Function>
      data_;
};

// Throws a Fault for a namespace and for a loop: they are no parts of other values, so that no value refers
// to itself and none outlives its loop.
void check_part(const Value& value);
std::string_view type_name(const Value& value);  // as messages call it: "a text", "none"
bool truth(const Value& value);
bool equal(const Value& left, const Value& right, Budget* budget);
// Whether left < right: of two numbers, or of two texts by code points. Throws a Fault for others.
bool less(const Value& left, const Value& right, Budget* budget);
// str() of Python, which is what {{ }} prints. Throws a Fault for what has no text of its own (generators).
std::string to_text(const Value& value, Budget* budget);
// json.dumps() of Python as transformers' tojson calls it. `separators` are those between items and behind
// a key.
struct JsonStyle {
  std::optional<int64_t> indent;
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::pair<std::string, std::string>> separators;
};
std::string to_json(const Value& value, const JsonStyle& style, Budget* budget);

// What a loop goes through: elements, keys of a mapping, characters of a text. A generator is used up. Throws
// a Fault for values without elements.
Values elements(const Value& value, Budget* budget);
// len() of Python. Throws a Fault for what has none.
int64_t length(const Value& value, Budget* budget);
const Value* find(const Mapping& mapping, const Value& key, Budget* budget);
// `value`[`key`] of Jinja: an element, else an attribute or method of that name, else an undefined value.
Value item(const Value& value, const Value& key, Budget* budget);
// `value`.`name`: an attribute or method, else the element of that name, else an undefined value.
Value attribute(const Value& value, const std::string& name, Budget* budget);
// `value`[start:stop:step]; of texts, lists and tuples.
Value slice(const Value& value, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
            Budget* budget);

}  // namespace allot::model::jinja
