#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "common/hub/hub.h"
#include "launch/command_line.h"

namespace outrider {
void add_pull_command(Command& app) {
  Command* command = app.add_subcommand(
      "pull", "Download a model and its assistant from the Hugging Face hub into its cache, or update them");
  struct Flags {
    std::string name;
    bool no_assistant = false;
  };
  auto flags = std::make_shared<Flags>();
  command->add_option("NAME", flags->name, "ORG/NAME[@REVISION][:GGUF], such as google/gemma-4-E4B-it")->required();
  command->add_flag("--no-assistant", flags->no_assistant, "Without the assistant");
  command->callback([flags] {
    const auto name = HubName::parse(flags->name);
    if (!name) throw UsageError(fmt::format("pull: '{}', wanted ORG/NAME[@REVISION][:GGUF]", flags->name));
    const HubSettings hub = HubSettings::of_environment();
    std::printf("%s\n", or_throw(fetch_from_hub(hub, *name)).c_str());
    std::fflush(stdout);
    if (flags->no_assistant) return;
    const std::filesystem::path assistant = fetch_assistant(hub, *name, /*of_any_name=*/true);
    if (!assistant.empty()) std::printf("%s\n", assistant.c_str());
  });
}

}  // namespace outrider
