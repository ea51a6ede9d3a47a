/* Two sessions of a model with one input: the first takes a step for each .npy file, the second begins as its fork
 * before the last.  Prints the sum of each step's first output, and the lengths of both. */
#include "hetero_tvm_session.h"

static int die(void) {
  fprintf(stderr, "error: %s\n", hetero_tvm_error());
  return 1;
}

static void print(const hetero_tvm_session* session) {
  const hetero_tvm_array* y = hetero_tvm_session_output(session, 0);
  double sum = 0;
  for (int64_t i = 0; i < hetero_tvm_count(y->shape, y->rank); ++i) sum += ((const float*)y->data)[i];
  printf("%.6g\n", sum);
}

int main(int argc, char** argv) {
  hetero_tvm_model* model = argc > 2 ? hetero_tvm_open(argv[1]) : NULL;
  hetero_tvm_session* session = model ? hetero_tvm_session_open(model) : NULL;
  if (!session) return die();
  hetero_tvm_session* other = NULL;
  for (int i = 2; i < argc; ++i) {
    hetero_tvm_array x;
    if (i == argc - 1 && !(other = hetero_tvm_session_fork(session))) return die();
    if (hetero_tvm_read_npy(argv[i], &x) || hetero_tvm_session_run(session, &x, 1)) return die();
    print(session);
    if (other && hetero_tvm_session_run(other, &x, 1)) return die();
    hetero_tvm_free(&x);
  }
  print(other);
  if (hetero_tvm_session_rewind(other, 1)) return die();
  printf("%lld %lld\n", (long long)hetero_tvm_session_length(session), (long long)hetero_tvm_session_length(other));
  hetero_tvm_session_close(other);
  hetero_tvm_session_close(session);
  hetero_tvm_close(model);
  return 0;
}
