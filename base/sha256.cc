#include "base/sha256.h"

#include <openssl/evp.h>

#include <fstream>
#include <vector>

#include "base/error.h"

namespace allot {
void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
}

void Sha256::update(std::string_view bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
  // Without a type the context keeps the one it has, which is faster than to look it up again.
  EVP_DigestInit_ex(context_.get(), nullptr, nullptr);
  return digest;
}

std::string hex(const Sha256Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hex(hash.finish());
}

std::string sha256_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw NotFound("cannot read " + path.string() + " to fingerprint it; check the path and its permissions");
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.update({buffer.data(), static_cast<size_t>(in.gcount())});
  }
  return hex(hash.finish());
}

}  // namespace allot
