// Chat templates as models ship them: an interpreter of the part of Jinja that they use, set up as
// transformers does (trim_blocks, lstrip_blocks, a sandbox without access to anything, its own tojson,
// raise_exception and strftime_now, the tags break, continue and generation). What renders is rendered as by
// Jinja 3.1; the rest is refused by name. Templates are untrusted: rendering is bounded in time and memory.
//
// Supported: print, if, for (with a filter, unpacking, else; loop.index, first, last …), set (also of a block
// and of a namespace's fields); texts, numbers, lists, tuples, mappings, slices, all operators but **; the
// filters, tests and methods of functions.cc; namespace, range. Not supported: macros, call and filter
// blocks, raw, with, include, import, extends, recursive loops, arguments with *.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace allot::model::jinja {

// Of one rendering. A conversation of a thousand messages takes a hundred thousand steps.
struct Limits {
  int64_t steps = int64_t{1} << 22;
  int64_t bytes = int64_t{1} << 29;  // of text made or looked through, counted each time
};

class Template {
 public:
  // Throws CorruptFile for what is no Jinja, Unsupported for what is beyond the subset, with line and column.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  using Variables = std::vector<std::pair<std::string, Value>>;
  // The text for these variables, whose texts are UTF-8; `now` is what strftime_now tells. A function of the
  // arguments alone; may be called from several threads at once. Throws InvalidArgument where the template
  // refuses (raise_exception: its message) or comes upon what Jinja refuses, and Unsupported, both with line
  // and column.
  std::string render(Variables variables, const std::tm& now, const Limits& limits = {}) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace allot::model::jinja
