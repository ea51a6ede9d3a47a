"""A design space for GPUs whose points misbehave on purpose."""

from tests.search.spaces import BadSpace


class BadGpuSpace(BadSpace):
    """``mode``: ``good``; ``wrong`` numbers; ``fault``, a kernel that breaks the context; ``crash``, one
    that takes its process with it."""

    name = "test.bad_gpu"
    modes = ("good", "wrong", "fault", "crash")

    def emit(self, op, point, machine):
        from hetero_tvm.host.tvm import script_T as T

        rows, n, mode = op.rows, op.n, point["mode"]

        @T.prim_func(private=True, s_tir=True)
        def kernel(x: T.Buffer((rows, n)), w: T.Buffer((n,)), y: T.Buffer((rows, n))):
            T.func_attr({"tirx.noalias": True})
            for i in T.thread_binding(rows, "blockIdx.x"):
                for j in T.thread_binding(n, "threadIdx.x"):
                    with T.sblock("y"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        y[vi, vj] = x[vi, vj] * w[vj]

        return kernel if mode == "good" else _changed(kernel, mode)


def _changed(kernel, mode):
    from hetero_tvm.host.tvm import tirx, tvm_ffi

    def store(node):
        if mode == "wrong":
            return tirx.BufferStore(node.buffer, node.value + tirx.const(1.0), node.indices)
        thread = node.indices[1]
        if mode == "fault":  # threads of one warp wait for each other at different barriers
            block, warp = (
                tirx.Evaluate(tirx.call_extern("int32", name)) for name in ("__syncthreads", "__syncwarp")
            )
            return tirx.SeqStmt([node, tirx.IfThenElse(thread < 5, block, warp)])
        far = [node.indices[0] + (1 << 34), thread]
        return tirx.BufferStore(node.buffer, node.value, far)

    body = tvm_ffi.structural_map(kernel.body, (tirx.BufferStore, store))
    return kernel.with_body(body)
