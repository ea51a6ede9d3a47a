"""placeholder until the real one lands"""
import os, sys, inspect, linecache
def import_tvm():
    os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0)))); os.environ.setdefault("TVM_BIND_THREADS", "0")
    had = "torch" in sys.modules
    if not had: sys.modules["torch"] = None
    import tvm
    if not had: del sys.modules["torch"]
    return tvm
