"""An interrupt that Python loses is raised again."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from frown.jobs.job import Interrupt


class Finaliser:
    """Whatever is raised in `__del__` is printed and forgotten."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_reaches_a_finaliser_is_remembered() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        interrupt.check()
        thing = Finaliser()
        del thing
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_arrives_is_not_raised_twice() -> None:
    with Interrupt() as interrupt:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        except KeyboardInterrupt:
            interrupt.check()  # while what is finished is handed over
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_handlers_of_others_and_threads_are_left_alone() -> None:
    def mine(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGINT, mine)
    try:
        with Interrupt():
            assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def run() -> None:
        with Interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
