"""The command ``doctor``."""

import json

from hetero_tvm import doctor
from hetero_tvm.cli import doctor as findings


def test_report_and_exit_status(monkeypatch, capsys):
    one = findings.Finding("tools", "C++ compiler", "none", findings.MISSING, "apt install g++")
    monkeypatch.setattr(findings, "findings", lambda: [one])
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "MISSING" in said and "apt install g++" in said and "1 thing is missing" in said
    monkeypatch.setattr(findings, "findings", lambda: [findings.Finding("machine", "CPU", "a CPU")])
    assert doctor.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["text"] == "a CPU"


def test_lines_fit_the_terminal_and_commands_stay_whole(monkeypatch, capsys):
    command = "/a/long/path/to/python -m pip install " + "'../a/checkout/somewhere/else[notebook]'"
    monkeypatch.setattr(
        findings,
        "findings",
        lambda: [
            findings.Finding("targets", "cuda", "no GPU", findings.OPTIONAL, "a hint of many words " * 5),
            findings.Finding("extras", "notebook", "the tutorials " * 9, findings.OPTIONAL, command),
        ],
    )
    monkeypatch.setenv("COLUMNS", "80")
    doctor.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if len(line) > 80] == [command]
    assert sum("many words" in line for line in lines) == 2
