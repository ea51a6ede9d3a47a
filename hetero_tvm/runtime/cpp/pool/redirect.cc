// Kernels launch through these two variables, which TVM's loader fills in where it finds them.  The linker
// script beside this file hides them, so that the loader does not: they stay as they are here.

#include "pool.h"

namespace {

// No kernel of ours waits for others in the middle of a launch, and tasks need not run at the same time.
int Barrier(int, TVMParallelGroupEnv* environment) {
  if (environment->num_task == 1) return 0;
  hetero_tvm::LeaveText("RuntimeError", "a kernel wants a barrier inside a parallel launch, which there is not");
  return -1;
}

}  // namespace

extern "C" {
int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void*, int) = hetero_tvm::LaunchOrTrace;
int (*__TVMBackendParallelBarrier)(int, TVMParallelGroupEnv*) = Barrier;
}
