import os

from hetero_tvm.runtime import quiet_fd2

NOISE = b"[12:00:00] /src/tensor.cc:1: Warning: Scope Saving: global\n"


def test_only_the_known_lines_are_dropped(capfd):
    with quiet_fd2():
        os.write(2, b"before\n" + NOISE)
        with quiet_fd2():
            os.write(2, NOISE.replace(b"Saving", b"Loaded") + b"Scope of the matter: kept\n")
        os.write(2, b"no newline at the end")
    os.write(2, b"\nafter\n")
    text = capfd.readouterr().err
    assert text == "before\nScope of the matter: kept\nno newline at the end\nafter\n"


def test_messages_survive_an_exception(capfd):
    try:
        with quiet_fd2():
            os.write(2, b"reason\n")
            raise KeyError
    except KeyError:
        pass
    assert capfd.readouterr().err == "reason\n"
