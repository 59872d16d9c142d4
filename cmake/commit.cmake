# Writes OUTPUT, a source file with the commit of the tree SOURCE, if that is another than is there: run at each build.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=40 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(commit "")  # a tree without its history
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#include \"launch/commit.h\"\n\nnamespace outrider {\nconst char* const kBuildCommit = \"${commit}\";\n}\n")
