// Runs a fuzz target without libFuzzer: every input of the corpus, then mutations of them that follow from a seed
// alone. An input that ends the process, takes too long or too much memory is kept and named.
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/random.h"
#include "tests/fuzz/driver.h"

extern "C" {
/// The sanitizers' runtime calls it before it ends the process; without one nobody does.
void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));
}

namespace outrider {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kInputBytesMax = 64 << 10;
constexpr unsigned kSecondsMax = 20;        ///< of a core, for one input: others may have the cores, too
constexpr unsigned kWaitMax = 600;          ///< for one input, in seconds
constexpr long kMemoryMax = long{2} << 20;  ///< of the process, KiB

// What a signal handler needs: it may neither allocate nor lock.
std::string kept;     // path
std::string running;  // input

void keep() {
  std::FILE* const file = std::fopen(kept.c_str(), "wbe");  // the process is lost in any case
  if (file == nullptr) return;
  std::fwrite(running.data(), 1, running.size(), file);
  std::fclose(file);
  std::fprintf(stderr, "fuzz: this input is kept: %s (%zu bytes)\n", kept.c_str(), running.size());
}

extern "C" void on_signal(int number) {
  const bool is_slow = number == SIGPROF || number == SIGALRM;
  std::fprintf(stderr, "fuzz: %s\n", is_slow ? "an input takes too long" : strsignal(number));
  keep();
  _exit(1);
}

/// Ends the process by a signal if it goes on for too long; 0: it does not.
void bound_time(unsigned of_core, unsigned wait) {
  const itimerval core{.it_interval = {}, .it_value = {.tv_sec = of_core, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &core, nullptr);
  alarm(wait);
}

/// Of a core, that this process has had.
double seconds_had() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void run(std::string input) {
  running = std::move(input);
  bound_time(kSecondsMax, kWaitMax);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(running.data()), running.size());
  bound_time(0, 0);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (usage.ru_maxrss <= kMemoryMax) return;
  std::fprintf(stderr, "fuzz: the process takes %ld KiB\n", usage.ru_maxrss);
  keep();
  std::exit(1);
}

/// Makes new inputs of those that there are, and of the words in them.
class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {
    for (const std::string& input : corpus) add_words(input);
    std::ranges::sort(words_);
    words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
  }

  std::string next() {
    std::string input = any(corpus_);
    for (std::uint64_t changes = 1 + random_.below(1 + random_.below(12)); changes > 0; --changes) change(input);
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    return input;
  }

 private:
  void add_words(std::string_view input) {
    const auto is_of_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    for (std::size_t i = 0; i < input.size() && words_.size() < 20'000;) {
      std::size_t end = i;
      while (end < input.size() && is_of_word(input[end])) ++end;
      if (end - i > 1 && end - i < 40) words_.emplace_back(input.substr(i, end - i));
      i = end + 1;
    }
  }
  const std::string& any(const std::vector<std::string>& strings) {
    static const std::string none;
    return strings.empty() ? none : strings[random_.below(strings.size())];
  }
  std::size_t place(const std::string& input) { return static_cast<std::size_t>(random_.below(input.size() + 1)); }
  /// A few bytes mostly, sometimes much.
  std::size_t length(std::size_t most) {
    return static_cast<std::size_t>(
        random_.below(1 + random_.below(1 + std::min<std::size_t>(most, 1 << random_.below(17)))));
  }

  void change(std::string& input) {
    static constexpr std::array<const char*, 24> kOdd = {"0",
                                                         "-1",
                                                         "1e999",
                                                         "-0.0",
                                                         "9223372036854775807",
                                                         "9223372036854775808",
                                                         "18446744073709551616",
                                                         "0x10",
                                                         "null",
                                                         "true",
                                                         "[]",
                                                         "{}",
                                                         "\"\"",
                                                         "\\u0000",
                                                         "\\ud800",
                                                         "\xff",
                                                         "\xed\xa0\x80",
                                                         "\xf4\x90\x80\x80",
                                                         "\r\n",
                                                         "\n",
                                                         "[[[[[[[[",
                                                         "{\"a\":",
                                                         "NaN",
                                                         "%00"};
    const std::size_t at = place(input);
    switch (random_.below(11)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random_.below(8)));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(random_.below(256));
        break;
      case 2: input.insert(at, 1, static_cast<char>(random_.below(256))); break;
      case 3: input.erase(at, length(input.size() - at)); break;
      case 4: input.insert(at, input.substr(place(input), length(input.size()))); break;
      case 5: {
        const std::string& other = any(corpus_);
        input.replace(at, length(input.size() - at), other, place(other), length(other.size()));
        break;
      }
      case 6: input.insert(at, any(words_)); break;
      case 7: input.replace(at, length(input.size() - at), kOdd[random_.below(kOdd.size())]); break;
      case 8: replace_number(input, at); break;
      case 9: {  // a number in binary, as large or as small as they come
        const std::uint64_t odd = std::array<std::uint64_t, 5>{0, 1, ~0ULL, 1ULL << 63, 0x7fffffff}[random_.below(5)];
        const std::size_t size = std::size_t{1} << random_.below(4);
        if (at + size <= input.size()) std::memcpy(input.data() + at, &odd, size);
        break;
      }
      default: input.insert(at, std::string(length(4096), static_cast<char>(random_.below(256))));
    }
  }
  /// Another one in place of the next word.
  void replace_number(std::string& input, std::size_t at) {
    const auto is_of_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    while (at < input.size() && !is_of_word(input[at])) ++at;
    std::size_t end = at;
    while (end < input.size() && is_of_word(input[end])) ++end;
    input.replace(at, end - at,
                  random_.below(2) == 0 ? any(words_) : std::to_string(random_.next() >> random_.below(64)));
  }

  const std::vector<std::string>& corpus_;
  CounterRng random_;
  std::vector<std::string> words_;
};

std::vector<std::string> read_corpus(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path))
      files.push_back(path);
    else
      for (const auto& entry : fs::recursive_directory_iterator(path))
        if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<std::string> corpus;
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

/// A number, or `random`: the driver says which it took.
std::uint64_t seed_of(std::string_view word) {
  return word == "random" ? std::random_device()() : std::strtoull(word.data(), nullptr, 10);
}

struct Flags {
  std::optional<std::uint64_t> runs;  ///< at most; none: the corpus alone, unless there are seconds
  std::uint64_t seed = 1;
  std::optional<double> seconds;  ///< of a core, at most
  fs::path keep = ".";
  std::vector<fs::path> corpus;
};

Flags parse_flags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] {
      if (i + 1 == argc) throw std::runtime_error(std::string(word) + " wants a value");
      return argv[++i];
    };
    if (word == "--runs")
      flags.runs = std::strtoull(value(), nullptr, 10);
    else if (word == "--seed")
      flags.seed = seed_of(value());
    else if (word == "--seconds")
      flags.seconds = std::strtod(value(), nullptr);
    else if (word == "--keep")
      flags.keep = value();
    else if (word.starts_with("-"))
      throw std::runtime_error(
          "usage: FUZZ_TARGET [--runs AT_MOST] [--seed S|random] [--seconds AT_MOST] [--keep DIR] [CORPUS...]");
    else
      flags.corpus.emplace_back(word);
  }
  return flags;
}

void fuzz(const Flags& flags, const std::string& name) {
  std::vector<std::string> corpus = read_corpus(flags.corpus);
  corpus.emplace_back();
  if (&fuzz_seeds != nullptr) std::ranges::move(fuzz_seeds(), std::back_inserter(corpus));
  const double began = seconds_had();
  kept = (flags.keep / ("failed-" + name + "-corpus")).string();
  for (const std::string& input : corpus) run(input);
  kept = (flags.keep / ("failed-" + name + "-seed-" + std::to_string(flags.seed))).string();
  Mutator mutator(corpus, flags.seed);
  std::uint64_t runs = 0;
  const std::uint64_t most = flags.runs.value_or(flags.seconds ? std::numeric_limits<std::uint64_t>::max() : 0);
  const double seconds = flags.seconds.value_or(std::numeric_limits<double>::infinity());
  for (; runs < most && seconds_had() - began < seconds; ++runs) run(mutator.next());
  std::printf("%s: %zu inputs of the corpus, %llu made of them with seed %llu, %.1f s of a core: nothing found\n",
              name.c_str(), corpus.size(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(flags.seed), seconds_had() - began);
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using namespace outrider;
  for (const int number : {SIGABRT, SIGALRM, SIGPROF}) signal(number, on_signal);
  if (__sanitizer_set_death_callback != nullptr)
    __sanitizer_set_death_callback(keep);
  else
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, on_signal);
  try {
    fuzz(parse_flags(argc, argv), fs::path(argv[0]).filename().string());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: %s\n", error.what());
    if (!running.empty()) keep();
    return 1;
  }
}
