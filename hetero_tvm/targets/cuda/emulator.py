"""CUDA kernels as host code: the compiler of the CPU emulation.

With ``HETERO_TVM_CUDA_EMULATE=1`` kernels are translated from the CUDA C++ that TVM generates to
C++ over ``emulated.h``, compiled by the host compiler, and run by the stand-in driver
(``runtime/cuda/cpp/standin.cc``).  Everything else is what a GPU would see: TVM's CUDA runtime,
launches, device memory, streams, graphs.  It is for checking numbers, and slow: small shapes only.

Not covered: TMA and mbarrier; data races between barriers; reads out of bounds.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from hetero_tvm.errors import BuildError
from hetero_tvm.host import native
from hetero_tvm.targets.cuda.toolchain import Toolchain, with_nan_extremes

MAGIC = b"HTVMEMU1"
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\) \{')
_ASM = re.compile(r"(?:__asm__\s+__volatile__|asm\s+volatile|__asm__\s+volatile|\basm)\s*\(")
_COLLECTIVE = re.compile(
    r"__sync|__shfl|wmma::|load_matrices|multiply<|copy_async|htvm_|__activemask|__shared__"
)
# A vector access of the schedules' device functions: its pointer type, its address.
_PACK = re.compile(r"\*\(((?:const )?Htvm\w+<[^>]*>\*)\)(\((?:[^()]|\([^()]*\))*\))")
# fmt: off
_SIZES = {
    "half": 2, "nv_bfloat16": 2, "float": 4, "int": 4, "uchar": 1, "signed char": 1, "double": 8,
    "int64_t": 8, "uint": 4, "short": 2, "bool": 1,
}
# fmt: on
_ELEMENT = {"f16": "half", "bf16": "nv_bfloat16", "s8": "signed char", "u8": "uchar", "tf32": "tf32"}


class Emulator(Toolchain):
    """Compiler to host code, behind the magic number that ``standin.cc`` knows in place of a cubin."""

    name = "emulator"
    version = "5"

    def _compile(self, source: str, arch: str, kind: str) -> dict[str, bytes]:
        raise BuildError("the emulation of a GPU makes no PTX")

    def cubin(self, source: str, arch: str) -> bytes:
        code = compiled(translate(source)).read_bytes()
        return MAGIC + struct.pack("<Q", len(code)) + code


def compiled(text: str, flags: Sequence[str] = ()) -> Path:
    """The library of a translated program."""
    folder = native.cache_dir().parent / "cuda"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"emulated-{_digest(text)}.cc"
    path.write_text(text, encoding="utf-8")
    header = native.source_path("runtime/cuda/cpp/emulated.h")
    flags = ["-std=c++20", "-O1", "-march=native", "-w", "-fpermissive", "-fno-math-errno", *flags]
    ready = native.compile_header(header, flags=flags, name="emulated")
    return native.compile_shared([path], include=[ready, header.parent], flags=flags, name="emulated")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def translate(source: str) -> str:
    """C++ over ``emulated.h`` with a function ``emulated_<kernel>`` for each kernel of ``source``."""
    source = with_nan_extremes(source)
    marker = source.index("#define ushort unsigned short")
    body = source[source.index("#endif", marker) + len("#endif") :]
    body = _PACK.sub(r"*seen((\1)(\2))", _static_shared(_replace_asm(body)))
    size = r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];"
    body = re.sub(size, r"\1* \2 = (\1*)shared_memory;", body)
    parts = ['#include "emulated.h"\n', body]
    bodies = _functions(body)
    for name, parameters in re.findall(_KERNEL, body):
        types = [text.replace("__restrict__", " ").rsplit(None, 1)[0] for text in _split(parameters)]
        sizes = ", ".join([str(len(types)), *(f"(int)sizeof({kind})" for kind in types)])
        values = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(types))
        collective = "true" if _needs_fibers(bodies[name], body) else "false"
        parts.append(
            f'extern "C" const int sizes_{name}[] = {{{sizes}}};\n'
            f"static void call_{name}(void** a) {{ {name}({values}); }}\n"
            f'extern "C" int emulated_{name}(void** a, const int* dims, int) '
            f"{{ return launch(call_{name}, a, dims, {collective}); }}\n"
        )
    return "".join(parts)


def _needs_fibers(body: str, whole: str) -> bool:
    """Whether threads of a block meet in a kernel, so that each needs a stack of its own."""
    if _COLLECTIVE.search(body):
        return True
    helpers = re.findall(r"__device__[^;{]*?(\w+)\([^;{]*\) \{", whole)
    return any(re.search(rf"\b{name}\(", body) for name in helpers)


def _functions(source: str) -> dict[str, str]:
    """Bodies of the kernels by name."""
    result = {}
    for match in _KERNEL.finditer(source):
        depth, at = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(source[at], 0)
            at += 1
        result[match.group(1)] = source[match.end() : at]
    return result


def _split(parameters: str) -> list[str]:
    """Parameters of a C++ function, one by one."""
    return [text.strip() for text in parameters.split(",") if text.strip()]


def _static_shared(body: str) -> str:
    """Source in which static shared arrays are places in the block's shared memory."""
    at = 0

    def place(match: re.Match) -> str:
        nonlocal at
        kind, name, count = match.groups()
        start = at
        at = (at + _SIZES.get(kind.strip(), 8) * int(count) + 127) // 128 * 128
        # The marker stays: it says that threads of a block meet.
        return f"{kind}* {name} = ({kind}*)(shared_memory + {start}); /* __shared__ */"

    lines = []
    for line in body.splitlines(keepends=True):
        if line.startswith('extern "C" __global__') and line.rstrip().endswith("{"):
            at = 0
        static = r"(?<!extern )__shared__ (?:alignas\(\d+\) |__align__\(\d+\) )?([\w ]+?) (\w+)\[(\d+)\];"
        lines.append(re.sub(static, place, line))
    return "".join(lines)


def _replace_asm(body: str) -> str:
    """Source in which inline assembly is calls of ``emulated.h``."""
    out, done = [], 0
    for match in _ASM.finditer(body):
        if match.start() < done:
            continue
        depth, at, quoted = 1, match.end(), False
        while depth:
            char = body[at]
            if char == '"' and body[at - 1] != "\\":
                quoted = not quoted
            if not quoted:
                depth += (char == "(") - (char == ")")
            at += 1
        end = body.index(";", at) + 1
        out += [body[done : match.start()], _instruction(body[match.end() : end])]
        done = end
    return "".join(out) + body[done:]


def _instruction(text: str) -> str:
    """An inline-assembly statement as a call of ``emulated.h``."""
    outputs, inputs = [], []
    for match in re.finditer(r'"([=+]?)[a-z]"\s*\(', text):
        depth, at = 1, match.end()
        while depth:
            depth += (text[at] == "(") - (text[at] == ")")
            at += 1
        (outputs if match.group(1) else inputs).append(text[match.end() : at - 1])
    addresses = ", ".join(f"(unsigned*)&({name})" for name in outputs)
    if "cp.async.wait_group" in text:
        return f"copy_wait({re.search(r'wait_group (%?[0-9]+)', text).group(1)});"
    if "cp.async.wait_all" in text:
        return "copy_commit(); copy_wait(0);"
    if "cp.async.commit" in text:
        return "copy_commit();"
    if "cp.async" in text:
        return _async_copy(text, inputs)
    if "ldmatrix" in text:
        transposed = "true" if ".trans" in text else "false"
        return f"load_matrices({len(outputs)}, {transposed}, {inputs[0]}, {{{addresses}}});"
    if "ex2.approx" in text:
        return f"{outputs[0]} = exp2f({inputs[0]});"
    if "cvt.rna.tf32" in text:
        return f"{outputs[0]} = round_tf32({inputs[0]});"
    if "wgmma.wait_group" in text:
        return f"products_wait({inputs[0]});"
    if "wgmma.commit_group" in text:
        return "products_commit();"
    if re.search(r"wgmma\.fence|fence\.proxy\.async", text):
        return ";"
    if found := re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(\w+)\.(\w+)\.\w+", text):
        columns, depth, result, element = found.groups()
        kinds = f"{_ELEMENT[element]}, {columns}, {depth}, {'int' if result == 's32' else 'float'}"
        return f"multiply_group<{kinds}>(&({outputs[0]}), {inputs[0]}, {inputs[1]});"
    found = re.search(r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.(\w+)\.(\w+)\.\w+\.\w+", text)
    if found:
        return _mma(found, outputs, inputs)
    if "cvta.to.shared" in text or "cvta" in text:
        return f"{outputs[0]} = __cvta_generic_to_shared((const void*){inputs[0]});"
    raise BuildError(f"the emulation of a GPU does not know this instruction: {text[:120]!r}")


def _async_copy(text: str, inputs: list[str]) -> str:
    """A ``cp.async`` as a call of ``emulated.h``."""
    size = inputs[2] if len(inputs) > 2 else re.search(r"], (\d+)", text).group(1)
    if found := re.search(r"setp\.\w+\.\w+ \w+, %(\d+)", text):
        # Where the predicate is false: zeros, where the statement stores them, else nothing.
        valid = inputs[3] if len(inputs) > 4 else size
        call = f"if ({inputs[int(found.group(1))]}) copy_async({inputs[0]}, {inputs[1]}, {size}, {valid});"
        zero = f" else memset(shared_memory + ({inputs[0]}), 0, {size});"
        return "{ " + call + (zero if "st.shared" in text else "") + " }"
    valid = inputs[3] if len(inputs) > 3 else size
    return f"copy_async({inputs[0]}, {inputs[1]}, {size}, {valid});"


def _mma(found: re.Match, outputs: list[str], inputs: list[str]) -> str:
    """An ``mma.sync`` as a call of ``emulated.h``."""
    depth, element = int(found.group(1)), _ELEMENT[found.group(3)]
    result = {"f32": "float", "s32": "int", "f16": "half"}[found.group(2)]
    per_a = depth * {"tf32": 4, "half": 2, "nv_bfloat16": 2, "signed char": 1, "uchar": 1}[element] // 8
    a, b, c = inputs[:per_a], inputs[per_a : per_a + per_a // 2], inputs[per_a + per_a // 2 :][:4]
    targets = ", ".join(f"({result}*)&({name})" for name in outputs)
    registers = [", ".join(f"(unsigned)({name})" for name in group) for group in (a, b)]
    return (
        f"multiply<{element}, {depth}, {result}>({{{targets}}}, {{{registers[0]}}}, {{{registers[1]}}}, "
        f"{{{', '.join(c)}}});"
    )
