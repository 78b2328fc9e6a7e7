// The byte-level alphabet of GPT-2: every byte is written as one printable character, so that a vocabulary of
// texts can represent any bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace allot::model {

// The character that stands for `byte`.
std::string byte_level_character(uint8_t byte);

// The bytes that `token` spells, or nullopt when it has a character outside the alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view token);

}  // namespace allot::model
