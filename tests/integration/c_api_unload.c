/* A plugin's life: loads liboutrider.so, decodes, closes and unloads it, several times over. Exits with 0 if it can do
 * so, with 1 otherwise; a thread that outlives its pair is an error, too, and so is (to ctest) a warning.
 *
 *   c_api_unload LIBRARY TARGET_DIR ASSISTANT_DIR
 */
#include <outrider.h>

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static outrider_error error;

static void check(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, error.message);
  exit(1);
}

/* Those that OpenMP has told to end may take a moment. */
static int threads(int wanted) {
  int count = 0, tries;
  for (tries = 0; count != wanted && tries < 1000; ++tries) {
    const struct timespec moment = {0, 10000000};
    DIR* tasks = opendir("/proc/self/task");
    if (tries > 0) nanosleep(&moment, NULL);
    count = -2; /* . and .. */
    while (readdir(tasks) != NULL) ++count;
    closedir(tasks);
  }
  return count;
}

/* ISO C has no conversion from an object pointer to that of a function; POSIX promises that this works. */
static void* symbol(void* library, const char* name, void* function, size_t size) {
  void* found = dlsym(library, name);
  check(found != NULL, name);
  memcpy(function, &found, size);
  return found;
}

static void live(const char* path, char** models) {
  outrider_status (*open_local)(const char*, const char*, const char*, int32_t, outrider_pair**, outrider_error*);
  outrider_status (*session_open)(outrider_pair*, outrider_session**, outrider_error*);
  outrider_status (*prefill)(outrider_session*, const int32_t*, size_t, int32_t*, outrider_error*);
  outrider_status (*draft)(outrider_session*, size_t, int32_t*, size_t*, outrider_error*);
  void (*session_close)(outrider_session*);
  void (*close)(outrider_pair*);
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const int32_t prompt[] = {2, 105, 300, 77};
  int32_t first = 0, drafts[4];
  size_t drafted = 0;
  outrider_pair* pair = NULL;
  outrider_session* session = NULL;
  check(library != NULL, "dlopen");
  symbol(library, "pair_open_local", &open_local, sizeof open_local);
  symbol(library, "pair_session_open", &session_open, sizeof session_open);
  symbol(library, "pair_prefill", &prefill, sizeof prefill);
  symbol(library, "pair_draft_tokens", &draft, sizeof draft);
  symbol(library, "pair_session_close", &session_close, sizeof session_close);
  symbol(library, "pair_close", &close, sizeof close);
  check(open_local(models[0], models[1], "bf16", 2, &pair, &error) == OUTRIDER_OK, "pair_open_local");
  check(session_open(pair, &session, &error) == OUTRIDER_OK, "pair_session_open");
  check(prefill(session, prompt, 4, &first, &error) == OUTRIDER_OK, "pair_prefill");
  check(draft(session, 4, drafts, &drafted, &error) == OUTRIDER_OK, "pair_draft_tokens");
  session_close(session);
  close(pair);
  check(dlclose(library) == 0, "dlclose");
}

int main(int argc, char** argv) {
  int i, left;
  if (argc != 4) return 2;
  for (i = 0; i < 6; ++i) {
    live(argv[1], argv + 2);
    left = threads(1);
    if (left == 1) continue;
    fprintf(stderr, "%d threads after all was closed, wanted 1\n", left);
    return 1;
  }
  return 0;
}
