"""The commands that turn streams into text and back."""

import subprocess
import sys

from hetero_tvm.targets.npu.__main__ import main
from tests.targets.npu.matmul import matmul


def test_the_command(tmp_path, capsys):
    stream, text = tmp_path / "a.hnpu", tmp_path / "a.txt"
    stream.write_bytes(matmul(32, 32, 32, (32, 32, 32)).to_bytes())
    assert main(["disasm", str(stream), "--offsets"]) == 0
    out = capsys.readouterr().out
    assert "mmad #1 dtype=f16" in out and "  ; 0 @" in out
    text.write_text(out)
    assert main(["asm", str(text), "-o", str(tmp_path / "b.hnpu")]) == 0
    assert (tmp_path / "b.hnpu").read_bytes() == stream.read_bytes()
    stream.write_bytes(stream.read_bytes()[:-4])
    assert main(["disasm", str(stream)]) == 1 and "offset 8" in capsys.readouterr().err
    assert main(["disasm", str(tmp_path / "none")]) == 1 and "No such file" in capsys.readouterr().err


def test_the_command_needs_no_compiler():
    code = "import sys, hetero_tvm.targets.npu.__main__ as m; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
