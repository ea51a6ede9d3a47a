"""Every rule of the package shows a rewrite, in the test file that mirrors its own."""

import importlib
import inspect
import pkgutil

import pytest

from hetero_tvm.relax_passes import canonical, forms, fusions
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.targets.registry import parse_target
from tests.relax_passes.rewrite import Rewrite


def rules():
    """Classes of rules, without those that only others are made from."""
    for package in (canonical, fusions, forms):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, rule in inspect.getmembers(module, inspect.isclass):
                if issubclass(rule, Rule) and rule.__module__ == found.name and not name.startswith("_"):
                    yield rule


RULES = list(rules())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_shows_a_rewrite(rule):
    *folders, file = rule.__module__.removeprefix("hetero_tvm.").split(".")
    tests = importlib.import_module(".".join(["tests", *folders, f"test_{file}"]))
    shown = [case for case in vars(tests).values() if inspect.isclass(case) and issubclass(case, Rewrite)]
    assert rule in [type(case.rule) for case in shown if case is not Rewrite]


@pytest.mark.parametrize("target", ["cpu", "npu:mobile", "cuda:sm_80"])
def test_every_rule_of_a_pipeline_is_one_of_the_package(target):
    used = {type(rule) for rule in parse_target(target).fusions if isinstance(rule, Rule)}
    assert used <= set(RULES)
