// How often a test that tries random cases does so.
#pragma once

namespace allot {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kUnderSanitizers = true;
#else
inline constexpr bool kUnderSanitizers = false;
#endif

// The cases of a test that both builds of ./check run: code under AddressSanitizer is ten times as slow, and
// there an eighth of them finds what it is there to find.
constexpr int repeats(int count) {
  return kUnderSanitizers ? (count + 7) / 8 : count;
}

}  // namespace allot
