"""``python -m hetero_tvm.targets.npu disasm FILE`` and ``asm FILE -o OUT``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.host.files import write_whole
from hetero_tvm.targets.npu.isa.assembler import assemble
from hetero_tvm.targets.npu.isa.disassembler import disassemble_file


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when the file cannot be read or is malformed."""
    parser = argparse.ArgumentParser(prog="python -m hetero_tvm.targets.npu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    disasm = commands.add_parser("disasm", help="command stream, or those in an exported library, to text")
    disasm.add_argument("file", type=Path, help="a command stream or an exported .so")
    disasm.add_argument("--offsets", action="store_true", help="end lines with the index and byte offset")
    asm = commands.add_parser("asm", help="text to command stream")
    asm.add_argument("file", type=Path)
    asm.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        if options.command == "disasm":
            sys.stdout.write(disassemble_file(options.file.read_bytes(), options.offsets))
        else:
            write_whole(options.output, assemble(options.file.read_text(encoding="utf-8")))
    except (HeteroTVMError, UnicodeDecodeError) as error:
        print(f"error: {options.file}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
