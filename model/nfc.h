// Unicode's normalization form C as the `tokenizers` package makes it: with the combining marks of Unicode
// 9, the version of the crate that it uses. Marks added later keep their position, and U+11930 (Unicode 13)
// does not compose.
#pragma once

#include <string>
#include <string_view>

namespace allot::model {

// `text`, which must be UTF-8, in NFC: `text` itself where it already is in NFC, else `*buffer`, which is
// overwritten. Throws InvalidArgument when utf8proc fails (a text of 2 GiB, no memory).
std::string_view to_nfc(std::string_view text, std::string* buffer);

// Makes the tables of to_nfc in advance, which takes some milliseconds; otherwise its first call with a
// character above U+02FF makes them. Safe from many threads.
void prepare_nfc();

}  // namespace allot::model
