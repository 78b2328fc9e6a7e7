// What Linux lets an ordinary user keep from a child process: the environment, the network, other processes
// and all writing outside a scratch directory. A Sandbox is made before fork(), where everything may be done;
// separate() and close_off() are called in the child, where only async-signal-safe calls are allowed. What
// the kernel refuses is left out and reported; docs/security.md says what each part keeps out.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace allot::evaluation {

// What a kernel did not give, each as an errno; 0 where it did.
struct SandboxGaps {
  int namespaces = 0;    // of user, network, processes, mounts and shared memory
  int proc = 0;          // a /proc of the new processes alone
  int landlock = 0;      // files are written in the scratch directory alone
  int landlock_abi = 0;  // version of Landlock's interface where landlock is 0
  int seccomp = 0;       // sockets are refused
};

// Version of Landlock's interface that the kernel has; 0 where it has none, by its build or its start
// options.
int landlock_abi();

// A sentence part for each gap: what the child can do all the same, and why. Empty without one.
std::vector<std::string> describe(const SandboxGaps& gaps);

class Sandbox {
 public:
  // The child may write within `scratch`, an existing directory that outlives the child, and to /dev/null and
  // its like. Its environment is of this process's only what programs need in order to run in the user's
  // language: PATH, LD_LIBRARY_PATH, LANG, LANGUAGE, LC_* and TZ; HOME and TMPDIR name `scratch`.
  explicit Sandbox(const std::filesystem::path& scratch);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // For execve; ends with null.
  char* const* environment() const { return environment_pointers_.data(); }

  // In the child: enters namespaces of its own. The process that called is not yet in the new process
  // namespace: its next child is. Sets `gaps->namespaces`.
  void separate(SandboxGaps* gaps) const;
  // In that child, or where there are no namespaces (gaps->namespaces) in the same process: gives up all
  // privileges and ways to them, hides other processes and takes away writing and sockets. Sets the other
  // gaps.
  void close_off(SandboxGaps* gaps) const;

 private:
  std::vector<std::string> environment_;
  std::vector<char*> environment_pointers_;
  std::string uid_map_, gid_map_;
  int ruleset_ = -1;       // Landlock's, where the kernel has it
  int ruleset_error_ = 0;  // why not
  int landlock_abi_ = 0;
};

}  // namespace allot::evaluation
