#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "model/jinja/syntax.h"

namespace allot::model::jinja {
namespace {

// Of expressions, and of blocks: the parser, the interpreter and destructors go down by recursion.
constexpr int32_t kDeepestExpression = 150;
constexpr int32_t kDeepestBlock = 50;

using Kind = Expression::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block run() {
    Block block = block_until({});
    return block;
  }

 private:
  // A level of recursion.
  class Level {
   public:
    Level(int32_t* depth, int32_t most, Position position, std::string_view what) : depth_(depth) {
      if (++*depth_ > most)
        fail_at(position, Fault::Kind::kUnsupported,
                fmt::format("{} are more than {} deep, which is not supported", what, most));
    }
    ~Level() { --*depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int32_t* depth_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_name(std::string_view name) const { return now().kind == Token::Kind::kName && now().text == name; }
  bool is_op(std::string_view op) const { return now().kind == Token::Kind::kOperator && now().text == op; }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    take();
    return true;
  }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    take();
    return true;
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) refuse(fmt::format("\"{}\" is expected", op));
  }
  void expect(Token::Kind kind, std::string_view what) {
    if (now().kind != kind) refuse(fmt::format("{} is expected", what));
    take();
  }
  std::string expect_name() {
    if (now().kind != Token::Kind::kName) refuse("a name is expected");
    return take().text;
  }
  [[noreturn]] void refuse(std::string_view message) const {
    std::string found = "the end";
    if (now().kind == Token::Kind::kName || now().kind == Token::Kind::kOperator)
      found = fmt::format("\"{}\"", now().text);
    if (now().kind == Token::Kind::kConstant) found = type_name(now().constant);
    if (now().kind == Token::Kind::kPrintEnd || now().kind == Token::Kind::kTagEnd)
      found = "the end of the tag";
    fail_at(now().position, Fault::Kind::kError, fmt::format("{}, not {}", message, found));
  }

  static ExpressionPtr made(Kind kind, Position position, std::string text = "") {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->position = position;
    expression->text = std::move(text);
    return expression;
  }
  // Gives the expression a part. Chains such as a + b + c grow without recursion of the parser, but others go
  // down them.
  static void add(Expression* expression, ExpressionPtr part) {
    grow(expression, part.get());
    expression->parts.push_back(std::move(part));
  }
  static void grow(Expression* expression, const Expression* part) {
    if (part == nullptr) return;
    expression->depth = std::max(expression->depth, part->depth + 1);
    if (expression->depth > kDeepestExpression)
      fail_at(expression->position, Fault::Kind::kUnsupported,
              fmt::format("an expression is more than {} deep, which is not supported", kDeepestExpression));
  }
  static ExpressionPtr made(Kind kind, Position position, std::string text, ExpressionPtr part) {
    ExpressionPtr expression = made(kind, position, std::move(text));
    add(expression.get(), std::move(part));
    return expression;
  }

  // ---- statements ----

  // Up to a tag of one of the names, which is then the next token; to the end without names.
  Block block_until(std::initializer_list<std::string_view> names) {
    const Level level(&blocks_, kDeepestBlock, now().position, "blocks");
    Block block;
    while (true) {
      const Token token = now();
      switch (token.kind) {
        case Token::Kind::kEnd:
          if (names.size() > 0) refuse(fmt::format("{{% {} %}} is expected", fmt::join(names, " or ")));
          return block;
        case Token::Kind::kText:
          take();
          block.push_back(statement(Statement::Kind::kText, token.position));
          block.back().text = token.text;
          break;
        case Token::Kind::kPrintBegin:
          take();
          block.push_back(statement(Statement::Kind::kPrint, token.position));
          block.back().value = tuple(true);
          expect(Token::Kind::kPrintEnd, "}}");
          break;
        default:
          take();  // {%
          if (std::ranges::any_of(names, [&](std::string_view name) { return is_name(name); })) return block;
          block.push_back(tag());
      }
    }
  }

  static Statement statement(Statement::Kind kind, Position position) {
    Statement made;
    made.kind = kind;
    made.position = position;
    return made;
  }
  void end_tag() { expect(Token::Kind::kTagEnd, "%}"); }

  Statement tag() {
    const Position place = now().position;
    const std::string name = expect_name();
    if (name == "if") return conditional(place);
    if (name == "for") return loop(place);
    if (name == "set") return assignment(place);
    if (name == "generation") {
      Statement made = statement(Statement::Kind::kGeneration, place);
      end_tag();
      made.body = block_until({"endgeneration"});
      take();
      end_tag();
      return made;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(place, Fault::Kind::kError, fmt::format("{} stands outside of a loop", name));
      end_tag();
      return statement(name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, place);
    }
    if (name == "elif" || name == "else" || name.starts_with("end"))
      fail_at(place, Fault::Kind::kError, fmt::format("{} has no beginning", name));
    fail_at(
        place, Fault::Kind::kUnsupported,
        fmt::format("the tag {} is not supported; supported are if, for, set, break, continue and generation",
                    name));
  }

  Statement conditional(Position place) {
    // Recursion for each elif: they count as blocks in blocks.
    const Level level(&blocks_, kDeepestBlock, place, "blocks");
    Statement made = statement(Statement::Kind::kIf, place);
    made.value = tuple(false);
    end_tag();
    made.body = block_until({"elif", "else", "endif"});
    const Position here = now().position;
    const std::string name = take().text;
    if (name == "elif") {
      made.otherwise.push_back(conditional(here));
      return made;
    }
    end_tag();
    if (name == "else") {
      made.otherwise = block_until({"endif"});
      take();
      end_tag();
    }
    return made;
  }

  Statement loop(Position place) {
    Statement made = statement(Statement::Kind::kFor, place);
    const bool brackets = skip_op("(");
    made.names = {target_name()};
    while (skip_op(",") && now().kind == Token::Kind::kName && !is_name("in"))
      made.names.push_back(target_name());
    if (brackets) expect_op(")");
    if (!skip_name("in")) refuse("\"in\" is expected");
    made.value = tuple(false);
    if (skip_name("if")) made.condition = expression();
    if (is_name("recursive"))
      fail_at(now().position, Fault::Kind::kUnsupported, "a recursive loop is not supported");
    end_tag();
    ++loops_;
    made.body = block_until({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      end_tag();
      made.otherwise = block_until({"endfor"});
    }
    take();
    end_tag();
    return made;
  }

  std::string target_name() {
    const Position place = now().position;
    std::string name = expect_name();
    for (const std::string_view kept : {"true", "false", "none", "True", "False", "None", "loop", "not",
                                        "and", "or", "in", "is", "if", "else", "elif"})
      if (name == kept) fail_at(place, Fault::Kind::kError, fmt::format("{} is no variable", name));
    return name;
  }

  Statement assignment(Position place) {
    Statement made = statement(Statement::Kind::kSet, place);
    do {
      if (!made.names.empty() && now().kind != Token::Kind::kName) break;
      made.names.push_back(target_name());
      if (skip_op(".")) made.names.back() += "." + expect_name();
    } while (skip_op(","));
    if (skip_op("=")) {
      made.value = tuple(true);
      end_tag();
      return made;
    }
    if (made.names.size() != 1) refuse("\"=\" is expected");
    made.kind = Statement::Kind::kSetBlock;
    if (is_op("|"))
      fail_at(now().position, Fault::Kind::kUnsupported, "a filter of a set block is not supported");
    end_tag();
    // As a macro's body, it is not inside of the loop around it.
    const int32_t loops = std::exchange(loops_, 0);
    made.body = block_until({"endset"});
    loops_ = loops;
    take();
    end_tag();
    return made;
  }

  // ---- expressions, from the loosest to the tightest ----

  // Expressions with commas between them are a tuple.
  ExpressionPtr tuple(bool with_choice) {
    const Position place = now().position;
    ExpressionPtr first = with_choice ? expression() : disjunction();
    if (!is_op(",")) return first;
    ExpressionPtr made_tuple = made(Kind::kTuple, place, "", std::move(first));
    while (skip_op(",")) {
      const bool ends =
          now().kind == Token::Kind::kPrintEnd || now().kind == Token::Kind::kTagEnd || is_op(")");
      if (ends) break;
      add(made_tuple.get(), with_choice ? expression() : disjunction());
    }
    return made_tuple;
  }

  ExpressionPtr expression() {
    const Level level(&expressions_, kDeepestExpression, now().position, "expressions");
    ExpressionPtr left = disjunction();
    while (is_name("if")) {
      const Position place = take().position;
      ExpressionPtr choice = made(Kind::kChoice, place, "", std::move(left));
      add(choice.get(), disjunction());
      add(choice.get(), skip_name("else") ? expression() : nullptr);
      left = std::move(choice);
    }
    return left;
  }

  ExpressionPtr disjunction() { return words("or", &Parser::conjunction); }
  ExpressionPtr conjunction() { return words("and", &Parser::negation); }

  ExpressionPtr words(std::string_view word, ExpressionPtr (Parser::*operand)()) {
    ExpressionPtr left = (this->*operand)();
    while (is_name(word)) {
      ExpressionPtr both = made(Kind::kBinary, take().position, std::string(word), std::move(left));
      add(both.get(), (this->*operand)());
      left = std::move(both);
    }
    return left;
  }

  ExpressionPtr negation() {
    if (!is_name("not") || (next().kind == Token::Kind::kName && next().text == "in")) return comparison();
    const Level level(&expressions_, kDeepestExpression, now().position, "expressions");
    const Position place = take().position;
    return made(Kind::kNot, place, "", negation());
  }

  ExpressionPtr comparison() {
    ExpressionPtr left = binary(0);
    ExpressionPtr chain;
    while (true) {
      const Position place = now().position;
      std::string op;
      if (now().kind == Token::Kind::kOperator) {
        for (const std::string_view known : {"==", "!=", "<", "<=", ">", ">="})
          if (is_op(known)) op = known;
      } else if (is_name("in")) {
        op = "in";
      } else if (is_name("not") && next().kind == Token::Kind::kName && next().text == "in") {
        take();
        op = "not in";
      }
      if (op.empty()) return chain ? std::move(chain) : std::move(left);
      take();
      if (!chain) chain = made(Kind::kCompare, place, "", std::move(left));
      chain->operators.push_back(std::move(op));
      add(chain.get(), binary(0));
    }
  }

  ExpressionPtr binary(size_t tightness) {
    static const std::array<std::vector<std::string_view>, 3> kLevels = {
        {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}}};
    if (tightness == kLevels.size()) return unary(true);
    ExpressionPtr left = binary(tightness + 1);
    while (now().kind == Token::Kind::kOperator && std::ranges::count(kLevels[tightness], now().text) > 0) {
      const Token op = take();
      ExpressionPtr both = made(Kind::kBinary, op.position, op.text, std::move(left));
      add(both.get(), binary(tightness + 1));
      left = std::move(both);
    }
    if (is_op("**")) fail_at(now().position, Fault::Kind::kUnsupported, "the operator ** is not supported");
    return left;
  }

  ExpressionPtr unary(bool with_filters) {
    const Level level(&expressions_, kDeepestExpression, now().position, "expressions");
    ExpressionPtr value;
    if (is_op("-") || is_op("+")) {
      const Token sign = take();
      value = made(Kind::kSign, sign.position, sign.text, unary(false));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    while (with_filters) {
      if (is_op("|")) {
        const Position place = take().position;
        value = made(Kind::kFilter, place, expect_name(), std::move(value));
        if (is_op("(")) arguments(value.get());
      } else if (is_name("is")) {
        value = test(std::move(value));
      } else if (is_op("(")) {
        value = call(std::move(value));
      } else {
        break;
      }
    }
    return value;
  }

  ExpressionPtr test(ExpressionPtr tested) {
    const Position place = take().position;
    const bool negated = skip_name("not");
    ExpressionPtr made_test;
    if (is_op("==") || is_op("!=") || is_op("<") || is_op("<=") || is_op(">") || is_op(">="))
      refuse("a test is expected");
    made_test = made(Kind::kTest, place, expect_name(), std::move(tested));
    if (is_op("(")) {
      arguments(made_test.get());
    } else if (starts_argument()) {
      Argument argument{.name = "", .value = postfix(primary())};
      grow(made_test.get(), argument.value.get());
      made_test->arguments.push_back(std::move(argument));
    }
    return negated ? made(Kind::kNot, place, "", std::move(made_test)) : std::move(made_test);
  }

  // Whether what follows a test's name is its argument ("is divisibleby 3").
  bool starts_argument() const {
    if (now().kind == Token::Kind::kConstant) return true;
    if (now().kind == Token::Kind::kOperator) return is_op("[") || is_op("{");
    if (now().kind != Token::Kind::kName) return false;
    for (const std::string_view word : {"else", "or", "and", "is", "if", "in", "not"})
      if (is_name(word)) return false;
    return true;
  }

  ExpressionPtr primary() {
    if (now().kind != Token::Kind::kConstant && now().kind != Token::Kind::kName && !is_op("(") &&
        !is_op("[") && !is_op("{"))
      refuse("an expression is expected");
    const Token token = take();
    if (token.kind == Token::Kind::kConstant) return constant(token);
    if (token.kind == Token::Kind::kName) return name(token);
    if (token.text == "(") {
      if (skip_op(")")) return made(Kind::kTuple, token.position);
      ExpressionPtr inner = tuple(true);
      expect_op(")");
      return inner;
    }
    if (token.text == "[") {
      ExpressionPtr list = made(Kind::kList, token.position);
      while (!is_op("]")) {
        if (!list->parts.empty()) expect_op(",");
        if (is_op("]")) break;
        add(list.get(), expression());
      }
      expect_op("]");
      return list;
    }
    ExpressionPtr mapping = made(Kind::kMapping, token.position);
    while (!is_op("}")) {
      if (!mapping->parts.empty()) expect_op(",");
      if (is_op("}")) break;
      add(mapping.get(), expression());
      expect_op(":");
      add(mapping.get(), expression());
    }
    expect_op("}");
    return mapping;
  }

  ExpressionPtr constant(const Token& token) {
    ExpressionPtr value = made(Kind::kConstant, token.position);
    value->constant = token.constant;
    if (token.constant.text() == nullptr || now().kind != Token::Kind::kConstant) return value;
    std::string text = *token.constant.text();
    while (now().kind == Token::Kind::kConstant && now().constant.text() != nullptr)
      text += *take().constant.text();
    value->constant = Value(std::move(text));
    return value;
  }

  static ExpressionPtr name(const Token& token) {
    ExpressionPtr value = made(Kind::kConstant, token.position);
    if (token.text == "true" || token.text == "True") {
      value->constant = Value(true);
    } else if (token.text == "false" || token.text == "False") {
      value->constant = Value(false);
    } else if (token.text == "none" || token.text == "None") {
      value->constant = Value(None{});
    } else {
      value->kind = Kind::kName;
      value->text = token.text;
    }
    return value;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      if (is_op(".")) {
        const Position place = take().position;
        if (now().kind == Token::Kind::kConstant && now().constant.integer() != nullptr) {
          value = made(Kind::kItem, place, "", std::move(value));
          add(value.get(), constant(take()));
        } else {
          value = made(Kind::kAttribute, place, expect_name(), std::move(value));
        }
      } else if (is_op("[")) {
        value = subscript(std::move(value));
      } else if (is_op("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    const Position place = take().position;
    ExpressionPtr first = is_op(":") ? nullptr : expression();
    if (!is_op(":")) {
      if (is_op(","))
        fail_at(now().position, Fault::Kind::kUnsupported, "an index of several values is not supported");
      expect_op("]");
      value = made(Kind::kItem, place, "", std::move(value));
      add(value.get(), std::move(first));
      return value;
    }
    take();
    value = made(Kind::kSlice, place, "", std::move(value));
    add(value.get(), std::move(first));
    add(value.get(), is_op(":") || is_op("]") ? nullptr : expression());
    add(value.get(), skip_op(":") && !is_op("]") ? expression() : nullptr);
    expect_op("]");
    return value;
  }

  ExpressionPtr call(ExpressionPtr callee) {
    ExpressionPtr made_call = made(Kind::kCall, now().position, "", std::move(callee));
    arguments(made_call.get());
    return made_call;
  }

  void arguments(Expression* to) {
    expect_op("(");
    while (!is_op(")")) {
      if (!to->arguments.empty()) expect_op(",");
      if (is_op(")")) break;
      if (is_op("*") || is_op("**"))
        fail_at(now().position, Fault::Kind::kUnsupported, "arguments with * are not supported");
      Argument argument;
      if (now().kind == Token::Kind::kName && next().kind == Token::Kind::kOperator && next().text == "=") {
        argument.name = take().text;
        take();
      } else if (!to->arguments.empty() && !to->arguments.back().name.empty()) {
        refuse("an argument with a name is expected behind another");
      }
      argument.value = expression();
      grow(to, argument.value.get());
      to->arguments.push_back(std::move(argument));
    }
    expect_op(")");
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int32_t expressions_ = 0;
  int32_t blocks_ = 0;
  int32_t loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) {
  return Parser(tokens_of(source)).run();
}

}  // namespace allot::model::jinja
