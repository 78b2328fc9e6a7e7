// Typed errors for broken input and a broken environment. Outcomes that are expected (a lease expired, a
// duplicate result) are values, not errors; our own bugs are asserts. A message says what was wrong with the
// actual values, where, what was expected and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace allot {

// Base of all errors that allot throws. The command line prints what() as one line and
// exits with exit_code().
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  // Exit status of the process when nothing handles the error: 1, 2 for UsageError, 3 for Mismatch.
  virtual int exit_code() const { return 1; }
};

// The command line or a config file is wrong: unknown option, value out of range, options that
// exclude each other.
class UsageError : public Error {
 public:
  using Error::Error;
  int exit_code() const override { return 2; }
};

// An argument of a library call breaks its contract: shapes, ranges, lengths.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A file or directory that must exist does not, or cannot be read.
class NotFound : public Error {
 public:
  using Error::Error;
};

// A file's content contradicts its format; the message names file and offset or field.
class CorruptFile : public Error {
 public:
  using Error::Error;
};

// A well-formed input that allot does not support; the message lists what is supported.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// Two things that must match do not (model and schedule, worker and run, run directory and spec); the message
// names both. Starting the process again with the same arguments does not help, so this error has an exit
// status of its own.
class Mismatch : public Error {
 public:
  using Error::Error;
  int exit_code() const override { return 3; }
};

// A write, database or disk operation failed.
class StorageError : public Error {
 public:
  using Error::Error;
};

// A CUDA call failed: no device, no memory, a launch refused, a kernel that faulted.
class CudaError : public Error {
 public:
  using Error::Error;
};

// A socket could not be opened, bound or used.
class NetworkError : public Error {
 public:
  using Error::Error;
};

}  // namespace allot
