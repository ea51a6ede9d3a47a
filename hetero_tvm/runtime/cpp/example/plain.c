/* The same in plain C: plain model.so input.npy ...; prints the sum of the first output. */
#include "hetero_tvm.h"

static int fail(void) {
  fprintf(stderr, "error: %s\n", hetero_tvm_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 2) return hetero_tvm_fail(NULL, "usage: plain ./model.so input.npy ..."), fail();
  hetero_tvm_model* model = hetero_tvm_open(argv[1]);
  if (!model) return fail();
  hetero_tvm_array* inputs = (hetero_tvm_array*)calloc((size_t)argc, sizeof *inputs);
  int status = inputs == NULL;
  for (int i = 2; i < argc && !status; ++i) status = hetero_tvm_read_npy(argv[i], &inputs[i - 2]);
  if (!status) status = hetero_tvm_run(model, inputs, argc - 2);
  const hetero_tvm_array* y = status ? NULL : hetero_tvm_output(model, 0);
  if (status) fail();
  if (y && strcmp(y->dtype, "float32") == 0) {
    const int64_t count = hetero_tvm_count(y->shape, y->rank);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += ((const float*)y->data)[i];
    printf("%s: %lld values, sum %.6g\n", model->output[0].name, (long long)count, sum);
  }
  for (int i = 2; inputs && i < argc; ++i) hetero_tvm_free(&inputs[i - 2]);
  free(inputs);
  hetero_tvm_close(model);
  return status;
}
