#include "evaluation/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

extern char** environ;

namespace allot::evaluation {
namespace {

// Landlock's interface (linux/landlock.h) up to its sixth version; Debian 12's headers end with the second.
struct LandlockRuleset {
  uint64_t files = 0;
  uint64_t network = 0;
  uint64_t scoped = 0;
};
struct [[gnu::packed]] LandlockPath {
  uint64_t allowed = 0;
  int32_t parent = -1;
};
constexpr int kPathBeneath = 1;
constexpr uint32_t kAskVersion = 1;
constexpr uint64_t kWriteFile = 1 << 1;
// Removes of directories and files, and the making of character devices, directories, files, sockets, FIFOs,
// block devices and symbolic links.
constexpr uint64_t kChangeDirectory = 0b1'1111'1111 << 4;
constexpr uint64_t kLinkElsewhere = 1 << 13;  // from version 2
constexpr uint64_t kTruncate = 1 << 14;       // 3
constexpr uint64_t kTcp = 0b11;               // bind and connect: 4
constexpr uint64_t kScopes = 0b11;            // abstract Unix sockets and signals: 6
constexpr int kTruncateAbi = 3, kTcpAbi = 4, kScopesAbi = 6;

uint64_t writing(int abi) {
  return kWriteFile | kChangeDirectory | (abi >= 2 ? kLinkElsewhere : 0) |
         (abi >= kTruncateAbi ? kTruncate : 0);
}

// Async-signal-safe. False with errno.
bool allow(int ruleset, const char* path, uint64_t what) {
  LandlockPath rule{.allowed = what, .parent = ::open(path, O_PATH | O_CLOEXEC)};
  if (rule.parent < 0) return false;
  const bool good = ::syscall(SYS_landlock_add_rule, ruleset, kPathBeneath, &rule, 0) == 0;
  const int fault = errno;
  ::close(rule.parent);
  errno = fault;
  return good;
}

bool write_text(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool good = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return good;
}

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "name this machine's AUDIT_ARCH here, by which the filter of system calls tells them from foreign ones"
#endif
constexpr uint32_t kForeignCalls = 0x40000000;  // x32's numbers on x86_64

// Refuses socket(), whatever its family: a Unix socket would reach services of this machine (Docker's, say)
// from any network namespace. Pairs of sockets and pipes stay. io_uring would make sockets unseen.
int refuse_sockets() {
  const auto load = [](size_t offset) {
    return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
  };
  const auto jump = [](uint16_t test, uint32_t value, uint8_t yes, uint8_t no) {
    return sock_filter BPF_JUMP(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, yes, no);
  };
  const auto end = [](uint32_t action) { return sock_filter BPF_STMT(BPF_RET | BPF_K, action); };
  std::array filter = {load(offsetof(seccomp_data, arch)),
                       jump(BPF_JEQ, kArchitecture, 0, 4),  // else: not this kernel's own calls
                       load(offsetof(seccomp_data, nr)),
                       jump(BPF_JGE, kForeignCalls, 2, 0),
                       jump(BPF_JEQ, SYS_socket, 2, 0),
                       jump(BPF_JEQ, SYS_io_uring_setup, 0, 2),
                       end(SECCOMP_RET_ERRNO | ENOSYS),
                       end(SECCOMP_RET_ERRNO | EACCES),
                       end(SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = static_cast<uint16_t>(filter.size()), .filter = filter.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? 0 : errno;
}

// What root would keep over execve, in its namespace or, where there is none, of this machine.
void give_up_capabilities() {
  constexpr int kMost = 64;
  for (int capability = 0; capability < kMost; ++capability) ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  ::syscall(SYS_capset, &header, none);
}

bool is_needed(std::string_view variable) {
  const std::string_view name = variable.substr(0, variable.find('='));
  return name == "PATH" || name == "LD_LIBRARY_PATH" || name == "LANG" || name == "LANGUAGE" ||
         name == "TZ" || name.starts_with("LC_");
}

}  // namespace

int landlock_abi() {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion);
  return version < 0 ? 0 : static_cast<int>(version);
}

std::vector<std::string> describe(const SandboxGaps& gaps) {
  std::vector<std::string> parts;
  const auto add = [&](int fault, std::string_view what) {
    if (fault != 0) parts.push_back(fmt::format("{} ({})", what, std::strerror(fault)));
  };
  add(gaps.namespaces, "no namespaces, so it sees other processes, and what it leaves behind may outlive it");
  add(gaps.proc, "no /proc of its own, so it can see other processes");
  add(gaps.landlock, "no Landlock, so it writes files wherever this user can");
  if (gaps.landlock == 0 && gaps.landlock_abi < kTruncateAbi)
    parts.push_back(fmt::format(
        "version {} of Landlock, of Linux before 6.2, so it can empty files that this user can write",
        gaps.landlock_abi));
  add(gaps.seccomp, gaps.namespaces == 0
                        ? "no filter of system calls, so it can talk to Unix sockets of this machine"
                        : "no filter of system calls, so it keeps the network");
  return parts;
}

Sandbox::Sandbox(const std::filesystem::path& scratch) {
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (is_needed(*variable)) environment_.emplace_back(*variable);
  environment_.push_back("HOME=" + scratch.string());
  environment_.push_back("TMPDIR=" + scratch.string());
  for (std::string& variable : environment_) environment_pointers_.push_back(variable.data());
  environment_pointers_.push_back(nullptr);
  uid_map_ = fmt::format("{} {} 1\n", ::geteuid(), ::geteuid());
  gid_map_ = fmt::format("{} {} 1\n", ::getegid(), ::getegid());

  landlock_abi_ = landlock_abi();
  if (landlock_abi_ == 0) {
    ruleset_error_ = errno;
    return;
  }
  const LandlockRuleset rules{.files = writing(landlock_abi_),
                              .network = landlock_abi_ >= kTcpAbi ? kTcp : 0,
                              .scoped = landlock_abi_ >= kScopesAbi ? kScopes : 0};
  ruleset_ = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0));
  if (ruleset_ < 0 || !allow(ruleset_, scratch.c_str(), writing(landlock_abi_))) {
    ruleset_error_ = errno;
    if (ruleset_ >= 0) ::close(ruleset_);
    ruleset_ = -1;
    return;
  }
  // Devices that keep nothing; one that is not there is missed by nobody.
  for (const char* device : {"/dev/null", "/dev/zero", "/dev/full", "/dev/tty"})
    allow(ruleset_, device, kWriteFile | (landlock_abi_ >= kTruncateAbi ? kTruncate : 0));
}

Sandbox::~Sandbox() {
  if (ruleset_ >= 0) ::close(ruleset_);
}

void Sandbox::separate(SandboxGaps* gaps) const {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) != 0) {
    gaps->namespaces = errno;
    return;
  }
  // Files keep their owner. Where the maps are refused the program is nobody, which is no worse.
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", uid_map_);
  write_text("/proc/self/gid_map", gid_map_);
}

void Sandbox::close_off(SandboxGaps* gaps) const {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (gaps->namespaces == 0) {
    // A /proc of these namespaces shows no other process and nobody's environment. A container that hides
    // parts of its own /proc refuses that.
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
      gaps->proc = errno;
    // Semaphores of its own, which lie there; that of the machine is shared with all. Where it is refused,
    // the program does without.
    if (::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64m,mode=1777") == 0 &&
        ruleset_ >= 0)
      allow(ruleset_, "/dev/shm", writing(landlock_abi_));
  }
  give_up_capabilities();
  gaps->landlock = ruleset_error_;
  gaps->landlock_abi = landlock_abi_;
  if (ruleset_ >= 0 && ::syscall(SYS_landlock_restrict_self, ruleset_, 0) != 0) gaps->landlock = errno;
  gaps->seccomp = refuse_sockets();
}

}  // namespace allot::evaluation
