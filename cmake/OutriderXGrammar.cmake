# XGrammar's C++ core, compiled from the source that ./setup fetches: no distribution has it. Like our rooms as few units,
# which other rooms are compiled beside: what makes masks fast, and what reads grammars and schemas once a request.
set(OUTRIDER_XGRAMMAR_SOURCE "${outrider_cache}/xgrammar-0.2.8-source" CACHE PATH "Where ./setup keeps XGrammar's source")
if(NOT EXISTS ${OUTRIDER_XGRAMMAR_SOURCE}/cpp)
  message(FATAL_ERROR "XGrammar is not in ${OUTRIDER_XGRAMMAR_SOURCE}: run ./setup --no-build")
endif()
set(xgrammar_hot compiled_grammar earley_parser fsm fsm_builder grammar_compiler grammar_functor grammar_matcher suffix_automata
  tokenizer_info converter_ext/minimax_m3)  # the last shares a name with json_schema_converter
set(xgrammar_cold config grammar grammar_builder grammar_parser grammar_printer json_schema_converter lark_converter regex_converter
  structural_tag testing converter_ext/cohere converter_ext/deepseek converter_ext/glm converter_ext/kimi_k3 converter_ext/minimax
  converter_ext/qwen support/logging support/recursion_guard)
list(TRANSFORM xgrammar_hot REPLACE "(.+)" "${OUTRIDER_XGRAMMAR_SOURCE}/cpp/\\1.cc")
list(TRANSFORM xgrammar_cold REPLACE "(.+)" "${OUTRIDER_XGRAMMAR_SOURCE}/cpp/\\1.cc")
add_library(xgrammar STATIC ${xgrammar_hot})
add_library(XGrammar::xgrammar ALIAS xgrammar)
add_library(xgrammar_cold OBJECT ${xgrammar_cold})
target_sources(xgrammar PRIVATE $<TARGET_OBJECTS:xgrammar_cold>)
outrider_compile_as_one(xgrammar)
target_compile_options(xgrammar PRIVATE $<$<CONFIG:Release>:-O2>)
# Its steps are counted, so that it can be interrupted.
target_compile_options(xgrammar PRIVATE "SHELL:-include ${OUTRIDER_XGRAMMAR_SOURCE}/cpp/support/logging.h"
                       "SHELL:-include ${PROJECT_SOURCE_DIR}/common/decoding/grammar/engine_steps.h")
outrider_compile_quickly(xgrammar_cold)
foreach(part xgrammar xgrammar_cold)
  # Its own log is ours, in common/decoding/grammar.
  target_compile_definitions(${part} PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
  target_compile_options(${part} PRIVATE -w -fvisibility=hidden -ffunction-sections -fdata-sections)
  target_include_directories(${part} SYSTEM PUBLIC ${OUTRIDER_XGRAMMAR_SOURCE}/include ${OUTRIDER_XGRAMMAR_SOURCE}/3rdparty/picojson
                             ${OUTRIDER_XGRAMMAR_SOURCE}/3rdparty/dlpack/include)
  set_target_properties(${part} PROPERTIES CXX_STANDARD 17)
endforeach()
target_link_libraries(xgrammar PUBLIC Threads::Threads)
