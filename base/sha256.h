// SHA-256 fingerprints of files and texts (libcrypto).
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of libcrypto

namespace allot {

using Sha256Digest = std::array<unsigned char, 32>;

// SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  // The digest of all bytes since the construction or the last call; begins anew.
  Sha256Digest finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Lower-case hexadecimal digits of `digest`: 64 characters.
std::string hex(const Sha256Digest& digest);

// Lower-case hexadecimal SHA-256 of `bytes`: 64 characters.
std::string sha256_hex(std::string_view bytes);

// SHA-256 of a file's content. Throws NotFound when the file cannot be read.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace allot
