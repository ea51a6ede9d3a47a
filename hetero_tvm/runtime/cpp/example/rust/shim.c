/* Functions of the C header as symbols that other languages can link. */
#include "hetero_tvm.h"

hetero_tvm_model* model_open(const char* path) { return hetero_tvm_open(path); }
void model_close(hetero_tvm_model* model) { hetero_tvm_close(model); }
const char* model_error(void) { return hetero_tvm_error(); }
const char* model_name(const hetero_tvm_model* model) { return model->name; }
int model_inputs(const hetero_tvm_model* model) { return model->inputs; }
int model_outputs(const hetero_tvm_model* model) { return model->outputs; }
const hetero_tvm_spec* model_input(const hetero_tvm_model* model, int index) { return &model->input[index]; }
const hetero_tvm_array* model_output(const hetero_tvm_model* model, int index) {
  return hetero_tvm_output(model, index);
}
int model_run(hetero_tvm_model* model, const hetero_tvm_array* inputs, int count) {
  return hetero_tvm_run(model, inputs, count);
}
int array_alloc(hetero_tvm_array* array, const char* dtype, int rank, const int64_t* shape) {
  return hetero_tvm_alloc(array, dtype, rank, shape);
}
int array_read_npy(const char* path, hetero_tvm_array* array) { return hetero_tvm_read_npy(path, array); }
void array_free(hetero_tvm_array* array) { hetero_tvm_free(array); }
int64_t array_count(const hetero_tvm_array* array) { return hetero_tvm_count(array->shape, array->rank); }
