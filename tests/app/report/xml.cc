#include "tests/app/report/xml.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <stdexcept>

namespace allot::app {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  XmlElement document() {
    skip_space();
    if (take("<!DOCTYPE html>")) skip_space();
    XmlElement root = element();
    skip_space();
    if (at_ != text_.size()) fail("text after the root element");
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("byte " + std::to_string(at_) + ": " + what + " near \"" +
                             std::string(text_.substr(at_, 40)) + "\"");
  }
  char peek() const {
    if (at_ >= text_.size()) fail("the document ends too early");
    return text_[at_];
  }
  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  void expect(std::string_view expected) {
    if (!take(expected)) fail("expected " + std::string(expected));
  }
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  std::string name() {
    const size_t start = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '-' || peek() == ':') ++at_;
    if (at_ == start) fail("expected a name");
    return std::string(text_.substr(start, at_ - start));
  }
  std::string entity() {
    for (const auto& [written, meant] :
         {std::pair("&amp;", "&"), {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}}) {
      if (take(written)) return meant;
    }
    fail("a bare & or an unknown entity");
  }
  std::string characters(char end) {
    std::string read;
    while (peek() != end) {
      if (peek() == '<') fail("a bare <");
      if (peek() == '&') {
        read += entity();
      } else {
        read += text_[at_++];
      }
    }
    return read;
  }
  XmlElement element() {
    expect("<");
    XmlElement read;
    read.name = name();
    for (skip_space(); peek() != '>' && peek() != '/'; skip_space()) {
      const std::string attribute = name();
      expect("=\"");
      if (!read.attributes.emplace(attribute, characters('"')).second)
        fail("attribute " + attribute + " twice");
      expect("\"");
      if (!std::isspace(static_cast<unsigned char>(peek())) && peek() != '>' && peek() != '/')
        fail("expected a space");
    }
    if (take("/>")) return read;
    expect(">");
    while (!take("</")) {
      if (peek() == '<') {
        read.children.push_back(element());
        read.text += read.children.back().text;
      } else {
        read.text += characters('<');
      }
    }
    const std::string closed = name();
    if (closed != read.name) fail("</" + closed + "> closes <" + read.name + ">");
    expect(">");
    return read;
  }

  std::string_view text_;
  size_t at_ = 0;
};

void collect(const XmlElement& element, std::string_view name, std::string_view class_name,
             std::vector<const XmlElement*>* found) {
  for (const XmlElement& child : element.children) {
    if (child.name == name && (class_name.empty() || child.has_class(class_name))) found->push_back(&child);
    collect(child, name, class_name, found);
  }
}

}  // namespace

bool XmlElement::has_class(std::string_view class_name) const {
  const auto classes = attributes.find("class");
  if (classes == attributes.end()) return false;
  std::istringstream words(classes->second);
  for (std::string word; words >> word;) {
    if (word == class_name) return true;
  }
  return false;
}

std::vector<const XmlElement*> XmlElement::all(std::string_view wanted, std::string_view class_name) const {
  std::vector<const XmlElement*> found;
  collect(*this, wanted, class_name, &found);
  return found;
}

XmlElement parse_xml(std::string_view text) {
  return Reader(text).document();
}

}  // namespace allot::app
