"""Wheels in empty environments: ``python -m tests.campaign.install``.

Builds the source distribution, the wheel from it, and the wheel of the runtime alone; installs both
wheels in environments of their own; builds a model in one, runs it in the other; prints what each
environment takes (MiB, without pip and setuptools) and ends with status 1 where that is too much.  Needs
an index to install from, and some minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.import_graph import ROOT

MOST_MEGABYTES = {"hetero_tvm": 450, "hetero_tvm_runtime": 110}
_TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
_RUN = """
import sys, numpy, hetero_tvm
net = hetero_tvm.load(sys.argv[1])
y = net(*[numpy.ones(spec.shape, spec.dtype) for spec in net.signature.inputs])
assert numpy.isfinite(y).all() and "tvm" not in sys.modules
print(net, float(y.sum()))
"""


def megabytes(environment: Path) -> float:
    """Size of what is installed, without the tools that every environment has."""
    (site,) = environment.glob("lib/python3*/site-packages")
    files = (p for p in site.rglob("*") if p.is_file() and not p.is_symlink())
    own = (p for p in files if not p.relative_to(site).parts[0].startswith(_TOOLS))
    return sum(p.stat().st_blocks * 512 for p in own) / 2**20


def environment(folder: Path, wheel: Path) -> Path:
    """An empty environment with one wheel and what it needs."""
    made = folder / wheel.name.partition("-")[0]
    subprocess.run([sys.executable, "-m", "venv", made], check=True)
    subprocess.run([made / "bin/python", "-m", "pip", "install", "-q", wheel], check=True, env=_ENVIRONMENT)
    return made


def _quietly(command: list[str | Path]) -> None:
    """Run a command; what it prints (thousands of lines) is shown only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{command}: status {done.returncode}")


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dist = folder / "dist"
        _quietly([sys.executable, "-m", "build", "--no-isolation", "-o", dist, ROOT])
        script = ROOT / "packaging" / "runtime_wheel.py"
        subprocess.run([sys.executable, script, "--out", dist], check=True, cwd=ROOT)
        whole, runtime = (environment(folder, next(dist.glob(f"{name}-*.whl"))) for name in MOST_MEGABYTES)
        for model in ("mobilenetv2-tiny", "minilm-l6-tiny"):
            build = ["-m", "hetero_tvm.build", f"zoo:{model}", "--out", folder / "out", "-q"]
            subprocess.run([whole / "bin/python", *build], check=True, cwd=folder, env=_ENVIRONMENT)
        subprocess.run(
            [runtime / "bin/python", "-c", _RUN, folder / "out"], check=True, cwd=folder, env=_ENVIRONMENT
        )
        status = 0
        for made in (whole, runtime):
            size, most = megabytes(made), MOST_MEGABYTES[made.name]
            print(f"{made.name}: {size:.0f} MB, {most} at most")
            status |= size > most
        return int(status)


if __name__ == "__main__":
    sys.exit(main())
