# find_package(hetero_tvm): the target hetero_tvm::runtime, with the headers and TVM's two libraries.
#
#   cmake -B build -Dhetero_tvm_DIR=$(python -c "import hetero_tvm.runtime as r; print(r.cmake_folder())")
#
# TVM's libraries are those of the Python that Python3_EXECUTABLE names (in the wheel hetero-tvm-runtime the runtime's
# lie in this package), or lie in TVM_LIBRARY_PATH (tvm and ffi beside each other) with headers in TVM_INCLUDE_PATH.
if(TARGET hetero_tvm::runtime)
  return()
endif()
if(TVM_LIBRARY_PATH)
  set(_hetero_tvm_folders "${TVM_LIBRARY_PATH};${TVM_LIBRARY_PATH}")
  set(_hetero_tvm_include "${TVM_INCLUDE_PATH}")
else()
  if(NOT Python3_EXECUTABLE)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
  endif()
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -c
    "import importlib.util as u, pathlib, sys; p = lambda n: pathlib.Path(u.find_spec(n).submodule_search_locations[0]); own = pathlib.Path(sys.argv[1]).resolve(); print(own if own.exists() else p('tvm') / 'lib', p('tvm_ffi') / 'lib', p('tvm_ffi') / 'include', sep=';', end='')"
    "${CMAKE_CURRENT_LIST_DIR}/../../lib"
    OUTPUT_VARIABLE _hetero_tvm_found
    RESULT_VARIABLE _hetero_tvm_status)
  if(NOT _hetero_tvm_status EQUAL 0)
    set(hetero_tvm_FOUND FALSE)
    set(hetero_tvm_NOT_FOUND_MESSAGE
        "${Python3_EXECUTABLE} has no apache-tvm and no hetero-tvm-runtime: set Python3_EXECUTABLE, or TVM_LIBRARY_PATH and TVM_INCLUDE_PATH")
    return()
  endif()
  list(GET _hetero_tvm_found 0 1 _hetero_tvm_folders)
  list(GET _hetero_tvm_found 2 _hetero_tvm_include)
endif()
list(GET _hetero_tvm_folders 0 _hetero_tvm_tvm)
list(GET _hetero_tvm_folders 1 _hetero_tvm_ffi)
add_library(hetero_tvm::runtime INTERFACE IMPORTED)
set_target_properties(
  hetero_tvm::runtime
  PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../include"
             INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_hetero_tvm_include}"
             INTERFACE_COMPILE_FEATURES "cxx_std_17")
target_include_directories(hetero_tvm::runtime SYSTEM INTERFACE "${_hetero_tvm_include}")
# Functions of the runtime are found by name: without --no-as-needed it would not be linked.
target_link_libraries(
  hetero_tvm::runtime
  INTERFACE "-Wl,--no-as-needed" "${_hetero_tvm_tvm}/libtvm_runtime.so" "${_hetero_tvm_tvm}/libtvm_runtime_extra.so"
            "${_hetero_tvm_ffi}/libtvm_ffi.so" "-Wl,--as-needed" ${CMAKE_DL_LIBS})
set(hetero_tvm_FOUND TRUE)
