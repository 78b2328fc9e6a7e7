# Read by CTest before it runs tests, with `name`, `executable`, `labels`, `timeout` and `results` set: adds the tests of one GoogleTest
# executable as CTests of about 30 tests each, NAME.1, NAME.2 …, whose results lie in `results`/NAME.K.xml. Every process under
# AddressSanitizer takes a tenth of a second to start and to end, more than most tests take.
if(NOT EXISTS "${executable}")
  add_test(${name}_NOT_BUILT ${name}_NOT_BUILT)
  return()
endif()
execute_process(COMMAND "${executable}" --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${executable} --gtest_list_tests ended with ${failed}")
endif()
string(REGEX MATCHALL "\n  [^\n]" tests "${listed}")
list(LENGTH tests count)
math(EXPR shards "(${count} + 29) / 30")
foreach(shard RANGE 1 ${shards})
  math(EXPR index "${shard} - 1")
  add_test(${name}.${shard} "${executable}" "--gtest_output=xml:${results}/${name}.${shard}.xml")
  set_tests_properties(${name}.${shard} PROPERTIES
    ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index}" LABELS "${labels}" TIMEOUT 600 COST ${timeout})
endforeach()
