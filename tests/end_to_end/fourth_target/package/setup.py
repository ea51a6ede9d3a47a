from setuptools import setup

setup(
    name="fourth-target",
    version="1.0",
    packages=["fourth_target"],
    package_data={"fourth_target": ["*.cc"]},
    entry_points={
        "hetero_tvm.targets": ["fourth = fourth_target.target:FourthTarget"],
        "hetero_tvm.libraries": ["fourth = fourth_target.library:open_library"],
    },
)
