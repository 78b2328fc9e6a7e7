// Writes HTML and SVG as well-formed XML: elements are closed in order and every text and
// attribute is escaped.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace allot::app {

struct Attribute {
  std::string_view name;
  std::string value;
};

class Markup {
 public:
  // <tag attributes…> … </tag>, the latter written by close().
  Markup& open(std::string_view tag, std::initializer_list<Attribute> attributes = {});
  Markup& close();
  // <tag attributes…>text</tag>
  Markup& element(std::string_view tag, std::initializer_list<Attribute> attributes, std::string_view text);
  // <tag attributes…/>
  Markup& empty(std::string_view tag, std::initializer_list<Attribute> attributes);
  Markup& text(std::string_view text);
  // Well-formed markup that is already there.
  Markup& insert(std::string_view markup);

  // Everything written; all elements must be closed.
  std::string str() const;

 private:
  void start(std::string_view tag, std::initializer_list<Attribute> attributes);

  std::string out_;
  std::vector<std::string> open_;
};

// `text` with & < > " replaced by their XML entities; control characters that XML does not
// allow become U+FFFD.
std::string escape_xml(std::string_view text);

}  // namespace allot::app
