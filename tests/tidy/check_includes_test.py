#!/usr/bin/env python3
"""The tidy check must accept a clean tree and reject each kind of bad one."""

import sys
import textwrap
import unittest

sys.dont_write_bytecode = True  # The source tree stays as it is.
import check_includes  # noqa: E402
import tree_test  # noqa: E402

def function(lines, indent=""):
    """A function of so many lines."""
    text = "int f(int a,\n      int b) {\n#if A\n\n" + "  a();  // }\n" * (lines - 5) + "}\n"
    return textwrap.indent(text, indent, lambda line: not line.startswith("#"))


CLEAN = {
    "common/base/CMakeLists.txt": "outrider_room(base SOURCES base.cc)",
    "common/base/base.h": "#include <vector>\n",
    "common/base/base.cc": '#include "common/base/base.h"\nnamespace n {\n' + function(80) + function(80) + "}  // n\n",
    "common/compute/tensor/CMakeLists.txt": "outrider_room(tensor SOURCES tensor.cc PUBLIC outrider::base)",
    "common/compute/tensor/tensor.h": '#include "common/base/base.h"\n',
    "common/compute/tensor/tensor.cc": '#include "common/compute/tensor/tensor.h"\n',
    "common/compute/kernels/CMakeLists.txt":
        "outrider_room(kernels\n  SOURCES onednn_matrix.cc  # oneDNN\n  PUBLIC outrider::tensor\n"
        "  PRIVATE DNNL::dnnl $<BUILD_INTERFACE:flags>)",
    "common/compute/kernels/onednn_matrix.cc":
        '#include <oneapi/dnnl/dnnl.hpp>\n#include "common/base/base.h"\n#include "common/compute/tensor/tensor.h"\n',
    "common/model/gemma4/CMakeLists.txt":
        "outrider_room(model SOURCES model.cc PRIVATE outrider::kernels)",
    "common/model/gemma4/model.h": "",
    "common/model/gemma4/model.cc": '#include "common/model/gemma4/model.h"\n',
    "common/wire/messages/CMakeLists.txt":
        "outrider_room(messages SOURCES messages.cc PUBLIC outrider::base)",
    "common/wire/messages/messages.cc":
        '// #include <thread>, steady_clock::now()\n#include <chrono>\nconst char* s = "/*";\n',
    "common/wire/transport/CMakeLists.txt":
        "outrider_room(transport SOURCES transport.cc PUBLIC outrider::messages)",
    "common/wire/transport/transport.h": "",
    "common/wire/transport/transport.cc": "#include <zmq.hpp>\n#include <flatbuffers/flatbuffers.h>\n",
    "drafter-node/CMakeLists.txt":
        "outrider_room(drafter_node SOURCES drafter.cc PUBLIC outrider::model)\n"
        "add_executable(outrider-drafter main.cc)\n"
        "target_link_libraries(outrider-drafter PRIVATE outrider::drafter_node outrider::transport)",
    "drafter-node/drafter.h": "",
    "drafter-node/drafter.cc": '#include "drafter-node/drafter.h"\n',
    "drafter-node/main.cc": '#include "common/model/gemma4/model.h"\n',
    "launch/CMakeLists.txt":
        "outrider_room(local_cluster SOURCES local_cluster.cc PUBLIC outrider::drafter_node)\n"
        "outrider_room(launch COMMANDS chat SOURCES run.cc flags.h PUBLIC outrider::local_cluster PRIVATE outrider::transport)",
    "launch/local_cluster.h": "",
    "launch/local_cluster.cc": '#include "launch/local_cluster.h"\n',
    "launch/command_chat.cc": '#include "common/wire/transport/transport.h"\n',
    "launch/flags.h": "",
    "launch/run.cc":
        '#include "launch/flags.h"\n#include "launch/local_cluster.h"\n#include "common/wire/transport/transport.h"\n',
    "verifier-node/CMakeLists.txt":
        "outrider_room(verifier_node SOURCES verifier.cc PUBLIC outrider::model)",
    "verifier-node/verifier.cc": "",
    "tests/unit/base_test.cc": '#include "drafter-node/drafter.h"\n#include <zmq.hpp>\n',
}

# name: (files that change the clean tree, what the one problem must say)
BAD = {
    "upward include": (
        {"common/base/base.cc": '#include "common/base/base.h"\n#include "common/compute/tensor/tensor.h"\n'},
        "common/base/base.cc:2: base includes common/compute/tensor/tensor.h"),
    "upward include in angle brackets": (
        {"common/compute/tensor/tensor.cc": "#include <common/compute/tensor/tensor.h>\n#include <common/model/gemma4/model.h>\n"},
        "no edge to model"),
    "include through a PRIVATE edge": (
        {"drafter-node/main.cc": '#include "common/compute/tensor/tensor.h"\n'}, "no edge to tensor"),
    "relative include": ({"common/base/base.cc": '#include "base.h"\n'}, "from the project's root"),
    "relative include of another room": (
        {"common/base/base.cc": '#include "../compute/tensor/tensor.h"\n'}, "from the project's root"),
    "include of a test": (
        {"common/base/base.cc": '#include "tests/help.h"\n', "tests/help.h": ""}, "from the project's root"),
    "ZeroMQ outside transport": ({"drafter-node/main.cc": "#include <zmq.hpp>\n"}, "ZeroMQ"),
    "generated header outside transport": (
        {"drafter-node/main.cc": '#include "schemas/wire_generated.h"\n'}, "FlatBuffers"),
    "oneDNN outside its file": (
        {"common/model/gemma4/model.cc": '#include "common/model/gemma4/model.h"\n#include <dnnl.hpp>\n'}, "oneDNN"),
    "thread in the protocol": ({"common/wire/messages/messages.cc": "#include <thread>\n"}, "<thread>"),
    "socket in the protocol": ({"common/wire/messages/messages.cc": "#include <sys/socket.h>\n"}, "socket"),
    "clock in the protocol": (
        {"common/wire/messages/messages.cc": "auto t = std::chrono::steady_clock::now();\n"}, "reads a clock"),
    "drafter includes verifier": (
        {"drafter-node/drafter.cc": '#include "verifier-node/verifier.h"\n',
         "drafter-node/CMakeLists.txt": CLEAN["drafter-node/CMakeLists.txt"] +
         "\ntarget_link_libraries(outrider_drafter_node PUBLIC outrider::verifier_node)"},
        "never include each other"),
    "source that nobody builds": ({"common/base/lost.cc": ""}, "common/base/lost.cc: in no CMakeLists"),
    "header that nobody includes": ({"common/base/lost.h": ""}, "common/base/lost.h: included by nobody"),
    "edge that only another target of the folder has": (
        {"launch/local_cluster.cc": '#include "common/wire/transport/transport.h"\n'},
        "local_cluster includes common/wire/transport/transport.h, but its CMakeLists.txt has no edge to transport"),
    "include of the target above in the same folder": (
        {"launch/local_cluster.cc": '#include "launch/local_cluster.h"\n#include "launch/flags.h"\n'},
        "has no edge to launch"),
    "header of no target where a folder has two": (
        {"launch/lost.h": "", "launch/local_cluster.cc": '#include "launch/lost.h"\n'}, "launch/lost.h: of which target"),
    "edge to a room that is not there": (
        {"common/base/CMakeLists.txt": "outrider_room(base SOURCES base.cc PUBLIC outrider::utils)"},
        "outrider::utils: no room makes it"),
    "long function": ({"common/base/base.cc": "int a;\n" + function(81)}, "base.cc:2: a function of 81 lines"),
    "long function in a class": (
        {"common/base/base.cc": "class A {\n public:\n" + function(81, "  ") + "};\n"}, "base.cc:3: a function of 81"),
    "long function in an include file": ({"common/base/base.inc": function(81)}, "base.inc:1: a function of 81 lines"),
    "long function of a test": ({"tests/unit/base_test.cc": function(81)}, "base_test.cc:1: a function of 81 lines"),
    "circle": (
        {"common/base/CMakeLists.txt": "outrider_room(base SOURCES base.cc PRIVATE outrider::model)"},
        "form a circle"),
}


CheckIncludes = tree_test.tree_test(check_includes.check, CLEAN, BAD)

if __name__ == "__main__":
    unittest.main()
