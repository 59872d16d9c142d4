# One CMake target per room. outrider_room(NAME SOURCES ... COLD ... COMMANDS ... PUBLIC ... PRIVATE ...) makes the static
# library outrider_NAME with the alias outrider::NAME. COLD sources do nothing that must be fast. Each of COMMANDS is a
# source: of run it is command_run.cc, with add_run_command(). add_NAME_commands() calls these in the order of the list.
# The PUBLIC and PRIVATE edges are the project's dependency diagram; tests/tidy rejects an #include that has no edge.

add_library(outrider_build_flags INTERFACE)
target_compile_options(outrider_build_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  $<$<BOOL:${OUTRIDER_WERROR}>:-Werror>)
target_compile_definitions(outrider_build_flags INTERFACE OUTRIDER_VERSION="${PROJECT_VERSION}")
if(OUTRIDER_AARCH64)
  # As x86-64 has it: char has a sign, and a product and a sum are rounded once only where the code says so.
  target_compile_options(outrider_build_flags INTERFACE -fsigned-char -ffp-contract=off)
endif()
if(OUTRIDER_SANITIZE)
  # Sanitizers need every object of the program, so this one flag set is global.
  add_compile_options(-fsanitize=${OUTRIDER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${OUTRIDER_SANITIZE})
endif()

# For a target whose sources do nothing that must be fast, but for those named, which stay as they are. Those with
# much JSON or many options cost the compiler half as much with -O1 as with -O3, and a third of that where several
# are compiled as one, since each includes and instantiates the same headers.
function(outrider_compile_quickly target)
  if(ARGN)
    # A source with options of its own is compiled alone.
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
endfunction()

# Writes OUTPUT with add_NAME_commands().
function(outrider_write_commands output name)
  foreach(command ${ARGN})
    string(APPEND declarations "void add_${command}_command(Command& app);\n")
    string(APPEND calls "  add_${command}_command(app);\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT
    "namespace outrider {\nclass Command;\n${declarations}void add_${name}_commands(Command& app) {\n${calls}}\n}\n")
endfunction()

function(outrider_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;COLD;COMMANDS;PUBLIC;PRIVATE" ${ARGN})
  if(ROOM_COMMANDS)
    list(TRANSFORM ROOM_COMMANDS REPLACE "(.+)" "command_\\1.cc" OUTPUT_VARIABLE command_sources)
    outrider_write_commands(${CMAKE_CURRENT_BINARY_DIR}/commands.cc ${name} ${ROOM_COMMANDS})
    list(APPEND ROOM_COLD ${command_sources} ${CMAKE_CURRENT_BINARY_DIR}/commands.cc)
  endif()
  add_library(outrider_${name} STATIC ${ROOM_SOURCES} ${ROOM_COLD})
  add_library(outrider::${name} ALIAS outrider_${name})
  target_include_directories(outrider_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(outrider_${name} PUBLIC cxx_std_20)
  target_link_libraries(outrider_${name}
    PUBLIC ${ROOM_PUBLIC}
    PRIVATE ${ROOM_PRIVATE} $<BUILD_INTERFACE:outrider_build_flags>)
  if(ROOM_COLD)
    outrider_compile_quickly(outrider_${name} ${ROOM_SOURCES})
  endif()
endfunction()
