"""Everything is in setup.cfg, except what it cannot say: the top-level ``logs/`` ships inside."""

from pathlib import Path

from setuptools import find_packages, setup

packages = find_packages(include=["hetero_tvm", "hetero_tvm.*"])
package_dir = {}
if Path("logs").is_dir():
    packages.append("hetero_tvm.logs")
    package_dir["hetero_tvm.logs"] = "logs"

setup(packages=packages, package_dir=package_dir)
