/* timed FILE PROGRAM ARGUMENTS...: runs the program and appends what it and its own children took to FILE, a line of user and system time in
   microseconds. The shell's `time` has milliseconds, and counts the shell's own fork. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long long microseconds(struct timeval time) { return time.tv_sec * 1000000LL + time.tv_usec; }

int main(int count, char **words) {
  if (count < 3) return 125;
  /* vfork shares the pages, so the program starts with no cost of ours. */
  pid_t child = vfork();
  if (child == 0) {
    execv(words[2], words + 2);
    _exit(127);
  }
  int status;
  struct rusage used;
  if (child < 0 || wait4(child, &status, 0, &used) < 0) return 126;
  char line[64];
  int length = snprintf(line, sizeof line, "%lld %lld\n", microseconds(used.ru_utime), microseconds(used.ru_stime));
  int file = open(words[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0 || write(file, line, length) != length) return 124;
  if (WIFSIGNALED(status)) {
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  return WEXITSTATUS(status);
}
