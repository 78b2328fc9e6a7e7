// A chat template as tokens and as a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace allot::model::jinja {

// 1-based; columns count code points.
struct Position {
  int32_t line = 1;
  int32_t column = 1;
};

// A Fault where it happened.
struct PlacedFault {
  Position position;
  Fault fault;
};
[[noreturn]] void fail_at(Position position, Fault::Kind kind, std::string message);

struct Token {
  enum class Kind { kText, kPrintBegin, kPrintEnd, kTagBegin, kTagEnd, kName, kOperator, kConstant, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // a text outside of tags, name or operator
  Value constant;    // a text or number inside of tags
  Position position;
};
// With white space removed as Jinja does under trim_blocks and lstrip_blocks, and without comments. `source`
// is UTF-8. Throws PlacedFault.
std::vector<Token> tokens_of(std::string_view source);

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Argument {
  std::string name;  // empty: by its place
  ExpressionPtr value;
};

struct Expression {
  enum class Kind {
    kConstant,
    kName,       // text
    kTuple,      // parts
    kList,       // parts
    kMapping,    // parts: key, value, key, value …
    kAttribute,  // parts[0].text
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], each of the three may be null
    kCall,       // parts[0](arguments)
    kFilter,     // parts[0] | text(arguments)
    kTest,       // parts[0] is text(arguments)
    kNot,        // parts[0]
    kSign,       // text parts[0], text is + or -
    kBinary,     // parts[0] text parts[1]; also "and" and "or"
    kCompare,    // parts[0] operators[0] parts[1] operators[1] parts[2] …; also "in" and "not in"
    kChoice,     // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = Kind::kConstant;
  Position position;
  std::string text;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<Argument> arguments;
  std::vector<std::string> operators;
  int32_t depth = 1;  // of the tree below, and itself
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // value
    kIf,        // value, body, otherwise
    kFor,       // names in value if condition: body, else otherwise
    kSet,       // names = value; "name.field" for a field of a namespace
    kSetBlock,  // names[0] = what body prints
    kBreak,
    kContinue,
    kGeneration,  // body: what the assistant says, marked for training
  };
  Kind kind = Kind::kText;
  Position position;
  std::string text;
  std::vector<std::string> names;
  ExpressionPtr value;
  ExpressionPtr condition;
  Block body;
  Block otherwise;
};

// Throws PlacedFault for what is no Jinja, what is beyond the subset, and expressions and blocks too deep.
Block parse(std::string_view source);

}  // namespace allot::model::jinja
