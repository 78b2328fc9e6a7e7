#include "app/report/markup.h"

#include <fmt/format.h>

#include <cassert>

namespace allot::app {

std::string escape_xml(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\t' || c == '\n' || c == '\r') {
          escaped += c;
        } else {
          escaped += "\uFFFD";
        }
    }
  }
  return escaped;
}

void Markup::start(std::string_view tag, std::initializer_list<Attribute> attributes) {
  out_ += '<';
  out_ += tag;
  for (const Attribute& attribute : attributes) {
    out_ += fmt::format(" {}=\"{}\"", attribute.name, escape_xml(attribute.value));
  }
}

Markup& Markup::open(std::string_view tag, std::initializer_list<Attribute> attributes) {
  start(tag, attributes);
  out_ += ">";
  open_.emplace_back(tag);
  return *this;
}

Markup& Markup::close() {
  assert(!open_.empty());
  out_ += fmt::format("</{}>\n", open_.back());
  open_.pop_back();
  return *this;
}

Markup& Markup::element(std::string_view tag, std::initializer_list<Attribute> attributes,
                        std::string_view text) {
  start(tag, attributes);
  out_ += fmt::format(">{}</{}>\n", escape_xml(text), tag);
  return *this;
}

Markup& Markup::empty(std::string_view tag, std::initializer_list<Attribute> attributes) {
  start(tag, attributes);
  out_ += "/>\n";
  return *this;
}

Markup& Markup::text(std::string_view text) {
  out_ += escape_xml(text);
  return *this;
}

Markup& Markup::insert(std::string_view markup) {
  out_ += markup;
  return *this;
}

std::string Markup::str() const {
  assert(open_.empty());
  return out_;
}

}  // namespace allot::app
