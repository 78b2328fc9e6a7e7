// Texts with fields in them: "{question}" stands for the field's text, "{{" and "}}" for braces.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace allot::evaluation {

// Letters, digits, '_' and '-', not a digit first.
bool is_field_name(std::string_view text);

class FieldTemplate {
 public:
  FieldTemplate() = default;
  // Throws InvalidArgument naming the byte of a brace that is no field.
  explicit FieldTemplate(std::string_view text);

  // Names in the order in which they first stand there.
  std::vector<std::string> fields() const;
  // `text_of` gives the text of a field.
  std::string expand(const std::function<std::string_view(const std::string& field)>& text_of) const;

 private:
  struct Piece {
    bool field = false;
    std::string text;  // as it is, or the field's name
  };
  std::vector<Piece> pieces_;
};

}  // namespace allot::evaluation
