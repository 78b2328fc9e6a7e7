// Filters, tests and methods of chat templates. Names and meanings are Jinja's and Python's. Each throws a
// Fault, which lists what is supported where a name is not.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace allot::model::jinja {

struct Arguments {
  Values in_order;
  std::vector<std::pair<std::string, Value>> named;
};

// Values of a call by the names of its parameters, in their order; null where one is not given. Throws a
// Fault for more arguments and other names. Refers to `given`.
std::vector<const Value*> bind(std::string_view function, const Arguments& given,
                               std::initializer_list<std::string_view> parameters);

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments, Budget* budget);
bool apply_test(const std::string& name, const Value& tested, const Arguments& arguments, Budget* budget);
Value call_method(const Value& self, const std::string& name, const Arguments& arguments, Budget* budget);
// `value` in `container`.
bool contains(const Value& container, const Value& value, Budget* budget);

}  // namespace allot::model::jinja
