# One CMake target per room. outrider_room(NAME SOURCES ... PUBLIC ... PRIVATE ...) makes the static
# library outrider_NAME with the alias outrider::NAME. The PUBLIC and PRIVATE edges are the project's
# dependency diagram; tests/tidy rejects an #include that has no edge.

add_library(outrider_build_flags INTERFACE)
target_compile_options(outrider_build_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  $<$<BOOL:${OUTRIDER_WERROR}>:-Werror>)
if(OUTRIDER_SANITIZE)
  # Sanitizers need every object of the program, so this one flag set is global.
  add_compile_options(-fsanitize=${OUTRIDER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${OUTRIDER_SANITIZE})
endif()

function(outrider_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(outrider_${name} STATIC ${ROOM_SOURCES})
  add_library(outrider::${name} ALIAS outrider_${name})
  target_include_directories(outrider_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(outrider_${name} PUBLIC cxx_std_20)
  target_link_libraries(outrider_${name}
    PUBLIC ${ROOM_PUBLIC}
    PRIVATE ${ROOM_PRIVATE} $<BUILD_INTERFACE:outrider_build_flags>)
endfunction()
