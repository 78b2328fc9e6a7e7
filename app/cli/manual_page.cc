#include "app/cli/manual_page.h"

#include <algorithm>
#include <stdexcept>

namespace allot::app {
namespace {

// The code point that begins at text[at], and how many bytes it takes; a byte that is no UTF-8 counts as
// itself.
std::pair<char32_t, size_t> code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned char first = byte(at);
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
  if (length == 1 || at + length > text.size()) return {first, 1};
  char32_t point = first & (0xFFu >> (length + 1));
  for (size_t index = 1; index < length; ++index) point = (point << 6) | (byte(at + index) & 0x3Fu);
  return {point, length};
}

// Text that roff prints as it stands, whatever its encoding is: a minus stays one that can be copied.
std::string roff(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string escaped;
  for (size_t at = 0; at < text.size();) {
    const auto [point, length] = code_point(text, at);
    if (point == '\\') {
      escaped += "\\e";
    } else if (point == '-') {
      escaped += "\\-";
    } else if (point == '\n') {
      escaped += ' ';
    } else if (point < 0x80) {
      // A line that begins with one of these would be a request.
      if (escaped.empty() && (point == '.' || point == '\'')) escaped += "\\&";
      escaped += static_cast<char>(point);
    } else {
      escaped += "\\[u";
      for (int shift = point > 0xFFFF ? 16 : 12; shift >= 0; shift -= 4)
        escaped += kDigits[(point >> shift) & 0xF];
      escaped += ']';
    }
    at += length;
  }
  return escaped;
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return text;
}

// A sentence of it.
std::string sentence(std::string text) {
  if (!text.starts_with("allot")) text[0] = upper(text.substr(0, 1))[0];
  return text + ".";
}

std::string bold(std::string_view text) {
  return "\\fB" + roff(text) + "\\fR";
}

std::string italic(std::string_view text) {
  return "\\fI" + roff(text) + "\\fR";
}

// The name of a page: "allot-tune".
std::string page_name(const std::string& command) {
  return "allot-" + command;
}

std::string head(const std::string& page, const std::string& summary, const std::string& version) {
  return ".TH \"" + roff(upper(page)) + "\" \"1\" \"\" \"allot " + roff(version) +
         "\" \"allot\"\n.SH NAME\n" + roff(page) + " \\- " + roff(summary) + "\n";
}

std::string options_of(const CommandDescription& command) {
  std::string text;
  for (const OptionDescription& option : command.options) {
    text += ".TP\n" + bold("--" + option.name);
    if (!option.hint.empty()) text += " " + italic(option.hint);
    text += "\n" + roff(option.text()) + "\n";
  }
  return text;
}

constexpr std::string_view kExitStatus =
    ".SH EXIT STATUS\n"
    ".TP\n0\nThe command is done, or was asked to stop and stopped.\n"
    ".TP\n1\nIt failed; one line on standard error says why.\n"
    ".TP\n2\nThe command line or a config file is wrong.\n"
    ".TP\n3\nModel, data or build are other ones than those of the run.\n";

// The commands that have a page, in their order.
std::vector<std::string> page_names(std::span<const CommandDescription> commands) {
  std::vector<std::string> names;
  for (const CommandDescription& command : commands)
    if (command.known() && (names.empty() || names.back() != command.command()))
      names.push_back(command.command());
  return names;
}

}  // namespace

std::string manual_of_all(std::span<const CommandDescription> commands, const std::string& version) {
  std::string text =
      head("allot", "learn how many attention samples each layer of a language model should get", version);
  text += ".SH SYNOPSIS\n" + bold("allot") + " " + italic("COMMAND") + " [" + italic("options") + "]\n";
  text += ".SH DESCRIPTION\n" + roff(kPurpose) + "\n.SH COMMANDS\n";
  std::string seen;
  for (const CommandDescription& command : commands) {
    if (command.command() == seen) continue;
    seen = command.command();
    text += ".TP\n" + bold(seen) + "\n" + roff(command.summary) + "\n";
  }
  text +=
      ".PP\n" + bold("allot COMMAND --help") +
      " lists the options of a command, each with its range and default; so does its page, " +
      bold("allot-COMMAND") +
      "(1).\n.SH CONFIG FILES\nEvery option of a command is also a key of the file that " + bold("--config") +
      " names: a line \\(dqname = value\\(dq each, comments after #. The command line overrides the file; " +
      bold("--dry-run") + " prints what both come to.\n";
  text += kExitStatus;
  text += ".SH SEE ALSO\n";
  const std::vector<std::string> names = page_names(commands);
  for (const std::string& name : names)
    text += ".BR " + roff(page_name(name)) + " (1)" + (name == names.back() ? "" : ",") + "\n";
  return text;
}

std::string manual_of_command(std::span<const CommandDescription> forms, const std::string& version) {
  if (std::ranges::none_of(forms, &CommandDescription::known))
    throw std::logic_error("a manual page is made of options, and none are known");
  const std::string name = forms.front().command();
  std::string text = head(page_name(name), forms.front().summary, version) + ".SH SYNOPSIS\n";
  bool first = true;
  for (const CommandDescription& form : forms) {
    if (!form.known()) continue;
    text += (first ? "" : ".br\n") + bold("allot " + form.name) + " " + roff(usage_of(form)) + "\n";
    first = false;
  }
  for (const CommandDescription& form : forms) {
    if (!form.known()) continue;
    const bool one = form.name == name;
    text += (one ? std::string(".SH DESCRIPTION\n") : ".SH " + roff(upper(form.name)) + "\n") +
            roff(sentence(form.title)) + "\n" + (one ? ".SH OPTIONS\n" : "") + options_of(form) +
            (one ? ".SH EXAMPLE\n" : ".PP\nExample:\n.PP\n") + ".EX\n" + roff(form.example) + "\n.EE\n";
  }
  text += kExitStatus;
  return text + ".SH SEE ALSO\n.BR allot (1)\n";
}

}  // namespace allot::app
