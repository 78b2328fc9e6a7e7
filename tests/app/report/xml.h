// A strict reader of small XML documents for tests: anything not well-formed is a failure with its place.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace allot::app {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::vector<XmlElement> children;
  std::string text;  // of this element and those in it, entities replaced

  // Every element of this name below this one, in document order; with a class, those that have it.
  std::vector<const XmlElement*> all(std::string_view name, std::string_view class_name = {}) const;
  bool has_class(std::string_view class_name) const;
};

// The root element. Throws std::runtime_error naming the byte for text that is not well-formed: tags that do
// not match, attributes without quotes or given twice, bare & or <, unknown entities, more than one root.
XmlElement parse_xml(std::string_view text);

}  // namespace allot::app
