// What filters and methods of chat templates do with texts. Each throws a Fault for what Jinja or Python
// refuses, and for what is not supported.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/jinja/value.h"

namespace allot::model::jinja {

// An argument that has to be a text; null where the call lacks it. `function` is named in the Fault.
const std::string& needed_text(const Value* value, std::string_view function);
// One that has to be an integer, or is not there or none: -1.
int64_t count_of(const Value* given, std::string_view function);

// Of ASCII alone.
std::string lowered(std::string text);
std::string uppered(std::string text);
std::string capitalised(std::string text);

enum class Ends { kStart, kEnd, kBoth };

// str.strip(): `set` is a text of characters, or none for white space.
std::string stripped(std::string_view text, const Value* set, Ends ends);

// str.replace() of the first `count`, of all where that is negative.
std::string replaced(const std::string& text, const std::string& old, const std::string& with, int64_t count,
                     Budget* budget);

// str.split() at most `most` times, without limit where that is negative; `separator` none for white space.
Value split(const std::string& text, const Value* separator, int64_t most, Budget* budget);

// str.startswith() or endswith(): `end` is a text or a tuple of them.
bool has_end(const std::string& text, const Value* end, bool at_start, std::string_view function);

// The values as texts, `between` them; with `only_texts` another value is refused, as by str.join().
std::string joined(const Values& values, std::string_view between, bool only_texts, Budget* budget);

// Jinja's indent, which goes line by line as str.splitlines() does.
std::string indented(const std::string& text, const std::string& margin, bool first, bool blank,
                     Budget* budget);

}  // namespace allot::model::jinja
