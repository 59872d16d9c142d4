#pragma once

#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_dir.h"

namespace outrider {

/// A key and a certificate for localhost that it signed itself: NAME.key and NAME.pem.
/// @param kind  of the key, as openssl has it
inline void make_certificate(const TemporaryDir& dir, const std::string& name,
                             const std::string& kind = "ec -pkeyopt ec_paramgen_curve:P-256") {
  const std::string command = fmt::format(
      "cd '{}' && openssl req -x509 -newkey {} -nodes -keyout {}.key -out {}.pem "
      "-subj /CN={} -addext subjectAltName=DNS:localhost -days 2 2>/dev/null",
      dir.path().string(), kind, name, name, name);
  ASSERT_EQ(std::system(command.c_str()), 0);
}

}  // namespace outrider
