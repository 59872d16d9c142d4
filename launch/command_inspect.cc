namespace CLI {
class App;
}
namespace outrider {
void add_inspect_command(CLI::App&) {}
}  // namespace outrider
