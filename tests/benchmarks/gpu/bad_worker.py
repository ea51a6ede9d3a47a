"""A process in place of the benchmark's worker, which does what it is asked to."""

import os
import sys
import time

from hetero_tvm.search.measure.peer import serve


class Bad:
    def __init__(self):
        self.requests = 0

    def __call__(self, request):
        self.requests += 1
        if request["do"] == "die":
            print("illegal memory access", file=sys.stderr, flush=True)
            os.abort()
        if request["do"] == "hang":
            time.sleep(60)
        if request["do"] == "raise":
            raise ValueError("no such row")
        return {"status": "ok", "requests": self.requests, "broken": request["do"] == "break"}


if __name__ == "__main__":
    serve(lambda hello: ({"failed": "no GPU"} if hello["arch"] == "none" else {"ready": True}, Bad()))
