#pragma once

#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_dir.h"

namespace outrider {

/// A key and a certificate for localhost that it signed itself: NAME.key and NAME.pem.
inline void make_certificate(const TemporaryDir& dir, const std::string& name) {
  const std::string command = fmt::format(
      "cd '{}' && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {}.key -out {}.pem "
      "-subj /CN={} -addext subjectAltName=DNS:localhost -days 2 2>/dev/null",
      dir.path().string(), name, name, name);
  ASSERT_EQ(std::system(command.c_str()), 0);
}

}  // namespace outrider
