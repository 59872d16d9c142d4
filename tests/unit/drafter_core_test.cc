#include "common/protocol/drafter_core.h"

#include <gtest/gtest.h>

#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

TEST(Pause, OfADrafterIsNotTheSilenceOfItsCoordinator) {
  Loop loop;
  DrafterCore core({}, hello(Role::kDrafter));
  core.on_message({.body = Welcome{1}}, loop.now());
  core.on_message({.session = SessionId{1}, .body = KvChunk{rows(0, 3)}}, loop.now());
  check_worker_pause(core, loop);
}

}  // namespace
}  // namespace outrider
