// How often a test that tries random cases does so.
#pragma once

namespace allot {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)  // Clang; GCC 12 knows neither
#define ALLOT_UNDER_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ALLOT_UNDER_ADDRESS_SANITIZER
#endif
#if defined(ALLOT_UNDER_ADDRESS_SANITIZER)
inline constexpr bool kUnderSanitizers = true;
#else
inline constexpr bool kUnderSanitizers = false;
#endif

// The cases of a test that both builds of ./check run: code under AddressSanitizer is ten times as slow, and
// there an eighth of them finds what it is there to find.
constexpr int repeats(int count) {
  return kUnderSanitizers ? (count + 7) / 8 : count;
}

// The step of a loop over all code points in such a test: under sanitizers every seventh, so that no bit of
// them is always the same.
inline constexpr char32_t kEveryCodePoint = kUnderSanitizers ? 7 : 1;

}  // namespace allot
