// What a gather of two processes would take over ZeroMQ, in clear and with CURVE: each sends its half of 5 rows of
// 5,376 floats and waits for the other's. Beside the gathers of lab/benchmarks/shards.cc (ADR 17).
//   zeromq_gather listen|dial tcp://NUMBER:PORT clear|curve
#include <zmq.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/time.h"

int main(int argc, char** argv) {
  using outrider::now;
  if (argc != 4) {
    std::fprintf(stderr, "usage: zeromq_gather listen|dial tcp://NUMBER:PORT clear|curve\n");
    return 2;
  }
  const bool listens = argv[1] == std::string("listen");
  void* const context = zmq_ctx_new();
  void* const socket = zmq_socket(context, ZMQ_PAIR);
  if (argv[3] == std::string("curve")) {
    // A key pair of ZeroMQ's documentation: nothing secret is sent here.
    const char* const open = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    const char* const secret = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
    const int on = 1;
    char own_open[41], own_secret[41];
    zmq_curve_keypair(own_open, own_secret);
    if (listens) {
      zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof on);
      zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, 41);
    } else {
      zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, open, 41);
      zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, own_open, 41);
      zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, own_secret, 41);
    }
  }
  if ((listens ? zmq_bind(socket, argv[2]) : zmq_connect(socket, argv[2])) != 0) {
    std::perror(argv[2]);
    return 1;
  }
  const std::vector<float> half(std::size_t{5} * 5376 / 2);
  std::vector<float> others(half.size());
  std::vector<double> times;
  for (int i = 0; i < 3000; ++i) {
    const outrider::TimePoint start = now();
    zmq_send(socket, half.data(), 4 * half.size(), 0);
    zmq_recv(socket, others.data(), 4 * others.size(), 0);
    times.push_back(1e6 * outrider::to_seconds(now() - start));
  }
  std::ranges::sort(times);
  if (listens)
    std::printf("gather of 5 x 5376 floats over ZeroMQ: median %.1f us, least %.1f\n", times[1500], times[0]);
  zmq_close(socket);
  zmq_ctx_term(context);
}
