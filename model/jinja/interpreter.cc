#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "model/jinja/characters.h"
#include "model/jinja/functions.h"
#include "model/jinja/syntax.h"
#include "model/jinja/template.h"

namespace allot::model::jinja {
namespace {

constexpr size_t kMostBytesOfTemplate = size_t{1} << 20;

constexpr std::string_view kFunctions[] = {"raise_exception", "strftime_now", "namespace", "range"};
// Jinja has them, and these templates have no use for them.
constexpr std::string_view kOtherFunctions[] = {"dict", "lipsum", "cycler", "joiner"};

bool is_one_of(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

class Interpreter {
 public:
  Interpreter(Template::Variables variables, const std::tm& now, const Limits& limits)
      : now_(now), budget_(limits.steps, limits.bytes) {
    frames_.push_back(std::move(variables));
  }

  std::string run(const Block& block) {
    execute(block);
    return std::move(out_);
  }
  Position position() const { return at_; }

 private:
  using Frame = Template::Variables;
  enum class Flow { kOn, kBreak, kContinue };

  // Variables that end with a block. Takes them away when it ends.
  class Scope {
   public:
    explicit Scope(std::vector<Frame>* frames) : frames_(frames) { frames_->emplace_back(); }
    ~Scope() { frames_->pop_back(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::vector<Frame>* frames_;
  };

  // ---- statements ----

  Flow execute(const Block& block) {
    for (const Statement& statement : block) {
      at_ = statement.position;
      budget_.step();
      const Flow flow = execute(statement);
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow execute(const Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::kText:
        print(statement.text);
        return Flow::kOn;
      case Statement::Kind::kPrint: {
        const Value value = evaluate(*statement.value);
        at_ = statement.position;
        print(to_text(value, &budget_));
        return Flow::kOn;
      }
      case Statement::Kind::kIf:
        return execute(truth(evaluate(*statement.value)) ? statement.body : statement.otherwise);
      case Statement::Kind::kFor:
        return loop(statement);
      case Statement::Kind::kSet:
        assign(statement.names, evaluate(*statement.value), statement.position);
        return Flow::kOn;
      case Statement::Kind::kSetBlock: {
        std::string before = std::exchange(out_, {});
        {
          const Scope scope(&frames_);
          execute(statement.body);
        }
        assign(statement.names, Value(std::exchange(out_, std::move(before))), statement.position);
        return Flow::kOn;
      }
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
      case Statement::Kind::kGeneration: {
        const Scope scope(&frames_);
        return execute(statement.body);
      }
    }
    return Flow::kOn;
  }

  void print(std::string_view text) {
    budget_.handle(text.size());
    out_ += text;
  }

  Flow loop(const Statement& statement) {
    const Value through = evaluate(*statement.value);
    at_ = statement.position;
    Values values = elements(through, &budget_);
    if (statement.condition != nullptr) {
      Values kept;
      for (Value& value : values) {
        const Scope scope(&frames_);
        assign(statement.names, value, statement.position);
        if (truth(evaluate(*statement.condition))) kept.push_back(std::move(value));
      }
      values = std::move(kept);
    }
    if (values.empty()) {
      const Scope scope(&frames_);
      return execute(statement.otherwise);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const Scope scope(&frames_);
      frames_.back().emplace_back("loop",
                                  Value(std::make_shared<const Loop>(Loop{.values = &values, .index0 = i})));
      assign(statement.names, values[i], statement.position);
      if (execute(statement.body) == Flow::kBreak) break;
    }
    return Flow::kOn;
  }

  void assign(const std::vector<std::string>& names, const Value& value, Position position) {
    at_ = position;
    if (names.size() == 1) {
      assign(names[0], value);
      return;
    }
    const Values parts = elements(value, &budget_);
    if (parts.size() != names.size())
      fail(fmt::format("{} values for {} variables", parts.size(), names.size()));
    for (size_t i = 0; i < names.size(); ++i) assign(names[i], parts[i]);
  }

  void assign(const std::string& name, const Value& value) {
    budget_.step();
    const size_t dot = name.find('.');
    if (dot == std::string::npos) {
      store(&frames_.back(), name, value);
      return;
    }
    const Value holder = look_up(name.substr(0, dot));
    if (holder.variables() == nullptr)
      fail(fmt::format("{} is {}; only fields of a namespace can be set", name.substr(0, dot),
                       type_name(holder)));
    check_part(value);
    store(&holder.variables()->entries, name.substr(dot + 1), value);
  }

  void store(Template::Variables* variables, const std::string& name, const Value& value) {
    budget_.step(std::ssize(*variables));
    const auto found = std::ranges::find(*variables, name, &std::pair<std::string, Value>::first);
    if (found != variables->end()) {
      found->second = value;
    } else {
      variables->emplace_back(name, value);
    }
  }

  // ---- expressions ----

  Value look_up(const std::string& name) {
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      budget_.step(std::ssize(*frame));
      const auto found = std::ranges::find(*frame, name, &std::pair<std::string, Value>::first);
      if (found != frame->end()) return found->second;
    }
    if (is_one_of(kFunctions, name)) return Function{name};
    if (is_one_of(kOtherFunctions, name))
      fail_unsupported(fmt::format("the function {} is not supported", name));
    return Undefined{fmt::format("'{}' is undefined", name)};
  }

  Value evaluate(const Expression& expression) {
    at_ = expression.position;
    budget_.step();
    const auto part = [&](size_t i) { return evaluate(*expression.parts[i]); };
    switch (expression.kind) {
      case Expression::Kind::kConstant:
        return expression.constant;
      case Expression::Kind::kName:
        return look_up(expression.text);
      case Expression::Kind::kTuple:
      case Expression::Kind::kList: {
        Values values;
        for (const ExpressionPtr& one : expression.parts) values.push_back(evaluate(*one));
        at_ = expression.position;
        return Value::sequence(std::move(values), expression.kind == Expression::Kind::kTuple
                                                      ? Sequence::Kind::kTuple
                                                      : Sequence::Kind::kList);
      }
      case Expression::Kind::kMapping:
        return mapping(expression);
      case Expression::Kind::kAttribute: {
        const Value of = part(0);
        at_ = expression.position;
        return attribute(of, expression.text, &budget_);
      }
      case Expression::Kind::kItem: {
        const Value of = part(0);
        const Value key = part(1);
        at_ = expression.position;
        return item(of, key, &budget_);
      }
      case Expression::Kind::kSlice: {
        const Value of = part(0);
        const auto start = slice_end(expression.parts[1].get());
        const auto stop = slice_end(expression.parts[2].get());
        const auto step = slice_end(expression.parts[3].get());
        at_ = expression.position;
        return slice(of, start, stop, step.value_or(1), &budget_);
      }
      case Expression::Kind::kCall:
        return call(expression);
      case Expression::Kind::kFilter: {
        const Value input = part(0);
        const Arguments given = arguments(expression);
        return apply_filter(expression.text, input, given, &budget_);
      }
      case Expression::Kind::kTest: {
        const Value tested = part(0);
        const Arguments given = arguments(expression);
        return Value(apply_test(expression.text, tested, given, &budget_));
      }
      case Expression::Kind::kNot:
        return Value(!truth(part(0)));
      case Expression::Kind::kSign:
        return signed_value(expression, part(0));
      case Expression::Kind::kBinary:
        return binary(expression);
      case Expression::Kind::kCompare:
        return compare(expression);
      case Expression::Kind::kChoice:
        if (truth(part(1))) return part(0);
        if (expression.parts[2] != nullptr) return part(2);
        return Undefined{"an if without else has no value where its condition is false"};
    }
    return {};
  }

  Value mapping(const Expression& expression) {
    std::vector<std::pair<Value, Value>> entries;
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      Value key = evaluate(*expression.parts[i]);
      Value value = evaluate(*expression.parts[i + 1]);
      at_ = expression.position;
      if (key.sequence() != nullptr || key.mapping() != nullptr || key.is_undefined())
        fail_unsupported(fmt::format("{} as a key of a mapping is not supported", type_name(key)));
      const auto same =
          std::ranges::find_if(entries, [&](const auto& entry) { return equal(entry.first, key, &budget_); });
      if (same != entries.end()) {
        same->second = std::move(value);
      } else {
        entries.emplace_back(std::move(key), std::move(value));
      }
    }
    return Value::mapping(std::move(entries));
  }

  std::optional<int64_t> slice_end(const Expression* expression) {
    if (expression == nullptr) return std::nullopt;
    const Value end = evaluate(*expression);
    if (end.is_none()) return std::nullopt;
    if (!end.whole()) fail(fmt::format("a slice takes integers, not {}", type_name(end)));
    return end.whole();
  }

  // Of a call, filter or test, which is the place of what fails next.
  Arguments arguments(const Expression& expression) {
    Arguments given;
    for (const Argument& argument : expression.arguments) {
      if (argument.name.empty()) {
        given.in_order.push_back(evaluate(*argument.value));
      } else {
        given.named.emplace_back(argument.name, evaluate(*argument.value));
      }
    }
    at_ = expression.position;
    return given;
  }

  Value call(const Expression& expression) {
    const Expression& callee = *expression.parts[0];
    if (callee.kind == Expression::Kind::kAttribute) {
      const Value self = evaluate(*callee.parts[0]);
      at_ = callee.position;
      const Value method = attribute(self, callee.text, &budget_);
      const Arguments given = arguments(expression);
      if (method.undefined() != nullptr) fail(method.undefined()->what);
      if (method.function() == nullptr)
        fail(fmt::format("\"{}\" is {}, which cannot be called", callee.text, type_name(method)));
      return call_method(self, callee.text, given, &budget_);
    }
    if (callee.kind != Expression::Kind::kName)
      fail_unsupported("a call of something other than a name or a method is not supported");
    const Value function = evaluate(callee);
    const Arguments given = arguments(expression);
    if (function.undefined() != nullptr) fail(function.undefined()->what);
    if (function.function() == nullptr)
      fail(fmt::format("{} is {}, which cannot be called", callee.text, type_name(function)));
    return call_function(function.function()->name, given);
  }

  Value call_function(const std::string& name, const Arguments& given) {
    if (name == "raise_exception") {
      const auto message = bind(name, given, {"message"});
      throw Fault(Fault::Kind::kRaised, message[0] != nullptr ? to_text(*message[0], &budget_) : "");
    }
    if (name == "strftime_now") return time_text(given);
    if (name == "namespace") {
      if (!given.in_order.empty())
        fail_unsupported("namespace of a mapping is not supported; give fields by name");
      auto variables = std::make_shared<Namespace>();
      for (const auto& [field, value] : given.named) {
        check_part(value);
        store(&variables->entries, field, value);
      }
      return Value(std::move(variables));
    }
    if (name == "range") return range(given);
    fail_unsupported(fmt::format("calling {} through a variable is not supported", name));
  }

  Value range(const Arguments& given) {
    const auto ends = bind("range", given, {"", "", ""});
    const auto end = [&](size_t i, int64_t usual) {
      if (ends[i] == nullptr) return usual;
      if (!ends[i]->whole()) fail(fmt::format("range takes integers, not {}", type_name(*ends[i])));
      return *ends[i]->whole();
    };
    if (ends[0] == nullptr) fail("range lacks its end");
    const int64_t from = ends[1] != nullptr ? end(0, 0) : 0;
    const int64_t to = ends[1] != nullptr ? end(1, 0) : end(0, 0);
    const int64_t step = end(2, 1);
    if (step == 0) fail("range with a step of 0");
    Values values;
    for (int64_t at = from; step > 0 ? at < to : at > to;) {
      budget_.step();
      values.emplace_back(at);
      if (__builtin_add_overflow(at, step, &at)) break;
    }
    return Value::sequence(std::move(values), Sequence::Kind::kRange);
  }

  Value time_text(const Arguments& given) {
    const auto format = bind("strftime_now", given, {"format"});
    if (format[0] == nullptr || format[0]->text() == nullptr) fail("strftime_now takes a format");
    const std::string& text = *format[0]->text();
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        out += text[i];
        continue;
      }
      const char letter = ++i < text.size() ? text[i] : ' ';
      if (std::string_view("aAbBdHIjmMpSyY%").find(letter) == std::string_view::npos)
        fail_unsupported(fmt::format("strftime_now with %{} is not supported", letter));
      const char one[] = {'%', letter, '\0'};
      std::array<char, 64> written{};
      out.append(written.data(), std::strftime(written.data(), written.size(), one, &now_));
    }
    budget_.handle(out.size());
    return Value(std::move(out));
  }

  Value signed_value(const Expression& expression, const Value& value) {
    at_ = expression.position;
    const bool minus = expression.text == "-";
    if (const auto whole = value.whole()) {
      int64_t negative = 0;
      if (!minus) return Value(*whole);
      if (__builtin_sub_overflow(int64_t{0}, *whole, &negative)) overflow();
      return Value(negative);
    }
    if (const double* real = value.real()) return Value(minus ? -*real : *real);
    refuse_operand(expression.text, value);
  }

  [[noreturn]] static void overflow() { fail_unsupported("an integer beyond 64 bits is not supported"); }
  [[noreturn]] static void refuse_operand(std::string_view op, const Value& value) {
    if (const Undefined* undefined = value.undefined()) fail(undefined->what);
    fail(fmt::format("\"{}\" of {}", op, type_name(value)));
  }
  [[noreturn]] static void refuse_operands(std::string_view op, const Value& left, const Value& right) {
    if (const Undefined* undefined = left.undefined()) fail(undefined->what);
    if (const Undefined* undefined = right.undefined()) fail(undefined->what);
    fail(fmt::format("{} {} {}", type_name(left), op, type_name(right)));
  }

  Value binary(const Expression& expression) {
    Value left = evaluate(*expression.parts[0]);
    const std::string& op = expression.text;
    if (op == "and") return truth(left) ? evaluate(*expression.parts[1]) : left;
    if (op == "or") return truth(left) ? left : evaluate(*expression.parts[1]);
    const Value right = evaluate(*expression.parts[1]);
    at_ = expression.position;
    if (op == "~") {
      std::string text = to_text(left, &budget_);
      text += to_text(right, &budget_);
      return Value(std::move(text));
    }
    if (op == "+") return sum(left, right);
    if (op == "*") return product(left, right);
    if (op == "-") {
      const auto a = left.whole(), b = right.whole();
      int64_t difference = 0;
      if (a && b && __builtin_sub_overflow(*a, *b, &difference)) overflow();
      if (a && b) return Value(difference);
      const auto x = left.number(), y = right.number();
      if (!x || !y) refuse_operands(op, left, right);
      return Value(*x - *y);
    }
    return quotient(op, left, right);
  }

  Value sum(const Value& left, const Value& right) {
    const auto a = left.whole(), b = right.whole();
    int64_t total = 0;
    if (a && b && __builtin_add_overflow(*a, *b, &total)) overflow();
    if (a && b) return Value(total);
    const auto x = left.number(), y = right.number();
    if (x && y) return Value(*x + *y);
    if (left.text() != nullptr && right.text() != nullptr) {
      budget_.handle(left.text()->size() + right.text()->size());
      return Value(*left.text() + *right.text());
    }
    const Sequence* first = left.sequence();
    const Sequence* second = right.sequence();
    if (first == nullptr || second == nullptr || first->kind != second->kind ||
        first->kind > Sequence::Kind::kTuple)
      refuse_operands("+", left, right);
    budget_.step(std::ssize(first->values) + std::ssize(second->values));
    Values values = first->values;
    values.insert(values.end(), second->values.begin(), second->values.end());
    return Value::sequence(std::move(values), first->kind);
  }

  Value product(const Value& left, const Value& right) {
    const auto a = left.whole(), b = right.whole();
    int64_t total = 0;
    if (a && b && __builtin_mul_overflow(*a, *b, &total)) overflow();
    if (a && b) return Value(total);
    const auto x = left.number(), y = right.number();
    if (x && y) return Value(*x * *y);
    const std::string* text = left.text() != nullptr ? left.text() : right.text();
    const auto times = left.text() != nullptr ? b : a;
    if (text == nullptr || !times) {
      if (left.sequence() != nullptr || right.sequence() != nullptr)
        fail_unsupported("a list times a number is not supported");
      refuse_operands("*", left, right);
    }
    std::string repeated;
    for (int64_t i = 0; i < *times && !text->empty(); ++i) {
      budget_.handle(text->size());
      repeated += *text;
    }
    return Value(std::move(repeated));
  }

  // "/", "//" and "%".
  static Value quotient(const std::string& op, const Value& left, const Value& right) {
    if (op == "%" && left.text() != nullptr) fail_unsupported("formatting a text by % is not supported");
    const auto x = left.number(), y = right.number();
    if (!x || !y) refuse_operands(op, left, right);
    if (*y == 0) fail("division by zero");
    if (op == "/") return Value(*x / *y);
    const auto a = left.whole(), b = right.whole();
    if (!a || !b) fail_unsupported(fmt::format("\"{}\" of real numbers is not supported", op));
    if (*b == -1) {
      int64_t negative = 0;
      if (__builtin_sub_overflow(int64_t{0}, *a, &negative)) overflow();
      return Value(op == "%" ? int64_t{0} : negative);
    }
    // Rounded down, as Python does: the remainder has the divisor's sign.
    const bool down = *a % *b != 0 && (*a % *b < 0) != (*b < 0);
    return Value(op == "%" ? *a % *b + (down ? *b : 0) : *a / *b - (down ? 1 : 0));
  }

  Value compare(const Expression& expression) {
    Value left = evaluate(*expression.parts[0]);
    for (size_t i = 0; i < expression.operators.size(); ++i) {
      Value right = evaluate(*expression.parts[i + 1]);
      at_ = expression.position;
      const std::string& op = expression.operators[i];
      bool holds = false;
      if (op == "==" || op == "!=") {
        holds = equal(left, right, &budget_) == (op == "==");
      } else if (op == "in" || op == "not in") {
        holds = contains(right, left, &budget_) == (op == "in");
      } else if (op == "<" || op == ">") {
        holds = op == "<" ? less(left, right, &budget_) : less(right, left, &budget_);
      } else {
        holds = op == "<=" ? less(left, right, &budget_) : less(right, left, &budget_);
        if (!holds) holds = equal(left, right, &budget_);
      }
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  std::vector<Frame> frames_;
  std::string out_;
  const std::tm& now_;
  Budget budget_;
  Position at_;
};

std::string placed(Position position, std::string_view message) {
  return fmt::format("chat template, line {}, column {}: {}", position.line, position.column, message);
}

Block parsed(std::string_view source) {
  if (source.size() > kMostBytesOfTemplate)
    throw Unsupported(fmt::format("the chat template has {} bytes, at most {} are supported", source.size(),
                                  kMostBytesOfTemplate));
  if (const auto offset = find_invalid_utf8(source))
    throw CorruptFile(fmt::format("the chat template is not UTF-8: byte {} of {}", *offset, source.size()));
  try {
    return parse(source);
  } catch (const PlacedFault& placed_fault) {
    const std::string message = placed(placed_fault.position, placed_fault.fault.what());
    if (placed_fault.fault.kind() == Fault::Kind::kUnsupported) throw Unsupported(message);
    throw CorruptFile(message);
  } catch (const Fault& fault) {
    throw Unsupported(fmt::format("chat template: {}", fault.what()));
  }
}

}  // namespace

struct Template::Impl {
  Block block;
};

Template::Template(std::string_view source) : impl_(std::make_unique<const Impl>(Impl{parsed(source)})) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(Variables variables, const std::tm& now, const Limits& limits) const {
  Interpreter interpreter(std::move(variables), now, limits);
  try {
    return interpreter.run(impl_->block);
  } catch (const Fault& fault) {
    switch (fault.kind()) {
      case Fault::Kind::kRaised:
        throw InvalidArgument(fmt::format("the chat template refuses these messages: {}", fault.what()));
      case Fault::Kind::kError:
        throw InvalidArgument(placed(interpreter.position(), fault.what()));
      case Fault::Kind::kUnsupported:
        break;
    }
    throw Unsupported(placed(interpreter.position(), fault.what()));
  }
}

}  // namespace allot::model::jinja
