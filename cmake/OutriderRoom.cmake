# One CMake target per room. outrider_room(NAME SOURCES ... COLD ... COMMANDS ... TEXTS ... PUBLIC ... PRIVATE ...) makes the
# static library outrider_NAME with the alias outrider::NAME. COLD sources do nothing that must be fast. Each of COMMANDS is a
# source: of run it is command_run.cc, with add_run_command(). add_NAME_commands() calls these in the order of the list.
# Each of TEXTS is a file that goes into the program: of style.css std::string_view style_css(), which its user declares.
# The PUBLIC and PRIVATE edges are the project's dependency diagram; tests/tidy rejects an #include that has no edge.

add_library(outrider_build_flags INTERFACE)
target_compile_options(outrider_build_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  $<$<BOOL:${OUTRIDER_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION MATCHES "^13\\.")
  # g++ 13 takes an element of a temporary view for a part of the view; g++ 14 knows views.
  target_compile_options(outrider_build_flags INTERFACE -Wno-dangling-reference)
endif()
target_compile_definitions(outrider_build_flags INTERFACE OUTRIDER_VERSION="${PROJECT_VERSION}")
# __FILE__ is the same in every working tree: what a CHECK says is short, and ccache serves one with another's objects.
target_compile_options(outrider_build_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(OUTRIDER_AARCH64)
  # As x86-64 has it: char has a sign, and a product and a sum are rounded once only where the code says so.
  target_compile_options(outrider_build_flags INTERFACE -fsigned-char -ffp-contract=off)
endif()
if(OUTRIDER_SANITIZE)
  # Sanitizers need every object of the program, so this one flag set is global.
  add_compile_options(-fsanitize=${OUTRIDER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${OUTRIDER_SANITIZE})
endif()

# The sources of a target are compiled as one: each includes and instantiates the same headers, which is most of what it
# costs. The 14 of common/wire/messages that are not COLD take 20 s so, and 51 s one by one. Those with flags of their own are
# compiled alone.
function(outrider_compile_as_one target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  # The compiler collects its garbage only when there is much of it.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=400000>)
endfunction()

# For a target whose sources do nothing that must be fast: with much JSON or many options -O1 takes half as long as -O3.
function(outrider_compile_quickly target)
  outrider_compile_as_one(${target})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Writes OUTPUT with add_NAME_commands().
function(outrider_write_commands output name)
  foreach(command ${ARGN})
    string(APPEND declarations "void add_${command}_command(Command& app);\n")
    string(APPEND calls "  add_${command}_command(app);\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT
    "namespace CLI {\nclass App;\n}\nnamespace outrider {\nusing Command = CLI::App;\n${declarations}void add_${name}_commands(Command& app) {\n${calls}}\n}\n")
endfunction()

# Writes OUTPUT with a function for each text file.
function(outrider_write_texts output)
  set(code "#include <string_view>\n\nnamespace outrider {\n")
  foreach(file ${ARGN})
    file(READ ${file} text)
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER ${name} name)
    string(APPEND code "std::string_view ${name}() { return R\"text(${text})text\"; }\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  file(WRITE ${output}.in "${code}}\n")
  configure_file(${output}.in ${output} COPYONLY)  # keeps the time of one that does not change
endfunction()

function(outrider_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;COLD;COMMANDS;TEXTS;PUBLIC;PRIVATE" ${ARGN})
  if(ROOM_TEXTS)
    outrider_write_texts(${CMAKE_CURRENT_BINARY_DIR}/${name}_texts.cc ${ROOM_TEXTS})
    list(APPEND ROOM_COLD ${CMAKE_CURRENT_BINARY_DIR}/${name}_texts.cc)
  endif()
  if(ROOM_COMMANDS)
    list(TRANSFORM ROOM_COMMANDS REPLACE "(.+)" "command_\\1.cc" OUTPUT_VARIABLE command_sources)
    outrider_write_commands(${CMAKE_CURRENT_BINARY_DIR}/commands.cc ${name} ${ROOM_COMMANDS})
    list(APPEND ROOM_COLD ${command_sources} ${CMAKE_CURRENT_BINARY_DIR}/commands.cc)
  endif()
  add_library(outrider_${name} STATIC ${ROOM_SOURCES})
  add_library(outrider::${name} ALIAS outrider_${name})
  set(targets outrider_${name})
  if(ROOM_COLD AND NOT ROOM_SOURCES)
    target_sources(outrider_${name} PRIVATE ${ROOM_COLD})
    outrider_compile_quickly(outrider_${name})
  else()
    outrider_compile_as_one(outrider_${name})
  endif()
  if(ROOM_COLD AND ROOM_SOURCES)
    add_library(outrider_${name}_cold OBJECT ${ROOM_COLD})
    outrider_compile_quickly(outrider_${name}_cold)
    target_sources(outrider_${name} PRIVATE $<TARGET_OBJECTS:outrider_${name}_cold>)
    list(APPEND targets outrider_${name}_cold)
  endif()
  foreach(target ${targets})
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_link_libraries(${target}
      PUBLIC ${ROOM_PUBLIC}
      PRIVATE ${ROOM_PRIVATE} $<BUILD_INTERFACE:outrider_build_flags>)
  endforeach()
endfunction()
