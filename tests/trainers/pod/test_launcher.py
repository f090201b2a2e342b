"""The launcher, part by part."""

from trainers.pod.launcher import exit_code


def test_launchers_exit_code_is_the_one_that_says_most() -> None:
    assert exit_code({0: (138, 1), 1: (77, 2)}) == 77
    assert exit_code({0: (1, 2), 1: (-9, 1)}) == 137
    assert exit_code({0: (-15, 1), 1: (138, 1), 2: (1, 5)}) == 1
    assert exit_code({0: (143, 1), 1: (143, 1)}) == 143
    assert exit_code({0: (-15, 1)}) == 143
    assert exit_code({}) == 1
